#include "bench/report/terminal_report.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "bench/report/conclusions.hpp"
#include "bench/report/format.hpp"
#include "bench/report/text_table.hpp"
#include "bench/run/catalog.hpp"

namespace ddp::bench {
namespace {

constexpr std::size_t kWidth = 100;

const std::vector<Column>& columns() {
  static const std::vector<Column> result = {
      {"stage", true},       {"launcher", true},     {"backend", true},    {"ranks", false},
      {"step ms", false},    {"[p10 .. p90]", true}, {"samples/s", false}, {"step vs 01", false},
      {"efficiency", false}, {"parity", true},
  };
  return result;
}

std::string dash_for_none(const std::string& text) {
  return text == "none" ? "-" : text;
}

std::string format_efficiency(std::optional<double> efficiency) {
  return efficiency && *efficiency < 0.01 ? "<0.01" : format_fixed(efficiency, 2);
}

std::vector<std::string> cells(const Run& run, const Report& report) {
  const Comparison* const comparison = report.comparison_of(run);
  std::optional<double> ratio = comparison == nullptr ? std::nullopt : comparison->ratio_median;
  if (report.baseline_of(run) == &run) {
    ratio = 1.0;
  }
  const std::string spread = run.step_ms.p10 ? "[" + format_significant(run.step_ms.p10) + " .. " +
                                                   format_significant(run.step_ms.p90) + "]"
                                             : "";
  const bool judged = run.parity.moved || run.parity.reference_moved;
  return {
      run.title(),
      dash_for_none(run.launcher),
      dash_for_none(run.backend),
      std::to_string(run.world_size),
      format_significant(run.step_ms.median),
      spread,
      format_count(run.samples_per_second),
      ratio ? format_significant(ratio) + "x" : "-",
      format_efficiency(run.efficiency),
      run.parity.ok ? "ok"
      : judged      ? "FAILED"
                    : "-",
  };
}

void print_table(std::ostream& out, const std::vector<const Run*>& runs, const Report& report) {
  std::vector<std::vector<std::string>> rows;
  rows.reserve(runs.size());
  for (const Run* run : runs) {
    rows.push_back(cells(*run, report));
  }
  const std::vector<std::string> lines = format_table(columns(), rows);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    out << lines[i] << '\n';
    if (i > 0 && runs[i - 1]->error) {
      out << "      error: " << *runs[i - 1]->error << '\n';
    }
  }
}

const std::vector<Column>& limit_columns() {
  static const std::vector<Column> result = {
      {"what", true},       {"launcher", true},  {"backend", true},  {"ranks", false},
      {"step ms", false},   {"no comm", false},  {"exposed", false}, {"alone", false},
      {"predicted", false}, {"residual", false}, {"floor", false},   {"step/floor", false},
  };
  return result;
}

/// What a step is made of and what it could be, of the runs that say so.
void print_limits(std::ostream& out, const std::vector<const Run*>& runs) {
  std::vector<std::vector<std::string>> rows;
  for (const Run* run : runs) {
    if (!run->has_speed() || (!run->floor_ms && !run->predicted_step_ms && !run->no_comm_step_ms)) {
      continue;
    }
    const std::optional<double>& step_ms = run->step_ms.median;
    const std::optional<double>& residual = run->prediction.residual;
    const std::optional<double>& floor_ms = run->floor_ms;
    rows.push_back({
        run->title(),
        dash_for_none(run->launcher),
        dash_for_none(run->backend),
        std::to_string(run->world_size),
        format_significant(step_ms),
        format_significant(run->no_comm_step_ms),
        format_significant(run->comm.exposed_by_difference_ms),
        format_significant(run->comm.alone_ms),
        format_significant(run->predicted_step_ms),
        residual ? (*residual < 0 ? "-" : "+") + format_percent(std::abs(*residual)) : "-",
        format_significant(floor_ms),
        floor_ms && *floor_ms > 0 ? format_significant(*step_ms / *floor_ms) + "x" : "-",
    });
  }
  if (rows.empty()) {
    return;
  }
  out << "\n  in ms: without communication, the difference, communication alone; predicted from "
         "these;\n  the least this machine's measured limits allow\n";
  for (const std::string& line : format_table(limit_columns(), rows)) {
    out << line << '\n';
  }
}

/// "- " and the sentence, broken between words.
void print_item(std::ostream& out, const std::string& sentence) {
  std::string line = "- ";
  for (std::size_t at = 0; at < sentence.size();) {
    const std::size_t space = std::min(sentence.find(' ', at), sentence.size());
    const std::string word = sentence.substr(at, space - at);
    if (line.size() > 2 && line.size() + word.size() > kWidth) {
      line.erase(line.find_last_not_of(' ') + 1);
      out << line << '\n';
      line = "  ";
    }
    line += word + " ";
    at = space + 1;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  out << line << '\n';
}

std::string heading(const Run& run) {
  const Workload* const workload = find_workload(run.model);
  const std::string batch =
      run.scaling == "weak"
          ? std::to_string(run.global_batch / run.world_size) + " samples per rank (weak scaling)"
          : std::to_string(run.global_batch) + " samples over all ranks (strong scaling)";
  return run.model + ": " + (workload == nullptr ? "" : workload->description + ", ") + batch;
}

/// Runs of one workload and kind of scaling, without controls, which speak through other runs.
std::vector<std::vector<const Run*>> group(const std::vector<Run>& runs) {
  std::vector<std::vector<const Run*>> groups;
  for (const Run& run : runs) {
    if (run.is_control()) {
      continue;
    }
    const auto found = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return same_work(*group.front(), run);
    });
    if (found == groups.end()) {
      groups.push_back({&run});
    } else {
      found->push_back(&run);
    }
  }
  return groups;
}

}  // namespace

void print_terminal_report(std::ostream& out, const Report& report,
                           const std::vector<std::string>& notes) {
  const std::vector<std::vector<const Run*>> groups = group(report.runs);
  for (const std::vector<const Run*>& runs : groups) {
    out << '\n' << heading(*runs.front()) << '\n';
    print_table(out, runs, report);
    print_limits(out, runs);
  }
  out << "\nWhat to conclude\n";
  for (const std::vector<const Run*>& runs : groups) {
    out << runs.front()->model << ", " << runs.front()->scaling << " scaling\n";
    for (const std::string& sentence : conclude(report, runs)) {
      print_item(out, sentence);
    }
  }
  const std::vector<std::string> overall = conclude_overall(report, notes);
  if (!overall.empty()) {
    out << "All of it\n";
  }
  for (const std::string& sentence : overall) {
    print_item(out, sentence);
  }
  out << std::flush;
}

}  // namespace ddp::bench
