#include "bench/report/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <tuple>

#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

using nlohmann::ordered_json;

/// These name the machine; the others say in what state it was.
constexpr std::array<const char*, 5> kMachineIdentity = {"host", "cpu_model", "cores", "gpus",
                                                         "virtualised"};
/// Differ between any two reports, and the controls show what comes of it.
constexpr std::array<const char*, 2> kLoad = {"machine.load_average", "machine.busy_before_share"};

/// "machine.cpu_model" and its value, for all fields that are no objects.
void flatten(const std::string& prefix, const ordered_json& value, ordered_json& fields) {
  if (!value.is_object()) {
    fields[prefix] = value;
    return;
  }
  for (const auto& [key, member] : value.items()) {
    flatten(fmt::format("{}.{}", prefix, key), member, fields);
  }
}

std::vector<FieldChange> compare_fields(const Report& a, const Report& b) {
  ordered_json fields_a = ordered_json::object();
  ordered_json fields_b = ordered_json::object();
  for (const auto& [report, fields] : {std::pair(&a, &fields_a), std::pair(&b, &fields_b)}) {
    flatten("machine", report->machine, *fields);
    flatten("software", report->software, *fields);
    flatten("settings", report->settings, *fields);
  }
  ordered_json all = fields_a;
  all.update(fields_b);
  std::vector<FieldChange> changes;
  for (const auto& [field, ignored] : all.items()) {
    const FieldChange change = {field, fields_a.value(field, ordered_json()),
                                fields_b.value(field, ordered_json())};
    if (change.a != change.b && std::ranges::find(kLoad, field) == kLoad.end()) {
      changes.push_back(change);
    }
  }
  return changes;
}

/// Equal to what two runs of the same training may differ by.
bool same_training(const Parity& a, const Parity& b) {
  const bool same_end = a.moved && b.moved ? parity_holds(*b.moved, *a.moved)
                                           : a.moved.has_value() == b.moved.has_value();
  return same_end && a.ok == b.ok;
}

void note_parity(const Run& a, const Run& b, std::vector<ParityChange>& changes) {
  if (same_training(a.parity, b.parity)) {
    return;
  }
  const Ending end_a = {a.parity.moved, a.parity.ok};
  const Ending end_b = {b.parity.moved, b.parity.ok};
  auto found = std::ranges::find_if(
      changes, [&](const ParityChange& other) { return other.a == end_a && other.b == end_b; });
  if (found == changes.end()) {
    found = changes.insert(changes.end(), {{}, end_a, end_b});
  }
  found->runs.push_back(a.name);
}

double log_deviation(const ControlRatio& control) {
  return std::abs(std::log(control.ratio));
}

WorstControl worst_control(const Report& a, const Report& b) {
  WorstControl worst;
  for (const Report* report : {&a, &b}) {
    for (const Comparison& comparison : report->comparisons) {
      if (comparison.kind != "control" || !comparison.ratio_median) {
        continue;
      }
      const ControlRatio control = {comparison.a, comparison.b, *comparison.ratio_median};
      const bool several = report->find(comparison.b)->keeps_several_busy();
      std::optional<ControlRatio>& so_far = several ? worst.several_ranks : worst.one_rank;
      if (!so_far || log_deviation(control) > log_deviation(*so_far)) {
        so_far = control;
      }
    }
  }
  return worst;
}

/// Ranks that wait for each other are disturbed far more than one that is alone, so each kind of
/// run has the controls of its kind, and the other's only for want of its own.
double control_log_error(const WorstControl& worst, const Run& run) {
  const bool several = run.keeps_several_busy();
  const std::optional<ControlRatio>& own = several ? worst.several_ranks : worst.one_rank;
  const std::optional<ControlRatio>& other = several ? worst.one_rank : worst.several_ranks;
  const std::optional<ControlRatio>& control = own ? own : other;
  return control ? log_deviation(*control) : 0;
}

std::vector<RateDrift> rate_drift(const Report& a, const Report& b) {
  std::vector<RateDrift> drift;
  for (const Limit& limit : a.limits) {
    const auto same =
        std::ranges::find_if(b.limits, [&](const Limit& other) { return other.is_of_same(limit); });
    if (same != b.limits.end() && limit.fp32_gflops > 0 && same->fp32_gflops > 0) {
      drift.push_back({limit.world_size, *same->fp32_gflops / *limit.fp32_gflops});
    }
  }
  return drift;
}

/// By how much the machine has changed: for a run of as many ranks if that was measured, else the
/// most that was.
double rate_log_error(const std::vector<RateDrift>& drift, const Run& run) {
  double most = 0;
  for (const RateDrift& rate : drift) {
    const double log_error = std::abs(std::log(rate.ratio));
    if (rate.world_size == run.world_size) {
      return log_error;
    }
    most = std::max(most, log_error);
  }
  return most;
}

/// By how much stage 01 on the same work has changed: what a run shares with it is said of it,
/// once.
double baseline_log_error(const Report& a, const Report& b, const Run& run) {
  const Run* const own = run.is_baseline() ? nullptr : b.baseline_of(run);
  const Run* const before = own == nullptr ? nullptr : a.find(own->name);
  const auto before_ms = before == nullptr ? std::nullopt : before->typical_step_ms();
  const auto now_ms = own == nullptr ? std::nullopt : own->typical_step_ms();
  return before_ms && now_ms ? std::abs(std::log(*now_ms / *before_ms)) : 0;
}

std::string why_no_interval(const Run& a, const Run& b) {
  const std::array sides = {std::pair(&a, "A"), std::pair(&b, "B")};
  for (const auto& [run, report] : sides) {
    if (!run->typical_step_ms()) {
      return fmt::format("not measured in {}", report);
    }
  }
  for (const auto& [run, report] : sides) {
    if (run->known_medians_ms().empty()) {
      return fmt::format("no repetitions in {}", report);
    }
  }
  return fmt::format("fewer than {} repetitions", kMinValuesForWelch);
}

