#include "common/launch/cpu_share.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>

#include "common/base/exit_codes.hpp"

namespace ddp {
namespace {

/// More than any machine has: the kernel refuses a set that is too small for it.
constexpr int kMaxCores = 1 << 16;

/// A set of kMaxCores bits.
class CoreSet {
 public:
  CoreSet() : words_(kMaxCores / (8 * sizeof(unsigned long))) {}
  cpu_set_t* get() { return reinterpret_cast<cpu_set_t*>(words_.data()); }
  size_t bytes() const { return words_.size() * sizeof(unsigned long); }
  bool contains(int core) { return CPU_ISSET_S(static_cast<size_t>(core), bytes(), get()); }
  void insert(int core) { CPU_SET_S(static_cast<size_t>(core), bytes(), get()); }

 private:
  std::vector<unsigned long> words_;
};

void bind(const std::vector<int>& cores) {
  CoreSet set;
  for (const int core : cores) {
    set.insert(core);
  }
  if (sched_setaffinity(0, set.bytes(), set.get()) != 0) {
    throw Error(ExitCode::kTrainingFailed, "--bind cores: cannot run on cores " +
                                               format_cores(cores) + ": " + std::strerror(errno));
  }
}

}  // namespace

std::vector<int> allowed_cores() {
  CoreSet set;
  std::vector<int> cores;
  if (sched_getaffinity(0, set.bytes(), set.get()) == 0) {
    for (int core = 0; core < kMaxCores; ++core) {
      if (set.contains(core)) {
        cores.push_back(core);
      }
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
    text += (text.empty() ? "" : ",") + std::to_string(cores[i]) +
            (last > i ? "-" + std::to_string(cores[last]) : "");
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

Options with_cpu_share(Options options, const LaunchEnvironment& environment) {
  const std::vector<int> share =
      share_of_cores(allowed_cores(), static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), environment);
  if (options.threads == kAutomaticThreads) {
    // Stage 02's replicas compute side by side in this process.
    const int replicas = options.launch == Launch::kAlone ? options.nprocs.value_or(1) : 1;
    options.threads = std::max(1, static_cast<int>(share.size()) / replicas);
  }
  if (options.bind == "cores") {
    bind(share);
  }
  if (options.verbose) {
    std::cerr << options.program + ": [rank " + std::to_string(environment.rank) + "] " +
                     std::to_string(options.threads) +
                     (options.threads == 1 ? " thread" : " threads") + " on cores " +
                     format_cores(allowed_cores()) + "\n"
              << std::flush;
  }
  return options;
}

}  // namespace ddp
