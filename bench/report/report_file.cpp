#include "bench/report/report_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "bench/report/field_json.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int kDeepest = 50;  ///< a report has six levels; functions that recurse need some limit

constexpr const char* kReport = "a report of bench";

/// What all of benchmarks[] have.
struct BenchmarkEntry {
  std::string name;
  DDP_FIELDS(name);
};

/// What types do not say.
void check_values(const FieldReader& reader, const Report& report, const ordered_json& scaling) {
  const auto expect = [&](bool ok, const std::string& where, const std::string& expected) {
    reader.expect(ok, ok ? scaling : scaling.at(ordered_json::json_pointer(where)),
                  "/ddp_scaling" + where, expected);
  };
  const auto expect_positive = [&](double value, const std::string& where) {
    expect(!(value <= 0), where, "a number above 0, or null");
  };
  std::set<std::string> names;
  for (std::size_t i = 0; i < report.runs.size(); ++i) {
    const Run& run = report.runs[i];
    const std::string where = "/runs/" + std::to_string(i);
    expect(names.insert(run.name).second, where + "/name", "a name that no other run has");
    expect(run.world_size > 0, where + "/world_size", "a number above 0");
    expect(run.global_batch > 0, where + "/global_batch", "a number above 0");
    for (std::size_t k = 0; k < run.samples_ms.size(); ++k) {
      expect_positive(run.samples_ms[k], where + "/samples_ms/" + std::to_string(k));
    }
    for (std::size_t k = 0; k < run.repetition_medians_ms.size(); ++k) {
      expect_positive(run.repetition_medians_ms[k],
                      where + "/repetition_medians_ms/" + std::to_string(k));
    }
  }
  for (std::size_t i = 0; i < report.comparisons.size(); ++i) {
    const Comparison& comparison = report.comparisons[i];
    const std::string where = "/comparisons/" + std::to_string(i);
    expect_positive(comparison.ratio_median.value_or(1), where + "/ratio_median");
    if (comparison.kind == "control" && comparison.ratio_median) {
      expect(report.find(comparison.b) != nullptr, where + "/b", "the name of a run");
    }
  }
}

std::string read_text(const std::string& path) {
  if (fs::is_directory(path)) {
    throw UsageError(path + ": is a folder, expected a report of bench");
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) {
    throw UsageError(path + ": cannot be read (" + std::strerror(errno == 0 ? EIO : errno) +
                     "), expected a report of bench");
  }
  return text;
}

}  // namespace

ReportFile parse_report(const std::string& path, ordered_json document) {
  const FieldReader reader(path, kReport, ExitCode::kUsage);
  if (!document.is_object() || !document.contains("ddp_scaling")) {
    reader.fail(std::string("no member \"ddp_scaling\", expected ") + kReport);
  }
  ordered_json context;
  std::vector<BenchmarkEntry> benchmarks;
  reader.read_member(document, "", "context", context);
  reader.read_member(document, "", "benchmarks", benchmarks);
  const ordered_json& scaling = document.at("ddp_scaling");
  reader.expect(scaling.is_object(), scaling, "/ddp_scaling", "an object");
  ReportFile file;
  reader.read_member(scaling, "/ddp_scaling", "schema_version", file.report.schema_version);
  reader.expect(file.report.schema_version == kSchemaVersion, scaling.at("schema_version"),
                "/ddp_scaling/schema_version", std::to_string(kSchemaVersion));
  reader.read(scaling, "/ddp_scaling", file.report);
  check_values(reader, file.report, scaling);
  file.path = path;
  file.document = std::move(document);
  return file;
}

ReportFile read_report(const std::string& path) {
  const std::string text = read_text(path);
  ordered_json document;
  try {
    document = ordered_json::parse(
        text, [&](int depth, ordered_json::parse_event_t /*event*/, ordered_json& /*value*/) {
          if (depth > kDeepest) {
            throw UsageError(path + ": nested more than " + std::to_string(kDeepest) +
                             " deep, expected a report of bench");
          }
          return true;
        });
  } catch (const ordered_json::parse_error& error) {
    const std::size_t at = std::min(error.byte > 0 ? error.byte - 1 : 0, text.size());
    const auto line =
        1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    throw UsageError(path + ":" + std::to_string(line) + ": not JSON, expected a report of bench");
  } catch (const ordered_json::exception&) {
    throw UsageError(path + ": a number that is too large, expected a report of bench");
  }
  return parse_report(path, std::move(document));
}

}  // namespace ddp::bench
