#include "bench/report/compare_report.hpp"

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "bench/report/format.hpp"
#include "bench/report/text_table.hpp"

namespace ddp::bench {
namespace {

using nlohmann::ordered_json;

constexpr std::array<const char*, 4> kVerdictNames = {"no verdict", "same", "faster", "slower"};

const char* verdict_name(Verdict verdict) {
  return kVerdictNames[static_cast<std::size_t>(verdict)];
}

std::string dump(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

/// "+4.2 %" of a ratio of 1.042; "-" for nothing.
std::string format_change(std::optional<double> ratio) {
  if (!ratio) {
    return "-";
  }
  const double percent = std::round(1000 * (*ratio - 1)) / 10;
  return (percent > 0 ? "+" : "") + format_fixed(percent == 0 ? 0 : percent, 1) + " %";
}

/// "5", "0.5": as it was given.
std::string format_threshold(double share) {
  std::string text = format_fixed(100 * share, 3);
  text.erase(text.find_last_not_of('0') + 1);
  text.erase(text.find_last_not_of('.') + 1);
  return text;
}

/// On one line if both are short.
void append_field(const FieldChange& change, std::vector<std::string>& lines) {
  constexpr std::size_t kShort = 90;
  const std::string a = dump(change.a);
  const std::string b = dump(change.b);
  if (change.field.size() + a.size() + b.size() <= kShort) {
    lines.push_back(change.field + ": " + a + " -> " + b);
    return;
  }
  lines.push_back(change.field);
  lines.push_back("  A: " + a);
  lines.push_back("  B: " + b);
}

/// What tells the report from others.
ordered_json identity(const ReportFile& report) {
  const ordered_json& scaling = report.scaling();
  const ordered_json null;
  return {
      {"file", report.path},
      {"date", report.document.at("context").value("date", null)},
      {"host", scaling.at("machine").value("host", null)},
      {"git_commit", scaling.at("software").value("git_commit", null)},
      {"command", scaling.at("settings").value("command", null)},
      {"load_average", scaling.at("machine").value("load_average", null)},
      {"partial", scaling.at("partial")},
  };
}

void print_identity(std::ostream& out, const char* letter, const ReportFile& report) {
  const ordered_json all = identity(report);
  out << letter << "  " << report.path;
  for (const char* key : {"date", "host", "git_commit"}) {
    if (all.at(key).is_string()) {
      out << ", " << all.at(key).get<std::string>();
    }
  }
  if (all.at("load_average").is_array()) {
    out << ", load before it " << dump(all.at("load_average"));
  }
  out << (all.at("partial") == true ? ", INTERRUPTED before its end" : "") << '\n';
}

void print_list(std::ostream& out, const std::string& title,
                const std::vector<std::string>& names) {
  if (names.empty()) {
    return;
  }
  out << '\n' << title << '\n';
  for (const std::string& name : names) {
    out << "  " << name << '\n';
  }
}

std::string parity_line(const ParityChange& change) {
  std::string line = "moved " + format_fixed(change.moved_a, 6) + " -> " +
                     format_fixed(change.moved_b, 6) + (change.ok_a ? ", ok" : ", FAILED") +
                     (change.ok_b ? " -> ok: " : " -> FAILED: ") + change.runs.front();
  if (change.runs.size() > 1) {
    line += " and " + std::to_string(change.runs.size() - 1) + " more";
  }
  return line;
}

void print_changes(std::ostream& out, const ReportComparison& comparison) {
  std::vector<std::string> lines;
  for (const FieldChange& change : comparison.changes) {
    append_field(change, lines);
  }
  print_list(out, "Changed", lines);
  if (!comparison.machine_differs.empty()) {
    out << "warning: not the same machine (";
    for (const std::string& field : comparison.machine_differs) {
      out << field << (field == comparison.machine_differs.back() ? "" : ", ");
    }
    out << " differ): the verdicts are about both, machine and program\n";
  }
  print_list(out, "Only in A", comparison.only_in_a);
  print_list(out, "Only in B", comparison.only_in_b);
  lines.clear();
  for (const ErrorChange& change : comparison.errors) {
    lines.push_back(change.name + ": " +
                    (change.b ? "error in B: " + *change.b : "no error any more: " + *change.a));
  }
  if (comparison.errors_in_both > 0) {
    lines.push_back("in both reports: " + std::to_string(comparison.errors_in_both) +
                    " of the runs");
  }
  print_list(out, "Errors", lines);
  lines.clear();
  for (const ParityChange& change : comparison.parity) {
    lines.push_back(parity_line(change));
  }
  print_list(out, "Parity", lines);
}

void print_noise(std::ostream& out, const ReportComparison& comparison) {
  std::vector<std::string> lines;
  lines.reserve(comparison.drift.size() + comparison.worst_control.size());
  for (const BaselineDrift& drift : comparison.drift) {
    lines.push_back("stage 01 itself, " + drift.name + ": " + format_change(drift.ratio) +
                    " (the machine, or what all stages share)");
  }
  bool any = false;
  for (const std::optional<ControlRatio>& control : comparison.worst_control) {
    if (control) {
      any = true;
      lines.push_back(std::string("A/A control on ") +
                      (control->several_ranks ? "several ranks: " : "one rank: ") +
                      format_change(control->ratio) + " at most, " + control->b +
                      "; the intervals allow for it");
    }
  }
  if (!any) {
    lines.push_back("no A/A controls: the intervals do not allow for what the machine does");
  }
  print_list(out, "Noise", lines);
}

void print_runs(std::ostream& out, const ReportComparison& comparison) {
  if (comparison.runs.empty()) {
    return;
  }
  static const std::vector<Column> columns = {
      {"run", true},     {"A ms", false},         {"B ms", false},
      {"change", false}, {"95 % interval", true}, {"verdict", true},
  };
  std::vector<std::vector<std::string>> rows;
  rows.reserve(comparison.runs.size());
  for (const RunChange& change : comparison.runs) {
    rows.push_back({
        change.name,
        format_significant(change.a_ms),
        format_significant(change.b_ms),
        format_change(change.ratio),
        change.ci95 ? "[" + format_change(change.ci95->low) + " .. " +
                          format_change(change.ci95->high) + "]"
                    : "-",
        verdict_name(change.verdict) + (change.reason.empty() ? "" : ": " + change.reason),
    });
  }
  out << '\n';
  for (const std::string& line : format_table(columns, rows)) {
    out << line << '\n';
  }
}

template <typename T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json run_to_json(const RunChange& change) {
  ordered_json ci95 = nullptr;
  if (change.ci95) {
    ci95 = {change.ci95->low, change.ci95->high};
  }
  return {
      {"name", change.name},
      {"kind", change.kind},
      {"a_ms", or_null(change.a_ms)},
      {"b_ms", or_null(change.b_ms)},
      {"ratio", or_null(change.ratio)},
      {"ci95", ci95},
      {"verdict", change.verdict == Verdict::kNone ? ordered_json(nullptr)
                                                   : ordered_json(verdict_name(change.verdict))},
      {"reason", change.reason.empty() ? ordered_json(nullptr) : ordered_json(change.reason)},
  };
}

}  // namespace

void print_comparison(std::ostream& out, const ReportFile& a, const ReportFile& b,
                      const ReportComparison& comparison) {
  print_identity(out, "A", a);
  print_identity(out, "B", b);
  print_changes(out, comparison);
  print_noise(out, comparison);
  print_runs(out, comparison);
  out << '\n'
      << comparison.count(Verdict::kSlower) << " slower beyond "
      << format_threshold(comparison.threshold) << " %, " << comparison.count(Verdict::kSame)
      << " unchanged, " << comparison.count(Verdict::kFaster) << " faster, "
      << comparison.count(Verdict::kNone) << " without a verdict; " << comparison.regressions()
      << (comparison.regressions() == 1 ? " regression" : " regressions") << '\n'
      << std::flush;
}

ordered_json comparison_document(const ReportFile& a, const ReportFile& b,
                                 const ReportComparison& comparison) {
  ordered_json document;
  document["schema_version"] = 1;
  document["a"] = identity(a);
  document["b"] = identity(b);
  document["threshold"] = comparison.threshold;
  document["changes"] = ordered_json::array();
  for (const FieldChange& change : comparison.changes) {
    document["changes"].push_back({{"field", change.field}, {"a", change.a}, {"b", change.b}});
  }
  document["machine_differs"] = comparison.machine_differs;
  document["only_in_a"] = comparison.only_in_a;
  document["only_in_b"] = comparison.only_in_b;
  document["errors"] = ordered_json::array();
  for (const ErrorChange& change : comparison.errors) {
    document["errors"].push_back({{"name", change.name},
                                  {"a", or_null(change.a)},
                                  {"b", or_null(change.b)},
                                  {"lost_speed", change.lost_speed}});
  }
  document["parity"] = ordered_json::array();
  for (const ParityChange& change : comparison.parity) {
    document["parity"].push_back(
        {{"runs", change.runs},
         {"a", {{"moved", or_null(change.moved_a)}, {"ok", change.ok_a}}},
         {"b", {{"moved", or_null(change.moved_b)}, {"ok", change.ok_b}}}});
  }
  document["drift"] = ordered_json::array();
  for (const BaselineDrift& drift : comparison.drift) {
    document["drift"].push_back({{"name", drift.name}, {"ratio", drift.ratio}});
  }
  const auto control_to_json = [](const std::optional<ControlRatio>& control) {
    return control ? ordered_json{{"a", control->a}, {"b", control->b}, {"ratio", control->ratio}}
                   : ordered_json(nullptr);
  };
  document["worst_control"] = {
      {"one_rank", control_to_json(comparison.worst_control[0])},
      {"several_ranks", control_to_json(comparison.worst_control[1])},
  };
  document["runs"] = ordered_json::array();
  for (const RunChange& change : comparison.runs) {
    document["runs"].push_back(run_to_json(change));
  }
  document["regressions"] = comparison.regressions();
  return document;
}

}  // namespace ddp::bench
