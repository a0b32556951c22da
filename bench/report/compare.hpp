// bench/report/compare.hpp - what changed between two reports, and which of it is more than noise.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/report/report_file.hpp"
#include "bench/report/statistics.hpp"

namespace ddp::bench {

inline constexpr double kDefaultThreshold = 0.05;

enum class Verdict {
  kNone,  ///< too little is known
  kSame,  ///< the whole interval lies within the threshold
  kFaster,  ///< beyond the threshold, and the interval excludes no change
  kSlower,
};

/// A run that has an error in neither report.
struct RunChange {
  std::string name;
  std::string kind;  ///< "stage" or "peer"
  std::optional<double> a_ms;
  std::optional<double> b_ms;
  std::optional<double> ratio;  ///< step time in B over that in A
  std::optional<Interval> ci95;  ///< of the ratio, with the allowance for the controls
  Verdict verdict = Verdict::kNone;
  std::string reason;  ///< why there is no verdict
};

/// A field of machine, software or settings.
struct FieldChange {
  std::string field;  ///< "software.compiler"
  nlohmann::ordered_json a;  ///< null also if it is not there
  nlohmann::ordered_json b;
};

struct ErrorChange {
  std::string name;
  std::optional<std::string> a;
  std::optional<std::string> b;
  bool lost_speed = false;  ///< it was measured in A
};

/// The training of these runs now ends elsewhere, or agrees with stage 01 no longer.
struct ParityChange {
  std::optional<double> moved_a;
  std::optional<double> moved_b;
  bool ok_a = false;
  bool ok_b = false;
  std::vector<std::string> runs;
};

/// A run of stage 01.
struct BaselineDrift {
  std::string name;
  double ratio = 1;
};

struct ReportComparison {
  double threshold = kDefaultThreshold;
  std::vector<FieldChange> changes;
  std::vector<std::string> machine_differs;  ///< the fields by which it is another machine
  std::vector<std::string> only_in_a;
  std::vector<std::string> only_in_b;
  std::vector<ErrorChange> errors;
  int errors_in_both = 0;
  std::vector<ParityChange> parity;
  std::vector<BaselineDrift> drift;
  /// Of both reports: that of runs on one rank, and of runs on several.
  std::array<std::optional<ControlRatio>, 2> worst_control;
  std::vector<RunChange> runs;  ///< what matters most first

  int count(Verdict verdict) const;  ///< of the suite's own runs, not of peers
  /// Own runs that are slower, and runs that were measured in A and have an error in B.
  int regressions() const;
};

/// Matches runs by name. Controls get no verdict: they say how much the machine alone does.
/// @throws UsageError if no name is in both
ReportComparison compare_reports(const ReportFile& a, const ReportFile& b, double threshold);

/// "5%", "5 %" or "0.05", from 0 up to and without 100 %.
/// @throws UsageError
double parse_threshold(const std::string& text);

}  // namespace ddp::bench
