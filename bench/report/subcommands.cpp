#include "bench/report/subcommands.hpp"

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <string>

#include "bench/report/compare.hpp"
#include "bench/report/field_json.hpp"
#include "bench/report/output_file.hpp"
#include "bench/report/page/page.hpp"
#include "bench/report/predict_command.hpp"
#include "bench/report/report_file.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

/// Prints and exits with 0 for --help. @throws UsageError
void parse(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc - 1, argv + 1);
  } catch (const CLI::Success& help) {
    const int code = app.exit(help);
    flush_standard_output();
    std::exit(code);
  } catch (const CLI::ParseError& error) {
    throw UsageError(app.get_name() + ": " + error.what());
  }
}

/// A file that cannot be written is the user's mistake; 1 would say that something is slower.
void write_file(const std::string& option, const std::string& file,
                const nlohmann::ordered_json& document) {
  check_output_file(option, file);
  try {
    write_json_file(file, document);
  } catch (const Error& error) {
    throw UsageError(option + ": " + error.what());
  }
}

int run_compare(int argc, const char* const* argv) {
  CLI::App app(
      "Says what changed between two reports and which runs are faster or slower by more than\n"
      "noise. A is the one before, B the one after.",
      "bench compare");
  app.footer("Exit codes: 0 no regression, 1 a run is slower or has an error now, 2 usage.");
  std::string file_a;
  std::string file_b;
  std::string threshold = "5%";
  std::string json_file;
  app.add_option("A", file_a, "report written by bench --json")->required();
  app.add_option("B", file_b, "the one to judge")->required();
  app.add_option("--threshold", threshold, "changes up to this are not worth a verdict")
      ->type_name("PERCENT")
      ->capture_default_str();
  const CLI::Option* const json =
      app.add_option("--json", json_file,
                     "the comparison as one JSON document, to standard output without FILE")
          ->expected(0, 1)
          ->type_name("[FILE]");
  parse(app, argc, argv);

  const double share = parse_threshold(threshold);
  const ReportFile a = read_report(file_a);
  const ReportComparison comparison = compare_reports(a, read_report(file_b), share);
  const bool on_stdout = json->count() > 0 && json_file.empty();
  print_comparison(on_stdout ? std::cerr : std::cout, comparison);
  if (on_stdout) {
    write_json(std::cout, as_json(comparison));
  } else if (json->count() > 0) {
    write_file("--json", json_file, as_json(comparison));
  }
  std::cout << std::flush;
  if (!std::cout) {
    throw UsageError("bench compare: cannot write to standard output");
  }
  return static_cast<int>(comparison.regressions > 0 ? ExitCode::kTrainingFailed : ExitCode::kDone);
}

int run_html(int argc, const char* const* argv) {
  CLI::App app("Makes the page of a report: plots, tables, and the document itself.", "bench html");
  std::string report;
  std::string page;
  app.add_option("REPORT.json", report, "what bench --json has written")->required();
  app.add_option("PAGE.html", page, "where the page goes (default: standard output)");
  parse(app, argc, argv);

  const ReportFile file = read_report(report);
  if (page.empty()) {
    std::cout << render_page(file.document, file.report);
  } else {
    check_output_file("PAGE.html", page);
    write_page(page, file.document, file.report);
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace

std::optional<int> run_subcommand(int argc, const char* const* argv) {
  const std::map<std::string, int (*)(int, const char* const*)> subcommands = {
      {"compare", run_compare}, {"html", run_html}, {"predict", run_predict}};
  const auto found = subcommands.find(argc > 1 ? argv[1] : "");
  return found == subcommands.end() ? std::nullopt : std::optional(found->second(argc, argv));
}

}  // namespace ddp::bench
