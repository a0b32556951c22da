#include "bench/report/html_command.hpp"

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>

#include "bench/report/output_file.hpp"
#include "bench/report/page/page.hpp"
#include "bench/report/report_file.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::bench {

int run_html_command(int argc, const char* const* argv) {
  std::string report;
  std::string page;
  CLI::App app("Makes the page of a report: plots, tables, and the document itself.", "bench html");
  app.add_option("REPORT.json", report, "what bench --json has written")->required();
  app.add_option("PAGE.html", page, "where the page goes (default: standard output)");
  try {
    app.parse(argc - 1, argv + 1);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    throw UsageError(app.get_name() + ": " + error.what());
  }
  const ReportFile file = read_report(report);
  if (page.empty()) {
    std::cout << render_page(file.document);
  } else {
    check_output_file("PAGE.html", page);
    write_page(page, file.document);
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace ddp::bench
