// bench/report/compare.hpp - what changed between two reports, and which of it is more than noise.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "bench/report/fields.hpp"
#include "bench/report/report_file.hpp"
#include "bench/report/statistics.hpp"

namespace ddp::bench {

inline constexpr double kDefaultThreshold = 0.05;

/// A run that has an error in neither report.
struct RunChange {
  std::string name;
  std::string kind;  ///< "stage" or "peer"
  std::optional<double> a_ms;
  std::optional<double> b_ms;
  std::optional<double> ratio{};  ///< step time in B over that in A
  std::optional<Interval> ci95{};  ///< of the ratio, allowing for the controls and the machine
  /// "faster", "slower": beyond the threshold, and the interval excludes no change; "same": the
  /// whole interval lies within the threshold.
  std::optional<std::string> verdict{};
  std::optional<std::string> reason{};  ///< why there is no verdict
  DDP_FIELDS(name, kind, a_ms, b_ms, ratio, ci95, verdict, reason);
};

/// A field of machine, software or settings.
struct FieldChange {
  std::string field;  ///< "software.compiler"
  nlohmann::ordered_json a;  ///< null also if it is not there
  nlohmann::ordered_json b;
  DDP_FIELDS(field, a, b);
};

struct ErrorChange {
  std::string name;
  std::optional<std::string> a;
  std::optional<std::string> b;
  bool lost_speed = false;  ///< it was measured in A
  DDP_FIELDS(name, a, b, lost_speed);
};

/// How the training of a run ended.
struct Ending {
  std::optional<double> moved;
  bool ok = false;
  bool operator==(const Ending&) const = default;
  DDP_FIELDS(moved, ok);
};

/// The training of these runs now ends elsewhere, or agrees with stage 01 no longer.
struct ParityChange {
  std::vector<std::string> runs;
  Ending a;
  Ending b;
  DDP_FIELDS(runs, a, b);
};

/// A run of stage 01.
struct BaselineDrift {
  std::string name;
  double ratio = 1;
  DDP_FIELDS(name, ratio);
};

/// How far a run is from its identical twin, in the same report.
struct ControlRatio {
  std::string a;  ///< the control
  std::string b;
  double ratio = 1;  ///< step time of a over that of b
  DDP_FIELDS(a, b, ratio);
};

/// The control that is furthest from its twin in both reports, of either kind.
struct WorstControl {
  std::optional<ControlRatio> one_rank;
  std::optional<ControlRatio> several_ranks;
  DDP_FIELDS(one_rank, several_ranks);
};

/// What one rank of that many computed at best, which no change of a program changes.
struct RateDrift {
  int world_size = 1;
  double ratio = 1;  ///< fp32 rate in B over that in A
  DDP_FIELDS(world_size, ratio);
};

/// What tells a report from others.
struct Identity {
  std::string file;
  nlohmann::ordered_json date;
  nlohmann::ordered_json host;
  nlohmann::ordered_json git_commit;
  nlohmann::ordered_json command;
  nlohmann::ordered_json load_average;
  bool partial = false;
  DDP_FIELDS(file, date, host, git_commit, command, load_average, partial);
};

/// Each field of the document that --json writes; docs/bench.md describes them.
struct ReportComparison {
  int schema_version = 1;
  Identity a;
  Identity b;
  double threshold = kDefaultThreshold;
  std::vector<FieldChange> changes;
  std::vector<std::string> machine_differs;  ///< the fields by which it is another machine
  std::vector<std::string> only_in_a;
  std::vector<std::string> only_in_b;
  std::vector<ErrorChange> errors;
  std::vector<ParityChange> parity;
  std::vector<BaselineDrift> drift;
  std::vector<RateDrift> rate_drift;
  WorstControl worst_control;
  std::vector<RunChange> runs;  ///< what matters most first
  int regressions = 0;  ///< own runs that are slower, or were measured in A and have an error in B
  DDP_FIELDS(schema_version, a, b, threshold, changes, machine_differs, only_in_a, only_in_b,
             errors, parity, drift, rate_drift, worst_control, runs, regressions);
  int errors_in_both = 0;

  /// Of the suite's own runs, not of peers. @param verdict none: those without one
  int count(const std::optional<std::string>& verdict) const;
};

/// Matches runs by name. Controls get no verdict: they say how much the machine alone does.
/// @throws UsageError if no name is in both
ReportComparison compare_reports(const ReportFile& a, const ReportFile& b, double threshold);

/// For people: what changed, what was noise, then a table of the runs.
void print_comparison(std::ostream& out, const ReportComparison& comparison);

/// "5%", "5 %" or "0.05", from 0 up to and without 100 %.
/// @throws UsageError
double parse_threshold(const std::string& text);

}  // namespace ddp::bench
