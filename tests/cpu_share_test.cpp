// Which cores and how many threads are a rank's, computed and as stages say it.
#include "common/launch/cpu_share.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/scratch_folder.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

using ddp::LaunchEnvironment;
using ddp::share_of_cores;
using Cores = std::vector<int>;

namespace {

LaunchEnvironment local(int rank, int size, const std::string& launcher = "spawn") {
  LaunchEnvironment environment;
  environment.launcher = launcher;
  environment.local_rank = rank;
  environment.local_world_size = size;
  return environment;
}

std::string threads_on(size_t threads, const Cores& cores) {
  return std::to_string(threads) + (threads == 1 ? " thread" : " threads") + " on cores " +
         ddp::format_cores(cores);
}

/// What the ranks say on stderr, in their order.
std::vector<std::string> notes(const std::string& stage, const std::string& options) {
  const ddp::ScratchFolder folder("ddp-cpu-share");
  ddp::test::RunOptions where;
  where.cwd = folder.path();
  std::vector<std::string> argv =
      ddp::test::words("1 1 --verbose --device cpu --dataset-size 64 " + options);
  argv.insert(argv.begin(), std::string(DDP_BIN_DIR) + "/" + stage);
  const ddp::test::RunResult result = ddp::test::run_program(argv, where);
  CHECK(result.exit_code == 0);
  std::vector<std::string> lines;
  std::istringstream text(result.err);
  for (std::string line; std::getline(text, line);) {
    if (!ddp::test::contains(line, "] busy ")) {  // what --verbose says at the end
      lines.push_back(line);
    }
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace

TEST_CASE("ranks divide the cores of their node") {
  const Cores allowed = {0, 1, 2, 5, 6, 7, 9};
  CHECK(share_of_cores(allowed, 16, local(0, 1)) == allowed);
  CHECK(share_of_cores(allowed, 16, local(0, 2)) == Cores{0, 1, 2});
  CHECK(share_of_cores(allowed, 16, local(1, 2)) == Cores{5, 6, 7, 9});
  for (const int ranks : {1, 2, 3, 5, 7}) {
    Cores together;
    for (int rank = 0; rank < ranks; ++rank) {
      const Cores share = share_of_cores(allowed, 16, local(rank, ranks));
      CHECK_FALSE(share.empty());
      together.insert(together.end(), share.begin(), share.end());
    }
    CHECK(together == allowed);  // none twice, none left out
  }
  SECTION("more ranks than cores share them") {
    for (int rank = 0; rank < 20; ++rank) {
      CHECK(share_of_cores({4, 5}, 8, local(rank, 20)).size() == 1);
    }
    CHECK(share_of_cores({3}, 8, local(19, 20)) == Cores{3});
  }
  SECTION("Open MPI and Slurm have bound the rank already, or have not") {
    for (const char* const launcher : {"openmpi", "slurm"}) {
      CHECK(share_of_cores({4, 5}, 8, local(1, 4, launcher)) == Cores{4, 5});
      CHECK(share_of_cores({0, 1, 2, 3}, 4, local(1, 4, launcher)) == Cores{1});
    }
    CHECK(share_of_cores({4, 5}, 8, local(1, 2, "torchrun")) == Cores{5});
  }
}

TEST_CASE("cores as text") {
  CHECK(ddp::format_cores({0}) == "0");
  CHECK(ddp::format_cores({0, 1, 2, 3, 8}) == "0-3,8");
  CHECK(ddp::format_cores({1, 3, 4, 7, 8, 9}) == "1,3-4,7-9");
}

namespace {

/// Folders as the kernel shows them to a process: its groups, and where they are mounted.
class MadeUpRoot {
 public:
  MadeUpRoot(const std::string& groups, const std::vector<std::string>& mounts) {
    std::string all;
    for (const std::string& mount : mounts) {
      all += "31 23 0:28 " + mount + "\n";
    }
    write("proc/self/cgroup", groups);
    write("proc/self/mountinfo", "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n" + all);
  }
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = folder_.path() + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  double quota() const { return ddp::cpu_quota(folder_.path()); }
  /// "100 --memory-limit"
  std::string budget(std::optional<int64_t> limit_bytes = {}, int sharers = 1) const {
    const ddp::MemoryBudget found = ddp::memory_budget(limit_bytes, sharers, folder_.path());
    return std::to_string(found.bytes) + " " + ddp::kMemoryBounds.at(size_t(found.bound));
  }

 private:
  ddp::ScratchFolder folder_{"ddp-cgroup"};
};

const std::string kV2 = "/ /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate";
const std::string kV1 = "/ /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct";

}  // namespace

TEST_CASE("the quota of a container, control groups version 2") {
  const MadeUpRoot root("0::/system.slice/job/task\n", {kV2});
  const std::string groups = "sys/fs/cgroup/";
  CHECK(std::isinf(root.quota()));  // no cpu.max anywhere: a root group has none
  root.write(groups + "system.slice/job/task/cpu.max", "max 100000\n");
  CHECK(std::isinf(root.quota()));
  root.write(groups + "system.slice/job/cpu.max", "150000 100000\n");
  CHECK(root.quota() == 1.5);
  root.write(groups + "system.slice/cpu.max", "400000 100000\n");
  CHECK(root.quota() == 1.5);  // the least counts, wherever it stands
  root.write(groups + "system.slice/job/task/cpu.max", "20000 50000\n");
  CHECK(root.quota() == 0.4);
  root.write(groups + "cpu.max", "10000 100000\n");
  CHECK(root.quota() == 0.1);
  root.write(groups + "system.slice/job/other/cpu.max", "1000 100000\n");
  CHECK(root.quota() == 0.1);  // somebody else's
}

TEST_CASE("the quota of a container, control groups version 1, and both versions") {
  const std::string of_v1 = "5:cpuset:/\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n0::/\n";
  const std::string group = "sys/fs/cgroup/cpu,cpuacct/";
  for (const std::string mount : {"whole", "its own", "hybrid"}) {
    const bool is_own = mount == "its own";
    std::vector<std::string> mounts = {
        "/ /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset",
        is_own ? "/docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct" : kV1};
    if (mount == "hybrid") {
      mounts.push_back("/ /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw");
    }
    const MadeUpRoot root(of_v1, mounts);
    const std::string own = group + (is_own ? "" : "docker/abc/");
    INFO(mount);
    CHECK(std::isinf(root.quota()));
    root.write("sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "1\n");  // no quota's place
    root.write(own + "cpu.cfs_quota_us", "-1\n");
    root.write(own + "cpu.cfs_period_us", "100000\n");
    CHECK(std::isinf(root.quota()));
    root.write(own + "cpu.cfs_quota_us", "250000\n");
    CHECK(root.quota() == 2.5);
    if (mount == "whole") {
      root.write(group + "docker/cpu.cfs_quota_us", "50000\n");
      root.write(group + "docker/cpu.cfs_period_us", "100000\n");
      CHECK(root.quota() == 0.5);
    }
    if (mount == "hybrid") {
      root.write("sys/fs/cgroup/unified/cpu.max", "100000 100000\n");
      CHECK(root.quota() == 1);
    }
  }
}

TEST_CASE("a group outside of what is mounted, and a machine without control groups: no quota") {
  const MadeUpRoot outside("0::/../../elsewhere\n", {kV2});
  outside.write("elsewhere/cpu.max", "1000 100000\n");
  CHECK(std::isinf(outside.quota()));
  outside.write("sys/fs/cgroup/cpu.max", "300000 100000\n");
  CHECK(outside.quota() == 3);
  CHECK(std::isinf(MadeUpRoot("", {}).quota()));
  CHECK(std::isinf(ddp::cpu_quota("/nowhere")));
}

TEST_CASE("memory is what the least bound leaves, without a margin of it") {
  const MadeUpRoot root("0::/job/task\n", {kV2});
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  const auto limits = [](const std::string& address_space) {
    return "Limit                     Soft Limit           Hard Limit           Units     \n"
           "Max stack size            8388608              unlimited            bytes     \n"
           "Max address space         " +
           address_space + "            unlimited            bytes     \n";
  };
  root.write("proc/self/statm", "300 100 20 1 0 2 0\n");
  root.write("proc/self/limits", limits("unlimited"));
  root.write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n");
  CHECK(root.budget() == std::to_string(8000 * 1024 * 95 / 100) + " the machine");
  CHECK(root.budget({}, 4) == std::to_string(8000 * 1024 * 95 / 400) + " the machine");
  CHECK(root.budget(200 * page_bytes) == std::to_string(90 * page_bytes) + " --memory-limit");
  CHECK(root.budget(100 * page_bytes) == "0 --memory-limit");
  root.write("proc/self/limits", limits(std::to_string(400 * page_bytes)));
  CHECK(root.budget(200 * page_bytes) == std::to_string(80 * page_bytes) + " ulimit -v");
  CHECK(root.budget({}, 4) == std::to_string(80 * page_bytes) + " ulimit -v");

  const std::string groups = "sys/fs/cgroup/";
  root.write(groups + "job/task/memory.max", "max\n");
  root.write(groups + "job/task/memory.current", "5000\n");
  CHECK(root.budget({}, 4) == std::to_string(80 * page_bytes) + " ulimit -v");
  root.write(groups + "job/memory.max", "100000\n");
  root.write(groups + "job/memory.current", "65000\n");
  CHECK(root.budget() == "30000 the control group");
  root.write(groups + "job/memory.stat", "anon 1\ninactive_file 9000\nactive_file 1000\n");
  CHECK(root.budget() == "40000 the control group");
  CHECK(root.budget({}, 4) == "10000 the control group");
  root.write(groups + "job/memory.current", "200000\n");
  CHECK(root.budget() == "0 the control group");

  // Version 1, in a container that has only its own group mounted.
  const MadeUpRoot v1("5:cpu:/x\n4:memory:/docker/abc\n",
                      {"/ /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
                       "/docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory"});
  v1.write(groups + "memory/memory.limit_in_bytes", "9223372036854771712\n");
  v1.write(groups + "memory/memory.usage_in_bytes", "65000\n");
  v1.write("proc/meminfo", "MemAvailable: 8000 kB\n");
  CHECK(v1.budget() == std::to_string(8000 * 1024 * 95 / 100) + " the machine");
  v1.write(groups + "memory/memory.limit_in_bytes", "100000\n");
  v1.write(groups + "memory/memory.stat", "inactive_file 1\ntotal_inactive_file 10000\n");
  CHECK(v1.budget({}, 2) == "20000 the control group");
}

TEST_CASE("threads and processors are no more than a quota has time for") {
  const Cores cores = {0, 1, 2, 3, 4, 5, 6, 7};
  CHECK(ddp::count_processors(cores, 100) == 8);
  CHECK(ddp::count_processors(cores, 3.9) == 3);
  CHECK(ddp::count_processors(cores, 0.4) == 1);
  CHECK(ddp::count_processors({5}, std::numeric_limits<double>::infinity()) == 1);
  const auto threads = [](int ranks, double quota, const std::string& wanted = "auto") {
    ddp::Options options;
    options.launch = ddp::Launch::kSpawn;
    options.threads = wanted == "auto" ? ddp::kAutomaticThreads : std::stoi(wanted);
    return ddp::with_cpu_share(options, local(0, ranks), quota).threads;
  };
  const auto all = static_cast<int>(ddp::allowed_cores().size());
  CHECK(threads(1, 1e9) == all);
  CHECK(threads(1, 1.5) == 1);
  CHECK(threads(2, 2.5) == 1);
  CHECK(threads(1, all + 0.5) == all);
  CHECK(threads(1, 1.5, "7") == 7);  // who asks gets it
}

TEST_CASE("stages say how many threads they use on which cores, and do so") {
  using Notes = std::vector<std::string>;
  const Cores all = ddp::allowed_cores();
  CHECK(notes("01_single_gpu", "") == Notes{"01_single_gpu: [rank 0] " + threads_on(1, all)});
  CHECK(notes("01_single_gpu", "--threads auto") ==
        Notes{"01_single_gpu: [rank 0] " + threads_on(all.size(), all)});
  const Cores first = share_of_cores(all, 1 << 20, local(0, 2));
  const Cores second = share_of_cores(all, 1 << 20, local(1, 2));
  CHECK(notes("03_ddp_spawn", "--nprocs 2 --bind cores --threads auto") ==
        Notes{"03_ddp_spawn: [rank 0] " + threads_on(first.size(), first),
              "03_ddp_spawn: [rank 1] " + threads_on(second.size(), second)});
}
