// common/launch/cpu_share.cpp - the kernel's set of allowed cores, divided among a node's ranks.
#include "common/launch/cpu_share.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <iostream>

#include "common/base/exit_codes.hpp"

namespace ddp {
namespace {

/// More than any machine has: the kernel refuses a set that is too small for it.
constexpr size_t kMaxCores = size_t{1} << 16;
using CoreSet = std::array<cpu_set_t, kMaxCores / CPU_SETSIZE>;

void bind_to(const std::vector<int>& cores) {
  CoreSet set{};
  for (const int core : cores) {
    CPU_SET_S(static_cast<size_t>(core), sizeof(set), set.data());
  }
  if (sched_setaffinity(0, sizeof(set), set.data()) != 0) {
    throw Error(ExitCode::kTrainingFailed, fmt::format("--bind cores: cannot run on cores {}: {}",
                                                       format_cores(cores), std::strerror(errno)));
  }
}

}  // namespace

std::vector<int> allowed_cores() {
  CoreSet set{};
  sched_getaffinity(0, sizeof(set), set.data());
  std::vector<int> cores;
  for (size_t core = 0; core < kMaxCores; ++core) {
    if (CPU_ISSET_S(core, sizeof(set), set.data())) {
      cores.push_back(static_cast<int>(core));
    }
  }
  return cores.empty() ? std::vector<int>{0} : cores;
}

std::string format_cores(const std::vector<int>& cores) {
  std::string text;
  for (size_t i = 0; i < cores.size();) {
    size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) {
      ++last;
    }
    text += fmt::format("{}{}", text.empty() ? "" : ",", cores[i]);
    text += last > i ? fmt::format("-{}", cores[last]) : "";
    i = last + 1;
  }
  return text;
}

std::vector<int> share_of_cores(const std::vector<int>& allowed, int online,
                                const LaunchEnvironment& environment) {
  const bool binds = environment.launcher == "openmpi" || environment.launcher == "slurm";
  if (binds && allowed.size() < static_cast<size_t>(online)) {
    return allowed;
  }
  const auto ranks = static_cast<size_t>(environment.local_world_size);
  const auto rank = static_cast<size_t>(environment.local_rank);
  const size_t begin = allowed.size() * rank / ranks;
  const size_t end = allowed.size() * (rank + 1) / ranks;
  if (begin == end) {
    return {allowed[rank % allowed.size()]};
  }
  return {allowed.begin() + static_cast<std::ptrdiff_t>(begin),
          allowed.begin() + static_cast<std::ptrdiff_t>(end)};
}

int count_processors(const std::vector<int>& allowed, double quota) {
  return static_cast<int>(
      std::max(1.0, std::floor(std::min(static_cast<double>(allowed.size()), quota))));
}

Options with_cpu_share(Options options, const LaunchEnvironment& environment, double quota) {
  const std::vector<int> share =
      share_of_cores(allowed_cores(), static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), environment);
  if (options.threads == kAutomaticThreads) {
    // Stage 02's replicas compute side by side in this process.
    const int replicas = options.launch == Launch::kAlone ? options.nprocs.value_or(1) : 1;
    const int processors = count_processors(share, quota / environment.local_world_size);
    options.threads = std::max(1, processors / replicas);
  }
  if (options.bind == "cores") {
    bind_to(share);
  }
  if (options.verbose) {
    std::cerr << fmt::format("{}: [rank {}] {} thread{} on cores {}{}\n", options.program,
                             environment.rank, options.threads, options.threads == 1 ? "" : "s",
                             format_cores(allowed_cores()),
                             std::isinf(quota) ? "" : fmt::format(", quota {:g}", quota))
              << std::flush;
  }
  return options;
}

}  // namespace ddp
