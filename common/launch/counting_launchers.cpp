// common/launch/counting_launchers.cpp - one table. Where each name comes from: docs/launchers.md.
#include "common/launch/counting_launchers.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace ddp {

const CountingLauncher kFlux = {
    .name = "flux",
    .rank = "FLUX_TASK_RANK",
    .world_size = "FLUX_JOB_SIZE",
    .local_rank = "FLUX_TASK_LOCAL_ID",
    .local_world_size = {},
    .num_nodes = "FLUX_JOB_NNODES",
    .job = {"FLUX_JOB_ID"},
    .folder = "FLUX_JOB_TMPDIR",
    .pass = "flux run --env=MASTER_ADDR=HOST --env=MASTER_PORT=PORT",
};
const CountingLauncher kHydra = {
    .name = "hydra",
    .rank = "PMI_RANK",
    .world_size = "PMI_SIZE",
    .local_rank = "MPI_LOCALRANKID",
    .local_world_size = {"MPI_LOCALNRANKS"},
    .num_nodes = nullptr,
    .job = {"I_MPI_HYDRA_UUID"},  // Intel's; MPICH: hydra_proxy()
    .folder = nullptr,
    .pass = "mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT PORT",
};
const CountingLauncher kJsrun = {
    .name = "jsrun",
    .rank = "JSM_NAMESPACE_RANK",
    .world_size = "JSM_NAMESPACE_SIZE",
    .local_rank = "JSM_NAMESPACE_LOCAL_RANK",
    .local_world_size = {"JSM_NAMESPACE_LOCAL_SIZE"},
    .num_nodes = nullptr,
    .job = {"LSB_JOBID", "PMIX_NAMESPACE"},  // the second counts the starts within the first
    .folder = nullptr,
    .pass = "jsrun -E MASTER_ADDR=HOST -E MASTER_PORT=PORT",
};
const CountingLauncher kPals = {
    .name = "pals",
    .rank = "PALS_RANKID",
    .world_size = "PMI_SIZE",
    .local_rank = "PALS_LOCAL_RANKID",
    .local_world_size = {"PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"},
    .num_nodes = nullptr,
    .job = {"PALS_APID"},
    .folder = nullptr,
    .pass = "mpiexec --env MASTER_ADDR=HOST --env MASTER_PORT=PORT",
};
const std::vector<const CountingLauncher*> kCountingLaunchers = {&kFlux, &kHydra, &kJsrun, &kPals};

std::optional<std::string> hydra_proxy() {
  for (int pid = getppid(); pid > 1;) {
    std::string line;
    std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), line);
    const size_t open = line.find('(');
    const size_t close = line.rfind(')');  // a name may hold brackets
    if (open == std::string::npos || close == std::string::npos) {
      return std::nullopt;
    }
    constexpr int kFieldsToStart = 18;  // from the parent, see proc(5)
    std::istringstream fields(line.substr(close + 1));
    const std::string name = line.substr(open + 1, close - open - 1);
    std::string field;
    int parent = 0;
    fields >> field >> parent;
    for (int i = 0; i < kFieldsToStart; ++i) {
      fields >> field;
    }
    if (name == "hydra_pmi_proxy") {
      return fmt::format("{}-{}", pid, field);
    }
    pid = parent;
  }
  return std::nullopt;
}

}  // namespace ddp
