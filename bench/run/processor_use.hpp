// bench/run/processor_use.hpp - what this program, others and a hypervisor do with the processors.
#pragma once

#include <optional>
#include <string>

namespace ddp::bench {

/// Readings of counters, in seconds of all processors: only differences mean something.
struct ProcessorTimes {
  double total_s = 0;  ///< idle or not
  double busy_s = 0;  ///< programs and their kernel's part, ours included
  double stolen_s = 0;  ///< that a hypervisor gave to somebody else
  double own_s = 0;  ///< of this process, and of what it started and waited for
};

/// @param path in the format of /proc/stat
/// @return nothing if it cannot be read
std::optional<ProcessorTimes> processor_times(const std::string& path = "/proc/stat");

/// Of the processors' time between two readings; nothing where one of them is missing.
struct ProcessorUse {
  std::optional<double> others_share;
  std::optional<double> stolen_share;
};
ProcessorUse use_between(const std::optional<ProcessorTimes>& begin,
                         const std::optional<ProcessorTimes>& end);

/// Of this process, which those that it starts inherit: "other", "fifo 5", "rr 5", "batch", "idle".
std::string scheduling_class();

}  // namespace ddp::bench
