// bench/report/compare_report.cpp - what two reports differ in, for people.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "bench/report/compare.hpp"
#include "bench/report/format.hpp"
#include "bench/report/output_file.hpp"

namespace ddp::bench {
namespace {

/// "+4.2 %" of a ratio of 1.042; "-" for nothing.
std::string format_change(std::optional<double> ratio) {
  if (!ratio) {
    return "-";
  }
  const double percent = std::round(1000 * (*ratio - 1)) / 10;
  return fmt::format("{}{} %", percent > 0 ? "+" : "", format_fixed(percent == 0 ? 0 : percent, 1));
}

/// "5", "0.5": as it was given.
std::string format_threshold(double share) {
  std::string text = format_fixed(100 * share, 3);
  text.erase(text.find_last_not_of('0') + 1);
  text.erase(text.find_last_not_of('.') + 1);
  return text;
}

void print_identity(std::ostream& out, const char* letter, const Identity& identity) {
  out << letter << "  " << identity.file;
  for (const auto* part : {&identity.date, &identity.host, &identity.git_commit}) {
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
                const std::vector<std::string>& lines) {
  if (!lines.empty()) {
    out << fmt::format("\n{}\n  {}\n", title, fmt::join(lines, "\n  "));
  }
}

void print_changes(std::ostream& out, const ReportComparison& comparison) {
  constexpr std::size_t kShort = 90;  // both values fit on one line
  std::vector<std::string> changed;
  for (const FieldChange& change : comparison.changes) {
    const std::string a = dump_json(change.a);
    const std::string b = dump_json(change.b);
    const bool is_short = change.field.size() + a.size() + b.size() <= kShort;
    changed.push_back(is_short ? fmt::format("{}: {} -> {}", change.field, a, b)
                               : fmt::format("{}\n    A: {}\n    B: {}", change.field, a, b));
  }
  print_list(out, "Changed", changed);
  if (!comparison.machine_differs.empty()) {
    out << fmt::format(
        "warning: not the same machine ({} differ): the verdicts are about both, "
        "machine and program\n",
        fmt::join(comparison.machine_differs, ", "));
  }
  print_list(out, "Only in A", comparison.only_in_a);
  print_list(out, "Only in B", comparison.only_in_b);
  std::vector<std::string> errors;
  for (const ErrorChange& change : comparison.errors) {
    errors.push_back(change.b ? fmt::format("{}: error in B: {}", change.name, *change.b)
                              : fmt::format("{}: no error any more: {}", change.name, *change.a));
  }
  if (comparison.errors_in_both > 0) {
    errors.push_back(fmt::format("in both reports: {} of the runs", comparison.errors_in_both));
  }
  print_list(out, "Errors", errors);
  std::vector<std::string> parity;
  for (const auto& [runs, a, b] : comparison.parity) {
    parity.push_back(fmt::format(
        "moved {} -> {}, {} -> {}: {}{}", format_fixed(a.moved, 6), format_fixed(b.moved, 6),
        a.ok ? "ok" : "FAILED", b.ok ? "ok" : "FAILED", runs.front(),
        runs.size() > 1 ? fmt::format(" and {} more", runs.size() - 1) : ""));
  }
  print_list(out, "Parity", parity);
}

void print_noise(std::ostream& out, const ReportComparison& comparison) {
  std::vector<std::string> lines;
  for (const BaselineDrift& drift : comparison.drift) {
    lines.push_back(fmt::format("stage 01 itself, {}: {} (the machine, or what all stages share)",
                                drift.name, format_change(drift.ratio)));
  }
  for (const RateDrift& rate : comparison.rate_drift) {
    lines.push_back(
        fmt::format("the machine's arithmetic, {} busy at once: {}; the intervals allow for it",
                    rate.world_size == 1 ? "one rank" : fmt::format("{} ranks", rate.world_size),
                    format_change(rate.ratio)));
  }
  const auto& [one_rank, several_ranks] = comparison.worst_control;
  for (const auto& [ranks, control] :
       {std::pair("one rank", &one_rank), std::pair("several ranks", &several_ranks)}) {
    if (*control) {
      lines.push_back(fmt::format("A/A control on {}: {} at most, {}; the intervals allow for it",
                                  ranks, format_change((*control)->ratio), (*control)->b));
    }
  }
  if (!one_rank && !several_ranks) {
    lines.push_back("no A/A controls: the intervals do not allow for what the machine does");
  }
  print_list(out, "Noise", lines);
}

void print_runs(std::ostream& out, const std::vector<RunChange>& runs) {
  static constexpr Column kColumns[] = {
      {"run", true},     {"A ms", false},         {"B ms", false},
      {"change", false}, {"95 % interval", true}, {"verdict", true},
  };
  std::vector<std::vector<std::string>> rows;
  for (const RunChange& run : runs) {
    rows.push_back({
        run.name,
        format_significant(run.a_ms),
        format_significant(run.b_ms),
        format_change(run.ratio),
        run.ci95
            ? fmt::format("[{} .. {}]", format_change(run.ci95->low), format_change(run.ci95->high))
            : "-",
        run.verdict.value_or("no verdict") + (run.reason ? ": " + *run.reason : ""),
    });
  }
  out << fmt::format("\n{}\n", fmt::join(format_table(kColumns, rows), "\n"));
}

}  // namespace

void print_comparison(std::ostream& out, const ReportComparison& comparison) {
  print_identity(out, "A", comparison.a);
  print_identity(out, "B", comparison.b);
  print_changes(out, comparison);
  print_noise(out, comparison);
  if (!comparison.runs.empty()) {
    print_runs(out, comparison.runs);
  }
  out << fmt::format(
             "\n{} slower beyond {} %, {} unchanged, {} faster, {} without a verdict; {} "
             "regression{}\n",
             comparison.count("slower"), format_threshold(comparison.threshold),
             comparison.count("same"), comparison.count("faster"), comparison.count(std::nullopt),
             comparison.regressions, comparison.regressions == 1 ? "" : "s")
      << std::flush;
}

}  // namespace ddp::bench
