// bench/report/merge.hpp - reports of several node counts of one allocation as one report.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "bench/report/report_file.hpp"

namespace ddp::bench {

/// Everything of the first, and what the others measured besides. Each report measures stage 01
/// again: the first one's stays, and not_run says how far the others were from it. Speed-ups and
/// efficiencies stay what each report found against its own stage 01.
/// @param reports at least one
/// @throws UsageError if they are of different builds or seeds, or two measured one configuration
nlohmann::ordered_json merge_reports(const std::vector<ReportFile>& reports);

}  // namespace ddp::bench