RunChange compare_run(const Run& a, const Run& b, bool same_version, double extra_log_error,
                      double threshold) {
  RunChange change = {
      .name = a.name, .kind = b.kind, .a_ms = a.typical_step_ms(), .b_ms = b.typical_step_ms()};
  if (a.global_batch != b.global_batch) {
    change.reason = "not the same work: the global batch differs";
    return change;
  }
  if (!same_version && a.several_processes()) {
    change.reason = "version 1 took the longest rank's step, version 2 takes the job's";
    return change;
  }
  if (change.a_ms && change.b_ms) {
    change.ratio = *change.b_ms / *change.a_ms;
  }
  change.ci95 = welch_ratio_ci95(a.known_medians_ms(), b.known_medians_ms(), extra_log_error);
  if (!change.ci95 || !change.ratio) {
    change.reason = why_no_interval(a, b);
    return change;
  }
  const double low = 1 - threshold;
  const double high = 1 + threshold;
  if (*change.ratio > high && change.ci95->low > 1) {
    change.verdict = "slower";
  } else if (*change.ratio < low && change.ci95->high < 1) {
    change.verdict = "faster";
  } else if (change.ci95->low >= low && change.ci95->high <= high) {
    change.verdict = "same";
  } else {
    change.reason = "too noisy";
  }
  return change;
}

/// To sort by: slower before faster before unknown before same; then the larger change.
std::tuple<int, double> importance(const RunChange& change) {
  const int rank = change.verdict == "slower" ? 0 : change.verdict == "faster" ? 1 : 2;
  return {change.verdict == "same" ? 3 : rank,
          change.ratio ? -std::abs(std::log(*change.ratio)) : 0.0};
}

Identity identity(const ReportFile& file) {
  const Report& report = file.report;
  const ordered_json null;
  return {
      .file = file.path,
      .date = file.document.at("context").value("date", null),
      .host = report.machine.value("host", null),
      .git_commit = report.software.value("git_commit", null),
      .command = report.settings.value("command", null),
      .load_average = report.machine.value("load_average", null),
      .partial = report.partial,
  };
}

}  // namespace

int ReportComparison::count(const std::optional<std::string>& verdict) const {
  return static_cast<int>(std::ranges::count_if(runs, [&](const RunChange& change) {
    return change.verdict == verdict && change.kind != "peer";
  }));
}

ReportComparison compare_reports(const ReportFile& file_a, const ReportFile& file_b,
                                 double threshold) {
  const Report& a = file_a.report;
  const Report& b = file_b.report;
  ReportComparison result;
  result.a = identity(file_a);
  result.b = identity(file_b);
  result.threshold = threshold;
  result.changes = compare_fields(a, b);
  for (const FieldChange& change : result.changes) {
    const std::string field = change.field.substr(change.field.find('.') + 1);
    if (change.field.starts_with("machine.") &&
        std::ranges::find(kMachineIdentity, field) != kMachineIdentity.end()) {
      result.machine_differs.push_back(field);
    }
  }
  result.worst_control = worst_control(a, b);
  result.rate_drift = rate_drift(a, b);

  bool any_in_both = false;
  for (const Run& run_a : a.runs) {
    const Run* const run_b = b.find(run_a.name);
    if (run_b == nullptr) {
      if (!run_a.is_control()) {
        result.only_in_a.push_back(run_a.name);
      }
      continue;
    }
    any_in_both = true;
    const std::optional<double> a_ms = run_a.typical_step_ms();
    const std::optional<double> b_ms = run_b->typical_step_ms();
    if (run_a.error.has_value() != run_b->error.has_value()) {
      result.errors.push_back({run_a.name, run_a.error, run_b->error, run_b->error && a_ms});
      result.regressions += result.errors.back().lost_speed ? 1 : 0;
    }
    note_parity(run_a, *run_b, result.parity);
    if (run_a.is_baseline() && a_ms && b_ms) {
      result.drift.push_back({.name = run_a.name, .ratio = *b_ms / *a_ms});
    }
    if (run_a.error && run_b->error) {
      ++result.errors_in_both;
    }
    if (!run_a.is_control() && !run_a.error && !run_b->error) {
      result.runs.push_back(compare_run(
          run_a, *run_b, file_a.version == file_b.version,
          std::hypot(control_log_error(result.worst_control, *run_b),
                     rate_log_error(result.rate_drift, *run_b), baseline_log_error(a, b, *run_b)),
          threshold));
    }
  }
  for (const Run& run_b : b.runs) {
    if (a.find(run_b.name) == nullptr && !run_b.is_control()) {
      result.only_in_b.push_back(run_b.name);
    }
  }
  if (!any_in_both) {
    throw UsageError(
        fmt::format("{}: none of its {} runs has the name of one in {}, expected some to compare",
                    file_b.path, b.runs.size(), file_a.path));
  }
  std::ranges::stable_sort(result.runs, {}, importance);
  result.regressions += result.count("slower");
  return result;
}

double parse_threshold(const std::string& text) {
  std::string digits = text;
  const bool percent = !digits.empty() && digits.back() == '%';
  if (percent) {
    digits.pop_back();
    digits.erase(digits.find_last_not_of(' ') + 1);
  }
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  value = percent ? value / 100 : value;
  if (error != std::errc() || end != digits.data() + digits.size() || !(value >= 0 && value < 1)) {
    throw UsageError(fmt::format(
        "--threshold: expected a share of the step time such as 5% or 0.05, got \"{}\"", text));
  }
  return value;
}

}  // namespace ddp::bench
