#include "bench/report/compare_report.hpp"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "bench/report/field_json.hpp"
#include "bench/report/format.hpp"
#include "bench/report/output_file.hpp"
#include "bench/report/text_table.hpp"

namespace ddp::bench {
namespace {

using nlohmann::ordered_json;

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
  const std::string a = dump_json(change.a);
  const std::string b = dump_json(change.b);
  if (change.field.size() + a.size() + b.size() <= kShort) {
    lines.push_back(change.field + ": " + a + " -> " + b);
    return;
  }
  lines.push_back(change.field);
  lines.push_back("  A: " + a);
  lines.push_back("  B: " + b);
}

void print_identity(std::ostream& out, const char* letter, const Identity& identity) {
  out << letter << "  " << identity.file;
  for (const ordered_json* part : {&identity.date, &identity.host, &identity.git_commit}) {
    if (part->is_string()) {
      out << ", " << part->get<std::string>();
    }
  }
  if (identity.load_average.is_array()) {
    out << ", load before it " << dump_json(identity.load_average);
  }
  out << (identity.partial ? ", INTERRUPTED before its end" : "") << '\n';
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
  std::string line = "moved " + format_fixed(change.a.moved, 6) + " -> " +
                     format_fixed(change.b.moved, 6) + (change.a.ok ? ", ok" : ", FAILED") +
                     (change.b.ok ? " -> ok: " : " -> FAILED: ") + change.runs.front();
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
  for (const BaselineDrift& drift : comparison.drift) {
    lines.push_back("stage 01 itself, " + drift.name + ": " + format_change(drift.ratio) +
                    " (the machine, or what all stages share)");
  }
  const WorstControl& worst = comparison.worst_control;
  for (const auto& [ranks, control] :
       {std::pair("one rank", &worst.one_rank), std::pair("several ranks", &worst.several_ranks)}) {
    if (*control) {
      lines.push_back(std::string("A/A control on ") + ranks + ": " +
                      format_change((*control)->ratio) + " at most, " + (*control)->b +
                      "; the intervals allow for it");
    }
  }
  if (!worst.one_rank && !worst.several_ranks) {
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
        change.verdict.value_or("no verdict") + (change.reason ? ": " + *change.reason : ""),
    });
  }
  out << '\n';
  for (const std::string& line : format_table(columns, rows)) {
    out << line << '\n';
  }
}

}  // namespace

void print_comparison(std::ostream& out, const ReportComparison& comparison) {
  print_identity(out, "A", comparison.a);
  print_identity(out, "B", comparison.b);
  print_changes(out, comparison);
  print_noise(out, comparison);
  print_runs(out, comparison);
  out << '\n'
      << comparison.count("slower") << " slower beyond " << format_threshold(comparison.threshold)
      << " %, " << comparison.count("same") << " unchanged, " << comparison.count("faster")
      << " faster, " << comparison.count(std::nullopt) << " without a verdict; "
      << comparison.regressions << (comparison.regressions == 1 ? " regression" : " regressions")
      << '\n'
      << std::flush;
}

ordered_json comparison_document(const ReportComparison& comparison) {
  return as_json(comparison);
}

}  // namespace ddp::bench
