// common/base/process_usage.hpp - what this process has used of the machine.
#pragma once

#include <chrono>

namespace ddp {

/// Readings of two clocks: only differences mean something.
struct ProcessTimes {
  double cpu_ms = 0;  ///< over all threads
  double wall_ms = 0;
};
ProcessTimes process_times();

/// Largest resident set so far, in MiB; not a number if the kernel does not tell. Of this program
/// alone: getrusage() would also count what a launcher used before it executed us.
double peak_rss_mib();

/// When this process was started, to the kernel's clock tick (usually 10 ms).
std::chrono::system_clock::time_point process_start();

}  // namespace ddp
