#include "bench/report/terminal_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

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
    {"what", true},       {"launcher", true},  {"backend", true},  {"ranks", false},
    {"step ms", false},   {"no comm", false},  {"exposed", false}, {"alone", false},
    {"predicted", false}, {"residual", false}, {"floor", false},   {"step/floor", false},
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
               format_significant(run->comm.exposed_by_difference_ms),
               format_significant(run->comm.alone_ms),
               format_significant(run->predicted_step_ms),
               residual ? (*residual < 0 ? "-" : "+") + format_percent(std::abs(*residual)) : "-",
               format_significant(floor_ms),
               format_over_floor(*run),
           });
  }
  if (!rows.empty()) {
    out << "\n  in ms. no comm: the step without communication; exposed: what communication adds "
           "(- where\n"
           "  that may be 0); alone: its all-reduces by themselves; predicted: no comm, and the\n"
           "  all-reduces by a model; residual: measured over that, less 1; floor: the least by "
           "this\n"
           "  machine's limits\n"
        << fmt::format("{}\n", fmt::join(format_table(kLimitColumns, rows), "\n"));
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

}  // namespace

void print_terminal_report(std::ostream& out, const Report& report) {
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
