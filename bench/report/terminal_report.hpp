// bench/report/terminal_report.hpp - the report for people: tables, then what to conclude.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "bench/report/record.hpp"

namespace ddp::bench {

/// @param notes decisions that the reader should know
void print_terminal_report(std::ostream& out, const Report& report,
                           const std::vector<std::string>& notes);

}  // namespace ddp::bench
