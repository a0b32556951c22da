// common/base/process_usage.hpp - time and memory that this process has used so far.
#pragma once

#include <chrono>

namespace ddp {

/// Largest resident set so far, in MiB; NaN if the kernel does not tell. getrusage() would also
/// count the memory that a launcher used before it executed this program.
double peak_rss_mib();

/// Processor time of all threads, in milliseconds.
double cpu_ms();

/// Start time of this process, to the kernel's clock tick (usually 10 ms).
std::chrono::system_clock::time_point process_start();

}  // namespace ddp
