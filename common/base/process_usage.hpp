// common/base/process_usage.hpp - what this process has used of the machine, and may use.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace ddp {

/// Readings of clocks and counters: only differences mean something.
struct ProcessTimes {
  double cpu_ms = 0;  ///< over all threads, as the counters
  double wall_ms = 0;
  double minor_faults = 0;
  double major_faults = 0;  ///< that had to read from a disk
  double voluntary_switches = 0;  ///< it waited
  double involuntary_switches = 0;  ///< somebody else's turn came

  /// What has passed from one reading to another.
  void add(const ProcessTimes& begin, const ProcessTimes& end);
};
ProcessTimes process_times();

/// Largest resident set so far, in MiB; not a number if the kernel does not tell. Of this program
/// alone: getrusage() would also count what a launcher used before it executed us.
double peak_rss_mib();

/// How many processors' time this process and those beside it may use: the least quota of its
/// control groups (version 1, 2 or both), from its own upwards as far as they are mounted. A
/// container is given 1.5 of 64 processors so; its affinity says 64.
/// @param root a folder with the proc/self and the control groups to look at
/// @return infinity without a quota
double cpu_quota(const std::string& root = "/");

/// What may limit a process's memory, for messages. (The last is no affair of this file.)
inline constexpr std::array kMemoryBounds = {"--memory-limit", "ulimit -v", "the control group",
                                             "the machine", "the GPU"};
/// The part of a bound that stays unused: what nobody counts needs room, too.
inline constexpr double kMemoryMargin = 0.05;

/// Memory that a process may still take.
struct MemoryBudget {
  int64_t bytes;
  int64_t bound;  ///< that leaves the least, in kMemoryBounds
};

/// The least of what `limit_bytes` leaves beside the resident set, `ulimit -v` beside the address
/// space, and this process's part of what its control groups (as cpu_quota()) leave and the machine
/// has available; always without kMemoryMargin of the bound. A file's pages in memory are free:
/// the kernel drops them when somebody wants their place.
/// @param sharers processes that take memory here, this one included
/// @param root as cpu_quota()
MemoryBudget memory_budget(std::optional<int64_t> limit_bytes, int sharers,
                           const std::string& root = "/");

/// When this process was started, to the kernel's clock tick (usually 10 ms).
std::chrono::system_clock::time_point process_start();

}  // namespace ddp
