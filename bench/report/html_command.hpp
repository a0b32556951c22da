// bench/report/html_command.hpp - `bench html`: the page of a report that is there already.
#pragma once

namespace ddp::bench {

/// `bench html REPORT.json [PAGE.html]`; without the second, the page goes to standard output.
/// @param argv argv[0] is the program, argv[1] is "html"
/// @return the exit code
/// @throws UsageError naming the file that is no report, or the argument that is not understood
int run_html_command(int argc, const char* const* argv);

}  // namespace ddp::bench
