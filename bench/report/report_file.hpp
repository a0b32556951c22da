// bench/report/report_file.hpp - a report of bench read back, for the commands that work on
// reports.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace ddp::bench {

/// The program that is the baseline of every report.
inline constexpr const char* kBaselineStage = "01_single_gpu";

/// What is read of one of runs[].
struct MeasuredRun {
  std::string name;
  std::string kind;  ///< "stage", "peer", "control"
  std::string stage;
  std::optional<std::string> error;
  double world_size = 1;
  std::optional<double> global_batch;
  /// Of those repetitions that were run; empty if the report does not tell them apart.
  std::vector<double> repetition_medians_ms;
  /// Median of the repetitions' medians; of all samples if they are not told apart. None with an
  /// error.
  std::optional<double> step_ms;
  std::optional<double> moved;
  bool parity_ok = false;

  bool is_baseline() const { return kind == "stage" && stage == kBaselineStage; }
};

/// How far a run is from its identical twin, in the same report.
struct ControlRatio {
  std::string a;  ///< the control
  std::string b;
  double ratio = 1;  ///< step time of a over that of b
  bool several_ranks = false;
};

/// One document that bench --json has written.
struct ReportFile {
  std::string path;
  nlohmann::ordered_json document;
  std::vector<MeasuredRun> runs;
  std::vector<ControlRatio> controls;

  /// The suite's own part of the document.
  const nlohmann::ordered_json& scaling() const { return document.at("ddp_scaling"); }
  const MeasuredRun* find(const std::string& name) const;
};

/// @throws UsageError naming the file, what is wrong there, and what was expected: not a file, not
///         JSON, another schema, two runs of one name, a field of the wrong type
ReportFile read_report(const std::string& path);

/// The same for a document in memory; `path` stands in messages.
ReportFile parse_report(const std::string& path, nlohmann::ordered_json document);

}  // namespace ddp::bench
