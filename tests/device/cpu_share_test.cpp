// Cores and memory that a process may use, on made-up machines, and the threads of a rank.
#include <filesystem>
#include <fstream>

#include "common/base/files.hpp"
#include "common/base/parse.hpp"
#include "common/device/hardware.hpp"
#include "tests/support/catch.hpp"

TEST_CASE("ranks divide the cores of their host") {
  using Numbers = std::array<int, 4>;
  for (const auto& [own, of_host, ranks, expected] :
       {Numbers{7, 7, 1, 7}, Numbers{7, 7, 2, 3}, Numbers{2, 2, 20, 1}, Numbers{16, 2, 1, 2},
        Numbers{2, 8, 4, 2}, Numbers{1, 16, 2, 1},  // bound by a launcher, each to its own cores
        Numbers{8, 8, 4, 2}, Numbers{4, 4, 2, 2},  // not bound
        Numbers{8, 16, 4, 4}}) {  // two ranks bound to each socket
    INFO(own << " of " << of_host << " for " << ranks);
    CHECK(ddp::share_of_cores(own, of_host, ranks) == expected);
  }
}

TEST_CASE("the least of mask, control groups and scheduler is allowed") {
  struct Case {
    std::string files;  ///< of control groups: "NAME=text;..."; self: /proc/self/cgroup
    int cores = 16;
    int64_t mib = 8192;
    ddp::Variables variables = {};
  };
  for (const Case& machine : std::vector<Case>{
           {},
           {"self=0::/job/step\n;job/step/cpu.max=200000 100000\n", 2},
           {"self=0::/job/step\n;job/cpu.max=350000 100000\n", 3},
           {"self=0::/\n;cpu.max=50000 100000\n", 1},
           {"self=0::/job\n;job/cpu.max=max 100000\n"},
           {"self=0::/of/the/host\n;cpu.max=400000 100000\n", 4},
           {"self=0::/pod:cri:1\n;pod:cri:1/cpu.max=600000 100000\n", 6},
           {"self=5:cpu,cpuacct:/job\n1:name=systemd:/\n;cpu,cpuacct/job/cpu.cfs_quota_us=500000\n;"
            "cpu,cpuacct/job/cpu.cfs_period_us=100000\n",
            5},
           {"self=5:cpu:/\n;cpu/cpu.cfs_quota_us=-1\n;cpu/cpu.cfs_period_us=100000\n"},
           {"self=0::/job/step\n;job/memory.max=1572864000\n;job/memory.current=524288000\n;"
            "job/memory.stat=anon 5\nfile 104857600\nshmem 52428800\n;job/step/memory.max=max\n",
            16, 1050},
           {"self=4:memory:/job\n;memory/job/memory.limit_in_bytes=1048576000\n;"
            "memory/job/memory.usage_in_bytes=104857600\n;"
            "memory/job/memory.stat=total_cache 104857600\ntotal_shmem 52428800\n",
            16, 950},
           {"self=0::/a\n;a/memory.max=1048576\n;a/memory.current=2097152\n", 16, 0},
           {"self=4:memory:/\n;memory/memory.limit_in_bytes=9223372036854771712\n;"
            "memory/memory.usage_in_bytes=1\n"},
           {"", 6, 600, {{"SLURM_CPUS_ON_NODE", "6"}, {"SLURM_MEM_PER_CPU", "100"}}},
           {"", 3, 8192, {{"SLURM_CPUS_PER_TASK", "3"}}},
           {"", 6, 8192, {{"SLURM_CPUS_PER_TASK", "3"}, {"SLURM_NTASKS", "2"}}},
           {"", 16, 8192, {{"SLURM_MEM_PER_NODE", "0"}, {"SLURM_CPUS_ON_NODE", "99"}}},
           {"", 16, 500, {{"SLURM_MEM_PER_NODE", "500"}}},
           {"", 7, 8192, {{"NSLOTS", "7"}, {"NCPUS", "many"}, {"PBS_NUM_PPN", "-1"}}},
           {"", 5, 8192, {{"NCPUS", "8"}, {"LSB_DJOB_NUMPROC", "5"}}},
           {"ad=TotalCpus = 9\nCpus = 2\nMemory = 512\n", 2, 512, {{"_CONDOR_MACHINE_AD", "ad"}}},
       }) {
    const ddp::ScratchFolder root("ddp-machine");
    const auto write = [&root](const std::string& name, const std::string& text) {
      const std::filesystem::path path = root.path() + "/" + name;
      std::filesystem::create_directories(path.parent_path());
      std::ofstream(path) << text;
    };
    write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n");
    for (const std::string& file : ddp::split(machine.files, ';')) {
      const size_t end = file.find('=');
      const std::string name = file.substr(0, end);
      write(name == "self" ? "proc/self/cgroup" : "sys/fs/cgroup/" + name, file.substr(end + 1));
    }
    ddp::Variables variables = machine.variables;
    if (variables.contains("_CONDOR_MACHINE_AD")) {
      variables["_CONDOR_MACHINE_AD"] = root.path() + "/sys/fs/cgroup/ad";
    }
    const ddp::Allowance found = ddp::find_allowance(16, root.path(), variables);
    INFO(machine.files << (variables.empty() ? "" : variables.begin()->first));
    CHECK(found.cores == machine.cores);
    CHECK(found.memory_bytes >> 20 == machine.mib);
  }
}

TEST_CASE("--threads is taken as it is, and auto is the share") {
  ddp::DeviceOptions options;
  CHECK(ddp::resolve_threads(options, {}) == 1);
  options.threads = 7;
  CHECK(ddp::resolve_threads(options, {}) == 7);
  options.threads = ddp::kAutomaticThreads;
  options.nprocs = 1 << 20;
  options.started_by = ddp::StartedBy::kProgram;  // ranks of stage 03
  CHECK(ddp::resolve_threads(options, {}) == ddp::count_cores());
  options.started_by = ddp::StartedBy::kUser;  // replicas of stage 02
  CHECK(ddp::resolve_threads(options, {}) == 1);
  setenv("NSLOTS", "1", 1);
  CHECK(ddp::count_cores() == 1);
}
