#include "bench/report/compare.hpp"

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
/// Differs between any two reports, and the controls show what comes of it.
constexpr const char* kLoadAverage = "machine.load_average";

/// "machine.cpu_model" and its value, for all fields that are no objects.
void flatten(const std::string& prefix, const ordered_json& value, ordered_json& fields) {
  if (!value.is_object()) {
    fields[prefix] = value;
    return;
  }
  for (const auto& [key, member] : value.items()) {
    flatten(std::string(prefix).append(".").append(key), member, fields);
  }
}

std::vector<FieldChange> compare_fields(const ReportFile& a, const ReportFile& b) {
  ordered_json fields_a = ordered_json::object();
  ordered_json fields_b = ordered_json::object();
  for (const char* section : {"machine", "software", "settings"}) {
    flatten(section, a.scaling().at(section), fields_a);
    flatten(section, b.scaling().at(section), fields_b);
  }
  ordered_json all = fields_a;
  all.update(fields_b);
  std::vector<FieldChange> changes;
  for (const auto& [field, ignored] : all.items()) {
    const ordered_json value_a = fields_a.value(field, ordered_json());
    const ordered_json value_b = fields_b.value(field, ordered_json());
    if (value_a != value_b && field != kLoadAverage) {
      changes.push_back({.field = field, .a = value_a, .b = value_b});
    }
  }
  return changes;
}

/// Equal to what two runs of the same training may differ by.
bool same_training(const MeasuredRun& a, const MeasuredRun& b) {
  const bool same_end = a.moved && b.moved ? parity_holds(*b.moved, *a.moved)
                                           : a.moved.has_value() == b.moved.has_value();
  return same_end && a.parity_ok == b.parity_ok;
}

void note_parity(const MeasuredRun& a, const MeasuredRun& b, std::vector<ParityChange>& changes) {
  if (same_training(a, b)) {
    return;
  }
  const auto key = [](const ParityChange& change) {
    return std::tie(change.moved_a, change.moved_b, change.ok_a, change.ok_b);
  };
  const ParityChange change = {
      .moved_a = a.moved,
      .moved_b = b.moved,
      .ok_a = a.parity_ok,
      .ok_b = b.parity_ok,
      .runs = {},
  };
  auto found = std::find_if(changes.begin(), changes.end(),
                            [&](const ParityChange& other) { return key(other) == key(change); });
  if (found == changes.end()) {
    found = changes.insert(changes.end(), change);
  }
  found->runs.push_back(a.name);
}

double log_deviation(const ControlRatio& control) {
  return std::abs(std::log(control.ratio));
}

std::array<std::optional<ControlRatio>, 2> worst_control(const ReportFile& a, const ReportFile& b) {
  std::array<std::optional<ControlRatio>, 2> worst;
  for (const ReportFile* report : {&a, &b}) {
    for (const ControlRatio& control : report->controls) {
      std::optional<ControlRatio>& so_far = worst[control.several_ranks ? 1 : 0];
      if (!so_far || log_deviation(control) > log_deviation(*so_far)) {
        so_far = control;
      }
    }
  }
  return worst;
}

/// Ranks that wait for each other are disturbed far more than one that is alone, so each kind of
/// run has the controls of its kind, and the other's only for want of its own.
double control_log_error(const std::array<std::optional<ControlRatio>, 2>& worst,
                         const MeasuredRun& run) {
  const std::size_t kind = run.world_size > 1 ? 1 : 0;
  const std::optional<ControlRatio>& control = worst[kind] ? worst[kind] : worst[1 - kind];
  return control ? log_deviation(*control) : 0;
}

std::string why_no_interval(const MeasuredRun& a, const MeasuredRun& b) {
  for (const auto& [run, report] : {std::pair(&a, "A"), std::pair(&b, "B")}) {
    if (!run->step_ms) {
      return std::string("not measured in ") + report;
    }
  }
  for (const auto& [run, report] : {std::pair(&a, "A"), std::pair(&b, "B")}) {
    if (run->repetition_medians_ms.empty()) {
      return std::string("no repetition_medians_ms in ") + report;
    }
  }
  return "fewer than " + std::to_string(kMinPairsForInterval) + " repetitions";
}

