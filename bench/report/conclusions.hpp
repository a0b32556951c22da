// bench/report/conclusions.hpp - sentences on what a reader should take from the numbers.
#pragma once

#include <string>
#include <vector>

#include "bench/report/record.hpp"

namespace ddp::bench {

/// Which of one workload and one kind of scaling was fastest, which scaled, and why several
/// processes lost to one where they did.
/// @param runs of that workload and scaling
std::vector<std::string> conclude(const Report& report, const std::vector<const Run*>& runs);

/// What concerns all workloads: start-up times, and how far the numbers can be trusted.
/// @param notes decisions that the reader should know
std::vector<std::string> conclude_overall(const Report& report,
                                          const std::vector<std::string>& notes);

}  // namespace ddp::bench
