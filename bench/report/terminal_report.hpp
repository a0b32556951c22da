// bench/report/terminal_report.hpp - the report for people: tables, then what to conclude.
#pragma once

#include <ostream>

#include "bench/report/record.hpp"

namespace ddp::bench {

void print_terminal_report(std::ostream& out, const Report& report);

}  // namespace ddp::bench
