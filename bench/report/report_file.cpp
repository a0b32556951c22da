#include "bench/report/report_file.hpp"

#include <fmt/format.h>

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
  const auto expect = [&](bool ok, const std::string& where, const char* expected) {
    reader.expect(ok, ok ? scaling : scaling.at(ordered_json::json_pointer(where)),
                  "/ddp_scaling" + where, expected);
  };
  const auto expect_positive = [&](const std::vector<double>& values, const std::string& where) {
    for (std::size_t k = 0; k < values.size(); ++k) {
      expect(!(values[k] <= 0), fmt::format("{}/{}", where, k), "a number above 0, or null");
    }
  };
  std::set<std::string> names;
  for (std::size_t i = 0; i < report.runs.size(); ++i) {
    const Run& run = report.runs[i];
    const std::string where = fmt::format("/runs/{}", i);
    expect(names.insert(run.name).second, where + "/name", "a name that no other run has");
    expect(run.world_size > 0, where + "/world_size", "a number above 0");
    expect(run.global_batch > 0, where + "/global_batch", "a number above 0");
    for (std::size_t k = 0; k < run.repetitions.size(); ++k) {
      if (const std::optional<Repetition>& repetition = run.repetitions[k]) {
        const std::string here = fmt::format("{}/repetitions/{}", where, k);
        expect_positive(repetition->samples_ms, here + "/samples_ms");
        expect(repetition->median_ms.value_or(1) > 0, here + "/median_ms",
               "a number above 0, or null");
      }
    }
  }
  for (std::size_t i = 0; i < report.comparisons.size(); ++i) {
    const Comparison& comparison = report.comparisons[i];
    const std::string where = fmt::format("/comparisons/{}", i);
    expect(comparison.ratio_median.value_or(1) > 0, where + "/ratio_median",
           "a number above 0, or null");
    if (comparison.kind == "control" && comparison.ratio_median) {
      expect(report.find(comparison.b) != nullptr, where + "/b", "the name of a run");
    }
  }
}

/// Version 1 had the medians of the repetitions in a list, and all their steps in another.
void upgrade_from_1(ordered_json& scaling) {
  scaling["schema_version"] = kSchemaVersion;
  const auto runs = scaling.find("runs");
  if (runs == scaling.end() || !runs->is_array()) {
    return;  // for the reader to refuse
  }
  for (ordered_json& run : *runs) {
    if (!run.is_object()) {
      continue;
    }
    ordered_json repetitions = ordered_json::array();
    for (const ordered_json& median_ms : run.value("repetition_medians_ms", ordered_json())) {
      repetitions.push_back(median_ms.is_null() ? ordered_json()
                                                : ordered_json{{"median_ms", median_ms}});
    }
    run["repetitions"] = repetitions;
    run.erase("samples_ms");
    run.erase("repetition_medians_ms");
  }
}

std::string read_text(const std::string& path) {
  if (fs::is_directory(path)) {
    throw UsageError(fmt::format("{}: is a folder, expected {}", path, kReport));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) {
    throw UsageError(fmt::format("{}: cannot be read ({}), expected {}", path,
                                 std::strerror(errno == 0 ? EIO : errno), kReport));
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
  ordered_json& scaling = document.at("ddp_scaling");
  reader.expect(scaling.is_object(), scaling, "/ddp_scaling", "an object");
  ReportFile file;
  reader.read_member(scaling, "/ddp_scaling", "schema_version", file.report.schema_version);
  const int version = file.version = file.report.schema_version;
  reader.expect(version == 1 || version == kSchemaVersion, scaling.at("schema_version"),
                "/ddp_scaling/schema_version", fmt::format("1 or {}", kSchemaVersion));
  if (version == 1) {
    upgrade_from_1(scaling);
  }
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
            throw UsageError(
                fmt::format("{}: nested more than {} deep, expected {}", path, kDeepest, kReport));
          }
          return true;
        });
  } catch (const ordered_json::parse_error& error) {
    const std::size_t at = std::min(error.byte > 0 ? error.byte - 1 : 0, text.size());
    const auto line =
        1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    throw UsageError(fmt::format("{}:{}: not JSON, expected {}", path, line, kReport));
  } catch (const ordered_json::exception&) {
    throw UsageError(fmt::format("{}: a number that is too large, expected {}", path, kReport));
  }
  return parse_report(path, std::move(document));
}

}  // namespace ddp::bench
