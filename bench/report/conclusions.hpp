// bench/report/conclusions.hpp - what a reader should take from the numbers, in sentences made from
// them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/report/results.hpp"
#include "bench/run/plan.hpp"

namespace ddp::bench {

/// Which of one workload and one kind of scaling was fastest, which scaled, and why several
/// processes lost to one where they did.
/// @param results of that workload and scaling
std::vector<std::string> conclude(const Report& report, const std::vector<const Result*>& results);

/// What concerns all workloads: start-up times, and how far the numbers can be trusted.
std::vector<std::string> conclude_overall(const Plan& plan, const Report& report,
                                          const nlohmann::ordered_json& machine);

}  // namespace ddp::bench
