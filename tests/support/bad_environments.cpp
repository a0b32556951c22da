// tests/support/bad_environments.cpp - one table for the reader and for the programs.
#include "tests/support/bad_environments.hpp"

#include <algorithm>
#include <cctype>
#include <functional>
#include <utility>

#include "tests/support/run_program.hpp"

namespace ddp::test {

const Variables kTorchrun = {
    {"RANK", "3"},
    {"WORLD_SIZE", "4"},
    {"LOCAL_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "2"},
    {"GROUP_RANK", "1"},
    {"GROUP_WORLD_SIZE", "2"},
    {"ROLE_RANK", "3"},
    {"MASTER_ADDR", "n1"},
    {"MASTER_PORT", "29400"},
    {"TORCHELASTIC_RUN_ID", "job7"},
    {"TORCHELASTIC_RESTART_COUNT", "2"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
};
const Variables kSpawn = {
    {"DDP_LAUNCHER", "spawn"}, {"RANK", "0"},         {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"},
    {"LOCAL_WORLD_SIZE", "2"}, {"DDP_STORE_FD", "3"},
};
const Variables kPlain = {
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "1"},
    {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"OMPI_COMM_WORLD_NODE_RANK", "1"},
    {"PMIX_NAMESPACE", "2096300033"},
    {"PMIX_RANK", "1"},
    {"PMIX_SERVER_TMPDIR", "/tmp/ompi.host.0/pid.4109"},
};
const Variables kSlurm = {
    {"SLURM_JOB_ID", "12"},
    {"SLURM_STEP_ID", "0"},
    {"SLURM_PROCID", "2"},
    {"SLURM_LOCALID", "0"},
    {"SLURM_NODEID", "1"},
    {"SLURM_NTASKS", "8"},
    {"SLURM_STEP_NUM_TASKS", "3"},
    {"SLURM_STEP_NUM_NODES", "2"},
    {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
    {"SLURM_STEP_NODELIST", "n[1-2]"},
};
const Variables kCondor = {
    {"_CONDOR_PROCNO", "1"},
    {"_CONDOR_NPROCS", "3"},
    {"_CONDOR_JOB_IWD", "/home/me/run"},
    {"DDP_JOB_ID", "345"},
};
const Variables kFlux = {
    {"FLUX_TASK_RANK", "1"},
    {"FLUX_TASK_LOCAL_ID", "1"},
    {"FLUX_JOB_SIZE", "2"},
    {"FLUX_JOB_NNODES", "1"},
    {"FLUX_JOB_ID",
     "\xc6\x92"
     "AbC"},
    {"FLUX_JOB_TMPDIR", "/run/user/7/job"},
    {"PMI_RANK", "1"},
    {"PMI_SIZE", "2"},
    {"PMI_FD", "19"},
    {"PALS_RANKID", "1"},
};
const Variables kHydra = {
    {"PMI_RANK", "1"},        {"PMI_SIZE", "2"},        {"PMI_FD", "8"},
    {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}, {"I_MPI_HYDRA_UUID", "9d260000-7c26"},
};
const Variables kJsrun = {
    {"JSM_NAMESPACE_RANK", "1"},
    {"JSM_NAMESPACE_SIZE", "2"},
    {"JSM_NAMESPACE_LOCAL_RANK", "1"},
    {"JSM_NAMESPACE_LOCAL_SIZE", "2"},
    {"LSB_JOBID", "77"},
    {"PMIX_NAMESPACE", "3"},
    {"PMIX_RANK", "1"},
};
const Variables kPals = {
    {"PALS_RANKID", "1"}, {"PALS_LOCAL_RANKID", "1"}, {"PALS_LOCAL_SIZE", "2"},
    {"PALS_NODEID", "0"}, {"PALS_APID", "a1-b2"},     {"PMI_RANK", "1"},
    {"PMI_SIZE", "2"},    {"PMI_LOCAL_RANK", "1"},    {"PMI_LOCAL_SIZE", "2"},
};

namespace {

const std::vector<std::string> kNoInteger = {
    "",   "abc", " 1",  "1 ",         "1e3",        "-1",
    "+1", "0x1", "1.0", "2147483647", "2147483648", "18446744073709551616"};

using List = std::vector<std::string>;

List words_and(const std::string& line, const List& others) {
  List all = words(line);
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

// To be shown on one line, and nothing of it to be done.
const List kHostile = words_and("$(id) `id` ;id %s%n NaN ' --help \xff\xfe \xef\xbc\x91 \xd9\xa3",
                                {"1\n2", "1\r", "\x1b[31m1", std::string(5000, '9')});

const List kNoHost = words_and(
    "n1:29500 [n1]:29500 http://n1 tcp://n1:29500 n1/24 $(id) -n1 .n1 n1,n2 user@n1 [::1 ::1] [] "
    "%eth0 n1%eth0 fe80::1% 1::2::3 ::fffff ::: 256.1.1.1 10.0.0 10.0.0.1.2 29500 0.0.0.0 :: [::] "
    "* n\xc3\xb6",
    {"n 1", "n1\nn2", "fe80::1%a b", std::string(300, 'a'), std::string(100000, ':')});

}  // namespace

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) {
    variables[name] = value;
  }
  return variables;
}

Variables without(Variables variables, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    variables.erase(name);
  }
  return variables;
}

std::vector<BadEnvironment> environments_with_no_number() {
  const std::vector<std::pair<Variables, std::string>> launchers = {
      {kTorchrun,
       "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_PORT "
       "TORCHELASTIC_RESTART_COUNT"},
      {kSpawn, "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE DDP_STORE_FD"},
      {kPlain, "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_PORT"},
      {kOpenMpi,
       "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK "
       "OMPI_COMM_WORLD_LOCAL_SIZE"},
      {kSlurm,
       "SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_STEP_NUM_TASKS SLURM_STEP_NUM_NODES "
       "SLURM_RESTART_COUNT"},
      {kCondor, "_CONDOR_PROCNO _CONDOR_NPROCS"},
      {kFlux, "FLUX_TASK_RANK FLUX_JOB_SIZE FLUX_TASK_LOCAL_ID FLUX_JOB_NNODES"},
      {kHydra, "PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS"},
      {kJsrun,
       "JSM_NAMESPACE_RANK JSM_NAMESPACE_SIZE JSM_NAMESPACE_LOCAL_RANK JSM_NAMESPACE_LOCAL_SIZE"},
      {kPals, "PALS_RANKID PMI_SIZE PALS_LOCAL_RANKID PALS_LOCAL_SIZE"},
  };
  std::vector<BadEnvironment> found;
  for (const auto& [good, all_names] : launchers) {
    const std::vector<std::string> names = words(all_names);
    for (const std::string& name : names) {
      for (const std::string& value : kNoInteger) {
        found.push_back({with(good, {{name, value}}), name});
      }
    }
    for (const std::string& value : kHostile) {
      found.push_back({with(good, {{names.front(), value}}), names.front()});
    }
  }
  for (const char* const port : {"0", "65536", "99999", "29500x", "n1:29500"}) {
    for (const Variables& good :
         {kTorchrun, kPlain, kOpenMpi, kSlurm, kCondor, kFlux, kHydra, kJsrun, kPals}) {
      found.push_back({with(good, {{"MASTER_ADDR", "n1"}, {"MASTER_PORT", port}}), "MASTER_PORT"});
    }
  }
  return found;
}

std::vector<BadEnvironment> environments_with_a_gap() {
  const std::vector<std::pair<Variables, std::string>> launchers = {
      {kTorchrun, "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT GROUP_RANK"},
      {kSpawn, "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE DDP_STORE_FD"},
      {kPlain, "RANK WORLD_SIZE MASTER_ADDR MASTER_PORT"},
      {kOpenMpi,
       "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK "
       "OMPI_COMM_WORLD_LOCAL_SIZE PMIX_NAMESPACE"},
      {kSlurm, "SLURM_JOB_ID SLURM_PROCID SLURM_LOCALID SLURM_NODEID"},
      {kCondor, "_CONDOR_PROCNO _CONDOR_NPROCS _CONDOR_JOB_IWD DDP_JOB_ID"},
      {kFlux, "FLUX_TASK_RANK FLUX_JOB_SIZE FLUX_TASK_LOCAL_ID FLUX_JOB_NNODES FLUX_JOB_ID"},
      {kHydra, "PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS I_MPI_HYDRA_UUID"},
      {kJsrun,
       "JSM_NAMESPACE_RANK JSM_NAMESPACE_SIZE JSM_NAMESPACE_LOCAL_RANK JSM_NAMESPACE_LOCAL_SIZE "
       "PMIX_NAMESPACE"},
      {kPals, "PALS_RANKID PMI_SIZE PALS_LOCAL_RANKID PALS_APID"},
  };
  // Without the step's variables, the job's are asked for.
  std::vector<BadEnvironment> found = {
      {without(kSlurm, {"SLURM_STEP_NUM_NODES"}), "SLURM_NNODES"},
      {without(kSlurm, {"SLURM_STEP_TASKS_PER_NODE"}), "SLURM_TASKS_PER_NODE"},
      {without(kSlurm, {"SLURM_STEP_NODELIST"}), "SLURM_JOB_NODELIST"},
      {{{"LOCAL_RANK", "0"}}, "RANK"},
      {{{"LOCAL_WORLD_SIZE", "2"}}, "RANK"},
      {without(kPals, {"PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"}), "PMI_LOCAL_SIZE"},
      {without(kJsrun, {"LSB_JOBID"}), "jsrun"},
  };
  for (const auto& [good, names] : launchers) {
    for (const std::string& name : words(names)) {
      found.push_back({without(good, {name}), name});
    }
  }
  return found;
}

std::vector<BadEnvironment> contradictory_environments() {
  std::vector<BadEnvironment> found = {
      {with(kTorchrun, {{"RANK", "4"}}), "RANK"},
      {with(kTorchrun, {{"RANK", "2147483647"}}), "RANK"},
      {with(kTorchrun, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE"},
      {with(kTorchrun, {{"WORLD_SIZE", "1"}, {"RANK", "0"}}), "LOCAL_WORLD_SIZE"},
      {with(kTorchrun, {{"LOCAL_RANK", "2"}}), "LOCAL_RANK"},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "5"}}), "LOCAL_WORLD_SIZE"},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "0"}}), "LOCAL_WORLD_SIZE"},
      {with(kTorchrun, {{"GROUP_RANK", "2"}}), "GROUP_RANK"},
      {with(kTorchrun, {{"GROUP_WORLD_SIZE", "5"}}), "GROUP_WORLD_SIZE"},
      {with(kTorchrun, {{"GROUP_RANK", "0"}, {"GROUP_WORLD_SIZE", "1"}}), "GROUP_WORLD_SIZE"},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "4"}}), "GROUP_WORLD_SIZE"},
      {without(with(kTorchrun, {{"WORLD_SIZE", "5"}}), {"GROUP_WORLD_SIZE"}), "WORLD_SIZE"},
      {with(kTorchrun, {{"MASTER_ADDR", ""}}), "MASTER_ADDR"},
      {with(kTorchrun, {{"TORCHELASTIC_RUN_ID", ""}}), "TORCHELASTIC_RUN_ID"},
      {with(kSpawn, {{"DDP_LAUNCHER", "fork"}}), "DDP_LAUNCHER"},
      {with(kSpawn, {{"DDP_LAUNCHER", ""}}), "DDP_LAUNCHER"},
      {with(kSpawn, {{"DDP_STORE_FD", "2"}}), "DDP_STORE_FD"},
      {with(kSpawn, {{"RANK", "2"}}), "RANK"},
      {with(kSpawn, {{"LOCAL_WORLD_SIZE", "1"}}), "LOCAL_WORLD_SIZE"},
      {with(kPlain, {{"RANK", "2"}}), "RANK"},
      {with(kPlain, {{"DDP_STORE_KEY", ""}}), "DDP_STORE_KEY"},
      {with(kPlain, {{"DDP_STORE_KEY", "0123456789abcdef0123456789abcde"}}), "DDP_STORE_KEY"},
      {with(kSlurm, {{"DDP_STORE_KEY", "0123456789abcdef0123456789abcdeg"}}), "DDP_STORE_KEY"},
      {with(kPlain, {{"LOCAL_RANK", "2"}}), "LOCAL_RANK"},
      {with(kPlain, {{"LOCAL_WORLD_SIZE", "3"}}), "LOCAL_WORLD_SIZE"},
      {with(kPlain, {{"OMPI_COMM_WORLD_SIZE", "4"}}), "OMPI_COMM_WORLD_SIZE"},
      {with(kPlain, {{"OMPI_COMM_WORLD_RANK", "0"}}), "OMPI_COMM_WORLD_RANK"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}}), "OMPI_COMM_WORLD_RANK"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "0"}}), "OMPI_COMM_WORLD_SIZE"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "2"}}), "OMPI_COMM_WORLD_LOCAL_RANK"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}), "OMPI_COMM_WORLD_LOCAL_SIZE"},
      {with(kOpenMpi, {{"LOCAL_RANK", "0"}}), "LOCAL_RANK"},
      {with(kOpenMpi, {{"LOCAL_WORLD_SIZE", "1"}}), "LOCAL_WORLD_SIZE"},
      {with(kOpenMpi, {{"MASTER_ADDR", "n1"}}), "MASTER_PORT"},
      {with(kOpenMpi, {{"MASTER_PORT", "29500"}}), "MASTER_ADDR"},
      {with(kSlurm, {{"SLURM_PROCID", "3"}}), "SLURM_PROCID"},
      {with(kSlurm, {{"SLURM_LOCALID", "1"}}), "SLURM_LOCALID"},
      {with(kSlurm, {{"SLURM_NODEID", "2"}}), "SLURM_NODEID"},
      {with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "4"}}), "SLURM_STEP_TASKS_PER_NODE"},
      {with(kSlurm, {{"SLURM_STEP_NUM_NODES", "3"}}), "SLURM_STEP_TASKS_PER_NODE"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}}), "SLURM_STEP_TASKS_PER_NODE"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2,1,"}}), "SLURM_STEP_TASKS_PER_NODE"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x,1"}}), "SLURM_STEP_TASKS_PER_NODE"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2)"}}), "SLURM_STEP_TASKS_PER_NODE"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x0),1"}}), "SLURM_STEP_TASKS_PER_NODE"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "1(x99999999)"}}), "SLURM_STEP_TASKS_PER_NODE"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", ""}}), "SLURM_STEP_TASKS_PER_NODE"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "(x2)"}}), "SLURM_STEP_TASKS_PER_NODE"},
      {with(kSlurm, {{"SLURM_STEP_NODELIST", "n[1-3]"}}), "SLURM_STEP_NODELIST"},
      {with(kSlurm, {{"SLURM_STEP_NODELIST", "n[1-"}}), "SLURM_STEP_NODELIST"},
      {with(kSlurm, {{"SLURM_STEP_NODELIST", ""}}), "SLURM_STEP_NODELIST"},
      {with(kSlurm, {{"SLURM_STEP_ID", ""}}), "SLURM_STEP_ID"},
      {with(kSlurm, {{"SLURM_STEP_ID", "x"}}), "SLURM_STEP_ID"},
      {with(kSlurm, {{"SLURM_STEP_ID", "4294967296"}}), "SLURM_STEP_ID"},
      {with(kSlurm, {{"SLURM_JOB_ID", "x"}}), "SLURM_JOB_ID"},
      {with(kSlurm, {{"WORLD_SIZE", "8"}}), "WORLD_SIZE"},
      {with(kCondor, {{"_CONDOR_PROCNO", "3"}}), "_CONDOR_PROCNO"},
      {with(kCondor, {{"_CONDOR_NPROCS", "0"}}), "_CONDOR_NPROCS"},
      {with(kCondor, {{"_CONDOR_JOB_IWD", "relative"}}), "_CONDOR_JOB_IWD"},
      {with(kCondor, {{"MASTER_ADDR", "n1"}}), "MASTER_PORT"},
      {with(kCondor, {{"DDP_JOB_ID", ""}}), "DDP_JOB_ID"},
      {{{"PMI_SIZE", "4"}, {"PMI_RANK", "1"}}, "PMI_SIZE"},
      {{{"MV2_COMM_WORLD_SIZE", "2"}}, "MV2_COMM_WORLD_SIZE"},
      // More ranks before it on its node than there are at all.
      {with(kTorchrun, {{"RANK", "0"}}), "RANK LOCAL_RANK"},
      {with(kPlain, {{"RANK", "0"}, {"LOCAL_RANK", "1"}}), "RANK LOCAL_RANK"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}}),
       "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK"},
      {with(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "0"}}),
       "SLURM_PROCID SLURM_LOCALID"},
      // Two launchers that count alike, and know this process by different numbers.
      {with(kPlain, {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "0"}}),
       "SLURM_PROCID"},
      {with(kPlain, {{"_CONDOR_NPROCS", "2"}, {"_CONDOR_PROCNO", "0"}}), "_CONDOR_PROCNO"},
      {with(kSpawn, {{"TORCHELASTIC_RUN_ID", "job7"}}), "DDP_LAUNCHER"},
      {with(kTorchrun, {{"DDP_LAUNCHER", "spawn"}}), "DDP_LAUNCHER"},
      {with(kTorchrun, {{"DDP_LAUNCHER", "torchrun"}}), "DDP_LAUNCHER"},
      {with(kOpenMpi, {{"WORLD_SIZE", "3"}}), "WORLD_SIZE"},
      {with(kOpenMpi, {{"LOCAL_RANK", "one"}}), "LOCAL_RANK"},
      {with(kSlurm, {{"LOCAL_RANK", "1"}}), "LOCAL_RANK"},
      {with(kSlurm, {{"LOCAL_WORLD_SIZE", "2"}}), "LOCAL_WORLD_SIZE"},
      {with(kSlurm, {{"WORLD_SIZE", "three"}}), "WORLD_SIZE"},
      {with(kCondor, {{"WORLD_SIZE", "2"}}), "WORLD_SIZE"},
      {with(kCondor, {{"LOCAL_RANK", "1"}}), "LOCAL_RANK"},
      {with(kCondor, {{"LOCAL_WORLD_SIZE", "3"}}), "LOCAL_WORLD_SIZE"},
      {with(kCondor, {{"MASTER_PORT", "9618"}}), "MASTER_ADDR"},
      // Of a family only what says too little.
      {{{"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}, "OMPI_COMM_WORLD_RANK"},
      {{{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}, "OMPI_COMM_WORLD_RANK"},
      {{{"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_RANK"},
      {{{"OMPI_COMM_WORLD_RANK", "0"}}, "OMPI_COMM_WORLD_SIZE"},
      {{{"GROUP_RANK", "0"}}, "GROUP_RANK"},
      {{{"GROUP_WORLD_SIZE", "2"}}, "GROUP_WORLD_SIZE"},
      {{{"WORLD_SIZE", "1"}}, "RANK"},
      {{{"RANK", "0"}}, "WORLD_SIZE"},
      {{{"TORCHELASTIC_RUN_ID", "job7"}}, "RANK"},
      {{{"SLURM_STEP_ID", "0"}}, "SLURM_JOB_ID"},
      {{{"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "12"}}, "SLURM_NTASKS"},
      {{{"DDP_LAUNCHER", "spawn"}}, "RANK"},
      {{{"_CONDOR_PROCNO", "0"}}, "_CONDOR_NPROCS"},
      {{{"FLUX_TASK_RANK", "0"}}, "FLUX_JOB_SIZE"},
      {{{"FLUX_JOB_SIZE", "2"}}, "FLUX_TASK_RANK"},
      {{{"MPI_LOCALRANKID", "0"}}, "PMI_RANK"},
      {{{"MPI_LOCALNRANKS", "2"}}, "PMI_RANK"},
      {{{"JSM_NAMESPACE_LOCAL_SIZE", "2"}}, "JSM_NAMESPACE_RANK"},
      {{{"PALS_LOCAL_RANKID", "1"}}, "PALS_RANKID"},
      {{{"PALS_RANKID", "0"}}, "PMI_SIZE"},
      // A process among others, of which nothing says how many they are.
      {{{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "prterun-n1-7@1"}}, "PMIX_RANK"},
      {{{"PBS_TASKNUM", "00000002"}}, "PBS_TASKNUM"},
      {{{"PBS_TASKNUM", "0000000A"}}, "PBS_TASKNUM"},
      {{{"PBS_TASKNUM", ""}}, "PBS_TASKNUM"},
      {{{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}}, "PET_NNODES"},
      {{{"PET_NNODES", "1:4"}}, "PET_NNODES"},
      {{{"PBS_NP", "0"}}, "PBS_NP"},
      {{{"LSB_DJOB_NUMPROC", "x"}}, "LSB_DJOB_NUMPROC"},
      // On several nodes, and no place to meet.
      {with(kFlux, {{"FLUX_JOB_SIZE", "4"}, {"FLUX_JOB_NNODES", "2"}}), "MASTER_ADDR flux --env"},
      {with(kHydra, {{"PMI_SIZE", "4"}}), "MASTER_ADDR mpiexec -genv"},
      {with(kJsrun, {{"JSM_NAMESPACE_SIZE", "4"}}), "MASTER_ADDR jsrun -E"},
      {with(kPals, {{"PMI_SIZE", "4"}}), "MASTER_ADDR mpiexec --env"},
      {with(kHydra, {{"MASTER_ADDR", "n1"}}), "MASTER_PORT mpiexec"},
      {with(kFlux, {{"FLUX_JOB_SIZE", "5"}, {"FLUX_JOB_NNODES", "2"}}),
       "FLUX_JOB_SIZE FLUX_JOB_NNODES"},
      {with(kFlux, {{"FLUX_TASK_RANK", "2"}}), "FLUX_TASK_RANK"},
      {with(kHydra, {{"MPI_LOCALRANKID", "2"}}), "MPI_LOCALRANKID"},
      {with(kHydra, {{"PMI_RANK", "0"}}), "PMI_RANK MPI_LOCALRANKID"},
      {with(kJsrun, {{"JSM_NAMESPACE_LOCAL_SIZE", "3"}}), "JSM_NAMESPACE_LOCAL_SIZE"},
      {with(kPals, {{"PALS_RANKID", "2"}}), "PALS_RANKID"},
      {with(kPals, {{"WORLD_SIZE", "3"}}), "WORLD_SIZE"},
      {with(kHydra, {{"LOCAL_RANK", "0"}}), "LOCAL_RANK"},
      {with(kPlain, {{"FLUX_JOB_SIZE", "2"}, {"FLUX_TASK_RANK", "0"}}), "FLUX_TASK_RANK"},
      {with(kPlain, {{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}}), "PMI_RANK"},
      {with(kPlain,
            {{"MASTER_ADDR", "master-0"}, {"KUBERNETES_SERVICE_HOST", "k"}, {"LOCAL_RANK", "0"}}),
       "LOCAL_WORLD_SIZE"},
      {with(kPlain, {{"MASTER_ADDR", "master-0"},
                     {"KUBERNETES_SERVICE_HOST", "k"},
                     {"PET_NPROC_PER_NODE", "8"}}),
       "PET_NPROC_PER_NODE"},
      {{{"PMI_SIZE", "many"}}, "PMI_SIZE"},
      {{{"PMI_SIZE", "0"}}, "PMI_SIZE"},
      {{{"SLURM_JOB_ID", "12"}, {"SLURM_RESTART_COUNT", "-1"}}, "SLURM_RESTART_COUNT"},
  };
  for (const std::string& host : kNoHost) {
    for (const Variables& good : {kTorchrun, kPlain, kSlurm}) {
      found.push_back(
          {with(good, {{"MASTER_ADDR", host}, {"MASTER_PORT", "29500"}}), "MASTER_ADDR"});
    }
  }
  for (const std::string& value : kHostile) {
    for (const auto& [good, name] :
         std::vector<std::pair<Variables, std::string>>{{kSlurm, "SLURM_STEP_ID"},
                                                        {kSlurm, "SLURM_STEP_TASKS_PER_NODE"},
                                                        {kSlurm, "SLURM_STEP_NODELIST"},
                                                        {kSpawn, "DDP_LAUNCHER"},
                                                        {kCondor, "_CONDOR_JOB_IWD"}}) {
      // As a list of nodes with a bracket that stays open, since some of them could be a node's
      // name.
      const bool is_list = name == "SLURM_STEP_NODELIST";
      found.push_back({with(good, {{name, is_list ? value + "[" : value}}), name});
    }
  }
  return found;
}

bool names(const std::string& line, const std::string& all) {
  const auto is_part = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
  };
  std::string apart = line;
  std::replace_if(apart.begin(), apart.end(), std::not_fn(is_part), ' ');
  const std::vector<std::string> found = words(apart);
  const std::vector<std::string> wanted = words(all);
  return std::all_of(wanted.begin(), wanted.end(), [&found](const std::string& name) {
    return std::find(found.begin(), found.end(), name) != found.end();
  });
}

std::string describe(const Variables& variables) {
  constexpr size_t kLongest = 300;
  std::string text;
  for (const auto& [name, value] : variables) {
    text += name + "=" + value.substr(0, kLongest) + " ";
  }
  return text;
}

}  // namespace ddp::test