RunChange compare_run(const MeasuredRun& a, const MeasuredRun& b, double extra_log_error,
                      double threshold) {
  RunChange change;
  change.name = a.name;
  change.kind = b.kind;
  change.a_ms = a.step_ms;
  change.b_ms = b.step_ms;
  if (a.step_ms && b.step_ms) {
    change.ratio = *b.step_ms / *a.step_ms;
  }
  if (a.global_batch != b.global_batch) {
    change.ratio = std::nullopt;
    change.reason = "not the same work: the global batch differs";
    return change;
  }
  change.ci95 = welch_ratio_ci95(a.repetition_medians_ms, b.repetition_medians_ms, extra_log_error);
  if (!change.ci95 || !change.ratio) {
    change.reason = why_no_interval(a, b);
    return change;
  }
  const double low = 1 - threshold;
  const double high = 1 + threshold;
  if (*change.ratio > high && change.ci95->low > 1) {
    change.verdict = Verdict::kSlower;
  } else if (*change.ratio < low && change.ci95->high < 1) {
    change.verdict = Verdict::kFaster;
  } else if (change.ci95->low >= low && change.ci95->high <= high) {
    change.verdict = Verdict::kSame;
  } else {
    change.reason = "too noisy";
  }
  return change;
}

/// Slower before faster before unknown before same; then the larger change.
bool matters_more(const RunChange& a, const RunChange& b) {
  const auto key = [](const RunChange& change) {
    constexpr std::array<int, 4> kOrder = {2, 3, 1, 0};  // by Verdict
    return std::tuple(kOrder[static_cast<std::size_t>(change.verdict)],
                      change.ratio ? -std::abs(std::log(*change.ratio)) : 0.0);
  };
  return key(a) < key(b);
}

}  // namespace

int ReportComparison::count(Verdict verdict) const {
  return static_cast<int>(std::count_if(runs.begin(), runs.end(), [&](const RunChange& change) {
    return change.verdict == verdict && change.kind != "peer";
  }));
}

int ReportComparison::regressions() const {
  return count(Verdict::kSlower) +
         static_cast<int>(std::count_if(errors.begin(), errors.end(),
                                        [](const ErrorChange& e) { return e.lost_speed; }));
}

ReportComparison compare_reports(const ReportFile& a, const ReportFile& b, double threshold) {
  ReportComparison result;
  result.threshold = threshold;
  result.changes = compare_fields(a, b);
  for (const FieldChange& change : result.changes) {
    for (const char* field : kMachineIdentity) {
      if (change.field == std::string("machine.") + field) {
        result.machine_differs.push_back(field);
      }
    }
  }
  result.worst_control = worst_control(a, b);

  bool any_in_both = false;
  for (const MeasuredRun& run_a : a.runs) {
    const MeasuredRun* const run_b = b.find(run_a.name);
    if (run_b == nullptr) {
      if (run_a.kind != "control") {
        result.only_in_a.push_back(run_a.name);
      }
      continue;
    }
    any_in_both = true;
    if (run_a.error.has_value() != run_b->error.has_value()) {
      result.errors.push_back({
          .name = run_a.name,
          .a = run_a.error,
          .b = run_b->error,
          .lost_speed = run_b->error && run_a.step_ms,
      });
    }
    note_parity(run_a, *run_b, result.parity);
    if (run_a.is_baseline() && run_a.step_ms && run_b->step_ms) {
      result.drift.push_back({.name = run_a.name, .ratio = *run_b->step_ms / *run_a.step_ms});
    }
    if (run_a.error && run_b->error) {
      ++result.errors_in_both;
    }
    if (run_a.kind != "control" && !run_a.error && !run_b->error) {
      result.runs.push_back(
          compare_run(run_a, *run_b, control_log_error(result.worst_control, *run_b), threshold));
    }
  }
  for (const MeasuredRun& run_b : b.runs) {
    if (a.find(run_b.name) == nullptr && run_b.kind != "control") {
      result.only_in_b.push_back(run_b.name);
    }
  }
  if (!any_in_both) {
    throw UsageError(b.path + ": none of its " + std::to_string(b.runs.size()) +
                     " runs has the name of one in " + a.path + ", expected some to compare");
  }
  std::stable_sort(result.runs.begin(), result.runs.end(), matters_more);
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
    throw UsageError("--threshold: expected a share of the step time such as 5% or 0.05, got \"" +
                     text + "\"");
  }
  return value;
}

}  // namespace ddp::bench
