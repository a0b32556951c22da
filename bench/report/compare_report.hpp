// bench/report/compare_report.hpp - what two reports differ in, for people and for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>

#include "bench/report/compare.hpp"

namespace ddp::bench {

void print_comparison(std::ostream& out, const ReportFile& a, const ReportFile& b,
                      const ReportComparison& comparison);

/// docs/bench.md describes every field.
nlohmann::ordered_json comparison_document(const ReportFile& a, const ReportFile& b,
                                           const ReportComparison& comparison);

}  // namespace ddp::bench
