// bench/report/terminal_report.hpp - the report for people: a table per workload, then what to
// conclude.
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>

#include "bench/report/results.hpp"
#include "bench/run/plan.hpp"

namespace ddp::bench {

void print_terminal_report(std::ostream& out, const Plan& plan, const Report& report,
                           const nlohmann::ordered_json& machine);

}  // namespace ddp::bench
