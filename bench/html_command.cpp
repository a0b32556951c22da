#include "bench/html_command.hpp"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "bench/html_report.hpp"
#include "common/exit_codes.hpp"

namespace ddp::bench {
namespace {

using nlohmann::ordered_json;

constexpr int kDeepest = 50;  ///< a report has six levels; what is written recurses

ordered_json read_document(const std::string& file) {
  if (std::filesystem::is_directory(file)) {
    throw UsageError(file + ": is a folder, expected a report of bench --json");
  }
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in) {
    throw UsageError(file + ": cannot be read (" + std::strerror(errno == 0 ? EIO : errno) +
                     "), expected a report of bench --json");
  }
  ordered_json document;
  try {
    document = ordered_json::parse(
        text, [&](int depth, ordered_json::parse_event_t /*event*/, ordered_json& /*value*/) {
          if (depth > kDeepest) {
            throw UsageError(file + ": nested more than " + std::to_string(kDeepest) +
                             " deep, expected a report of bench --json");
          }
          return true;
        });
  } catch (const ordered_json::exception& error) {
    throw UsageError(file + ": not JSON (" + error.what() + "), expected a report of bench --json");
  }
  if (!document.is_object() || !document.contains("ddp_scaling") ||
      !document["ddp_scaling"].is_object()) {
    throw UsageError(file + ": no object \"ddp_scaling\", expected a report of bench --json");
  }
  return document;
}

}  // namespace

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
    throw UsageError(error.what());
  }
  const ordered_json document = read_document(report);
  if (!page.empty()) {
    write_html_file(page, document);
    return static_cast<int>(ExitCode::kDone);
  }
  std::cout << make_html_report(document) << std::flush;
  if (!std::cout) {
    throw Error(ExitCode::kTrainingFailed, "cannot write to standard output");
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace ddp::bench
