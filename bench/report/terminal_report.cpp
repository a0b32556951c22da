#include "bench/report/terminal_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "bench/report/catalog.hpp"
#include "bench/report/conclusions.hpp"
#include "bench/report/format.hpp"

namespace ddp::bench {
namespace {

constexpr std::size_t kWidth = 100;

constexpr Column kSpeedColumns[] = {
    {"stage", true},       {"launcher", true},     {"backend", true},    {"ranks", false},
    {"step ms", false},    {"[p10 .. p90]", true}, {"samples/s", false}, {"by clock", false},
    {"step vs 01", false}, {"efficiency", false},  {"parity", true},
};

constexpr Column kLimitColumns[] = {
    {"what", true},       {"launcher", true},  {"backend", true}, {"ranks", false},
    {"step ms", false},   {"no comm", false},  {"adds", false},   {"alone", false},
    {"predicted", false}, {"residual", false}, {"floor", false},  {"step/floor", false},
};

constexpr Column kProgramColumns[] = {
    {"program", true},  {"launcher", true},    {"backend", true},     {"ranks", false},
    {"step ms", false}, {"memory MiB", false}, {"start-up s", false}, {"lines of code", false},
};

/// What all tables begin with.
std::vector<std::string> heading_cells(const Run& run) {
  const auto dash_for_none = [](const std::string& text) { return text == "none" ? "-" : text; };
  return {run.title(), dash_for_none(run.launcher), dash_for_none(run.backend),
          std::to_string(run.world_size), format_significant(run.step_ms.median)};
}

std::vector<std::string> speed_cells(const Run& run, const Report& report) {
  const Comparison* const comparison = report.comparison_of(run);
  std::optional<double> ratio = comparison == nullptr ? std::nullopt : comparison->ratio_median;
  if (report.baseline_of(run) == &run) {
    ratio = 1.0;
  }
  const bool is_judged = run.parity.moved || run.parity.reference_moved;
  std::vector<std::string> cells = heading_cells(run);
  append(cells,
         {
             run.step_ms.p10 ? fmt::format("[{} .. {}]", format_significant(run.step_ms.p10),
                                           format_significant(run.step_ms.p90))
                             : "",
             format_count(run.samples_per_second),
             format_count(run.wall_samples_per_second),
             ratio ? format_significant(ratio) + "x" : "-",
             run.efficiency && *run.efficiency < 0.01 ? "<0.01" : format_fixed(run.efficiency, 2),
             run.parity.ok ? "ok"
             : is_judged   ? "FAILED"
                           : "-",
         });
  return cells;
}

void print_speeds(std::ostream& out, const std::vector<const Run*>& runs, const Report& report) {
  std::vector<std::vector<std::string>> rows;
  for (const Run* run : runs) {
    rows.push_back(speed_cells(*run, report));
  }
  const std::vector<std::string> lines = format_table(kSpeedColumns, rows);
  out << lines[0] << '\n';
  for (std::size_t i = 0; i < runs.size(); ++i) {
    out << lines[i + 1] << '\n';
    if (runs[i]->error) {
      out << "      error: " << *runs[i]->error << '\n';
    }
  }
}

/// "3.1x", but "overhead-bound" where the number would say no more.
std::string format_over_floor(const Run& run) {
  const double ratio = *run.step_ms.median / run.floor_ms.value_or(0);
  return !run.floor_ms || !std::isfinite(ratio)          ? "-"
         : ratio > kAllOverhead && run.bound.has_value() ? *run.bound + "-bound"
                                                         : format_significant(ratio) + "x";
}

/// What communication adds to the step: "~0" where it cannot be told from nothing.
std::string format_added(const Communication& comm) {
  return !comm.exposed_by_difference_ms && comm.exposed_by_difference_ci95_ms
             ? "~0"
             : format_significant(comm.exposed_by_difference_ms);
}

/// What a step is made of and what it could be, of the runs that say so.
void print_limits(std::ostream& out, const std::vector<const Run*>& runs) {
  std::vector<std::vector<std::string>> rows;
  for (const Run* run : runs) {
    const std::optional<double>& residual = run->prediction.residual;
    const std::optional<double>& floor_ms = run->floor_ms;
    if (!run->has_speed() || (!floor_ms && !run->predicted_step_ms && !run->no_comm_step_ms)) {
      continue;
    }
    rows.push_back(heading_cells(*run));
    append(rows.back(),
           {
               format_significant(run->no_comm_step_ms),
               format_added(run->comm),
               format_significant(run->comm.alone_ms),
               format_significant(run->predicted_step_ms),
               residual ? (*residual < 0 ? "-" : "+") + format_percent(std::abs(*residual)) : "-",
               format_significant(floor_ms),
               format_over_floor(*run),
           });
  }
  if (!rows.empty()) {
    out << '\n' << fmt::format("{}\n", fmt::join(format_table(kLimitColumns, rows), "\n"));
  }
}

/// What it costs to write and to start the programs, beside peers.
void print_programs(std::ostream& out, const std::vector<const Run*>& runs) {
  std::vector<std::vector<std::string>> rows;
  for (const Run* run : runs) {
    const std::optional<double>& startup_ms = run->startup_ms;
    rows.push_back(heading_cells(*run));
    append(rows.back(),
           {format_count(run->job_peak_rss_mib),
            format_significant(startup_ms ? std::optional(*startup_ms / 1e3) : std::nullopt),
            run->lines_of_code ? std::to_string(*run->lines_of_code) : "-"});
  }
  if (std::ranges::any_of(runs, &Run::is_peer)) {
    out << "\n  beside peers: memory of all ranks, start-up from the command to the first step,\n"
           "  lines of the program that trains, without what surrounds it in both\n"
        << fmt::format("{}\n", fmt::join(format_table(kProgramColumns, rows), "\n"));
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

void print_conclusions(std::ostream& out, const std::vector<Conclusion>& conclusions) {
  for (const auto& [question, texts] : by_question(conclusions)) {
    out << question << '\n';
    for (const std::string& text : texts) {
      print_item(out, text);
    }
  }
}

std::string heading(const Run& run) {
  const Workload* const workload = find_workload(run.model);
  const bool weak = run.scaling == "weak";
  return fmt::format("{}: {}{} samples {} ({} scaling)", run.model,
                     workload == nullptr ? "" : workload->description + ", ",
                     weak ? run.global_batch / run.world_size : run.global_batch,
                     weak ? "per rank" : "over all ranks", weak ? "weak" : "strong");
}

/// "6", or "6 to 9": launches of each program that were timed.
std::string launches_of(const Report& report) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::int64_t most = 0;
  for (const Run& run : report.runs) {
    if (run.has_speed()) {
      least = std::min(least, run.slow_launches.n);
      most = std::max(most, run.slow_launches.n);
    }
  }
  return least >= most ? std::to_string(most) : fmt::format("{} to {}", least, most);
}

void print_legend(std::ostream& out, const Report& report) {
  out << fmt::format(R"(
Launches of each program, in turns with the others: {}. Times are medians of their steps.
  samples/s: in the median step; by clock: over all timed steps, slow launches included.
  step vs 01: over stage 01's step, from launches of the same turn, so not quite the quotient of
  the column; with weak scaling N ranks, or threads, do N times the work in it. efficiency:
  samples/s over stage 01's, for each rank or thread. parity ok: it ended on stage 01's weights.
  no comm: the step without communication; adds: what communication adds (~0: cannot be told
  from 0); alone: its all-reduces by themselves; predicted: no comm, and the all-reduces by a
  model; residual: measured over that, less 1; floor: the least that arithmetic, memory and
  communication allow at the rates measured here. All in ms.
)",
                     launches_of(report));
}

}  // namespace

void print_terminal_report(std::ostream& out, const Report& report) {
  print_legend(out, report);
  for (const std::vector<const Run*>& runs : report.workloads()) {
    out << '\n' << heading(*runs.front()) << '\n';
    print_speeds(out, runs, report);
    print_limits(out, runs);
    print_programs(out, runs);
  }
  out << "\nWhat to conclude (of a ratio, in brackets: its 95 % interval)\n";
  print_conclusions(out, report.conclusions);
  out << std::flush;
}

}  // namespace ddp::bench
