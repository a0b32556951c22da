#include "bench/report/report_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "bench/report/statistics.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int kSchemaVersion = 1;
constexpr int kDeepest = 50;  ///< a report has six levels; functions that recurse need some limit

/// A value and where it stands, so that a message can say so.
class Field {
 public:
  Field(const std::string& path, const ordered_json& value, std::string where = "")
      : path_(path), value_(value), where_(std::move(where)) {}

  const ordered_json& value() const { return value_; }
  bool has(const char* key) const { return value_.contains(key); }
  Field at(const char* key) const {
    const std::string where = where_ + "/" + key;
    if (!value_.is_object() || !value_.contains(key)) {
      throw UsageError(path_ + ": no " + where + ", expected a report of bench");
    }
    return {path_, value_.at(key), where};
  }
  Field at(std::size_t index) const {
    return {path_, value_.at(index), where_ + "/" + std::to_string(index)};
  }

  [[noreturn]] void refuse(const std::string& expected) const {
    const std::string got =
        value_.is_structured()
            ? std::string("an ") + value_.type_name()
            : value_.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    throw UsageError(path_ + ": " + where_ + ": expected " + expected + ", got " + got);
  }
  void expect(bool ok, const std::string& expected) const {
    if (!ok) {
      refuse(expected);
    }
  }

  std::string text() const {
    expect(value_.is_string(), "text");
    return value_.get<std::string>();
  }
  std::optional<std::string> text_or_null() const {
    return value_.is_null() ? std::nullopt : std::optional<std::string>(text());
  }
  bool flag() const {
    expect(value_.is_boolean(), "true or false");
    return value_.get<bool>();
  }
  std::optional<double> number_or_null() const {
    expect(value_.is_number() || value_.is_null(), "a number or null");
    return value_.is_null() || !std::isfinite(value_.get<double>())
               ? std::nullopt
               : std::optional<double>(value_.get<double>());
  }
  std::optional<double> positive_or_null() const {
    const std::optional<double> number = number_or_null();
    expect(!number || *number > 0, "a number above 0, or null");
    return number;
  }
  std::size_t list_size() const {
    expect(value_.is_array(), "a list");
    return value_.size();
  }
  void expect_object() const { expect(value_.is_object(), "an object"); }

 private:
  const std::string& path_;
  const ordered_json& value_;
  std::string where_;
};

/// The median of all samples; none if one of them is no number.
std::optional<double> median_of(const Field& samples) {
  std::vector<double> values;
  for (std::size_t i = 0; i < samples.list_size(); ++i) {
    values.push_back(
        samples.at(i).positive_or_null().value_or(std::numeric_limits<double>::quiet_NaN()));
  }
  return median(values);
}

MeasuredRun parse_run(const Field& field) {
  field.expect_object();
  MeasuredRun run;
  run.name = field.at("name").text();
  run.kind = field.has("kind") ? field.at("kind").text() : "stage";
  run.stage = field.at("stage").text();
  run.error = field.at("error").text_or_null();
  run.world_size = field.at("world_size").positive_or_null().value_or(1);
  run.global_batch = field.at("global_batch").positive_or_null();
  run.moved = field.at("parity").at("moved").number_or_null();
  run.parity_ok = field.at("parity").at("ok").flag();
  if (run.error) {
    return run;
  }
  if (field.has("repetition_medians_ms")) {
    const Field medians = field.at("repetition_medians_ms");
    for (std::size_t i = 0; i < medians.list_size(); ++i) {
      if (const std::optional<double> value = medians.at(i).positive_or_null()) {
        run.repetition_medians_ms.push_back(*value);
      }
    }
  }
  run.step_ms = run.repetition_medians_ms.empty() ? median_of(field.at("samples_ms"))
                                                  : median(run.repetition_medians_ms);
  return run;
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

const MeasuredRun* ReportFile::find(const std::string& name) const {
  const auto found = std::find_if(runs.begin(), runs.end(),
                                  [&](const MeasuredRun& run) { return run.name == name; });
  return found == runs.end() ? nullptr : &*found;
}

ReportFile parse_report(const std::string& path, ordered_json document) {
  ReportFile report;
  report.path = path;
  report.document = std::move(document);
  const Field top(report.path, report.document);
  if (!top.value().is_object() || !top.has("ddp_scaling")) {
    throw UsageError(path + ": no member \"ddp_scaling\", expected a report of bench");
  }
  top.at("context").expect_object();
  const Field benchmarks = top.at("benchmarks");
  for (std::size_t i = 0; i < benchmarks.list_size(); ++i) {
    benchmarks.at(i).expect_object();
    benchmarks.at(i).at("name").text();
  }
  const Field scaling = top.at("ddp_scaling");
  scaling.expect_object();
  const Field version = scaling.at("schema_version");
  version.expect(version.value() == kSchemaVersion, std::to_string(kSchemaVersion));
  for (const char* key : {"machine", "software", "settings"}) {
    scaling.at(key).expect_object();
  }
  scaling.at("not_run").list_size();
  scaling.at("partial").flag();

  std::set<std::string> names;
  const Field runs = scaling.at("runs");
  for (std::size_t i = 0; i < runs.list_size(); ++i) {
    report.runs.push_back(parse_run(runs.at(i)));
    if (!names.insert(report.runs.back().name).second) {
      runs.at(i).at("name").refuse("a name that no other run has");
    }
  }
  const Field comparisons = scaling.at("comparisons");
  for (std::size_t i = 0; i < comparisons.list_size(); ++i) {
    const Field comparison = comparisons.at(i);
    comparison.expect_object();
    const std::string a = comparison.at("a").text();
    const std::string b = comparison.at("b").text();
    const std::optional<double> ratio = comparison.at("ratio_median").positive_or_null();
    if (comparison.has("kind") && comparison.at("kind").text() == "control" && ratio) {
      const MeasuredRun* const original = report.find(b);
      comparison.at("b").expect(original != nullptr, "the name of a run");
      report.controls.push_back(
          {.a = a, .b = b, .ratio = *ratio, .several_ranks = original->world_size > 1});
    }
  }
  return report;
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
