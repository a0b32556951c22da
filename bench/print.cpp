#include "bench/report.hpp"

#include <fmt/ranges.h>

#include <cstring>
#include <numeric>

#include "bench/tables.hpp"
#include "common/base/parse.hpp"

namespace ddp::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTilde =
    "~ from pairs of neighbouring launches, and not the quotient of the columns: launches differ.";

/// At most `width` bytes of `text`, with "..." for the rest.
std::string cut(const std::string& text, std::size_t width) {
  return text.size() <= width ? text : text.substr(0, width - 3) + "...";
}

void print_line(std::ostream& out, const std::string& line) {
  out << cut(line, kScreenWidth) << '\n';
}

/// Three significant digits, at most four after the point: "0.0412", "1230"; "-" for nothing.
std::string significant(std::optional<double> value) {
  if (!value) {
    return "-";
  }
  const double size = std::abs(*value);
  const int magnitude = size > 0 ? static_cast<int>(std::floor(std::log10(size))) : 0;
  return fmt::format("{:.{}f}", *value, std::clamp(2 - magnitude, 0, 4));
}

/// "1,234,567".
std::string count(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (std::size_t end = digits.size(); end > 3; end -= 3) {
    digits.insert(end - 3, ",");
  }
  return digits;
}

/// "1.85".
std::string ratio(double value) {
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

/// Value of a column's key; null if it is not known.
const Json& value_of(const Json& run, std::string key) {
  std::ranges::replace(key, '.', '/');
  return run.at(Json::json_pointer("/" + key));
}

/// " (1.26-2.07)", or nothing without an interval.
std::string in_brackets(const Json& ends) {
  return ends.is_null() ? "" : fmt::format(" ({}-{})", ratio(ends[0]), ratio(ends[1]));
}

/// Mark of a speed-up that is not the quotient of the columns: see kTilde.
std::string mark(double speedup, const Json& quotient) {
  const double apart = quotient.is_null() ? 1 : quotient.get<double>() / speedup;
  return apart > 1.1 || apart < 1 / 1.1 ? "~" : "";
}

/// Speed-ups of the same run in other reports.
std::string spread(const Json& elsewhere) {
  std::vector<double> speedups;
  for (const Json& one : elsewhere) {
    speedups.push_back(one["speedup"]);
  }
  if (speedups.empty()) {
    return "-";
  }
  const auto [low, high] = std::ranges::minmax(speedups);
  return speedups.size() == 1
             ? ratio(low)
             : fmt::format("{}-{} of {}", ratio(low), ratio(high), speedups.size());
}

/// A run's number as columns.list says.
std::string shown(const Column& column, const Json& run) {
  const Json& value = value_of(run, column.keys.at(0));
  if (column.shown == "sum") {
    return significant(std::accumulate(value.begin(), value.end(), 0.0, [](double sum, auto& part) {
      return sum + (part.is_null() ? 0 : part.template get<double>());
    }));
  }
  if (column.shown == "spread") {
    return spread(value);
  }
  if (value.is_null() || value.is_boolean()) {
    return column.shown == "ratio" && run["repetitions"].size() == 1 ? "1 launch"
           : value == true                                           ? "ok"
                                                                     : "-";
  }
  const auto number = value.get<double>();
  if (column.shown == "ratio") {
    return ratio(number) + mark(number, value_of(run, column.keys.at(2))) +
           in_brackets(value_of(run, column.keys.at(1)));
  }
  return column.shown == "count"   ? count(number)
         : column.shown == "share" ? fmt::format("{:.0f}%", 100 * number)
                                   : significant(number);
}

/// The columns that have a `place` on the screen: a run's numbers, or the titles.
/// @param elsewhere true: with the column of other reports, in place of samples/s
std::string cells(std::string Column::*place, const Run* run = nullptr, bool elsewhere = false) {
  const Json fields = run == nullptr ? Json() : Json(*run);
  std::string line;
  for (const Column& column : columns()) {
    const std::string& where = column.*place;
    const bool fits = elsewhere ? column.title != "samples/s" : column.shown != "spread";
    if (where != "-" && fits) {
      const std::size_t colon = where.find(':');
      const std::string title = colon == std::string::npos ? column.title : where.substr(colon + 1);
      line +=
          fmt::format(" {:>{}}", run == nullptr ? title : shown(column, fields), std::stoi(where));
    }
  }
  return line;
}

/// "2", or "1x2" for a rank with two threads.
std::string ranks(const Run& run) {
  return run.threads == 1 ? std::to_string(run.world_size)
                          : fmt::format("{}x{}", run.world_size, run.threads);
}

std::string dash_for_none(const std::string& name) {
  return name == "none" ? "-" : name;
}

void print_wrapped(std::ostream& out, const std::string& first_indent, const std::string& text) {
  std::string line = first_indent;
  const std::string indent(first_indent.size(), ' ');
  for (const std::string& part : split(text, ' ')) {
    const std::string word = cut(part, kScreenWidth - indent.size());
    if (line.size() > indent.size() && line.size() + 1 + word.size() > kScreenWidth) {
      out << line << '\n';
      line = indent;
    }
    line += (line.size() > indent.size() ? " " : "") + word;
  }
  out << line << '\n';
}

/// What a step of a user's program is.
std::string kind_of_step(const Workload& runs) {
  std::vector<const Run*> known = runs;
  std::erase_if(known, [](const Run* run) { return !run->global_batch; });
  if (known.empty()) {
    return std::ranges::any_of(runs, [](const Run* run) { return run->timed == "run"; })
               ? "whole runs of the same work, for it logs no steps"
               : runs.front()->scaling + " scaling assumed, for it logs no samples";
  }
  const std::int64_t batch = *known.front()->global_batch;
  const std::int64_t of_rank = batch / known.front()->world_size;
  const auto all = [&](auto has) { return std::ranges::all_of(known, has); };
  return all([&](const Run* run) { return *run->global_batch == of_rank * run->world_size; })
             ? fmt::format("{} samples for each rank", of_rank)
         : all([&](const Run* run) { return *run->global_batch == batch; })
             ? fmt::format("{} samples over all ranks", batch)
             : "samples of a step differ";
}

std::string title(const Workload& runs) {
  const Run& run = *runs.front();
  if (run.command) {
    const bool all_failed =
        std::ranges::all_of(runs, [](auto* one) { return one->error.has_value(); });
    return fmt::format("{}: {}{}", run.model, all_failed ? "" : kind_of_step(runs) + ": ",
                       printable(*run.command));
  }
  const bool weak = run.scaling == "weak";
  return fmt::format("{}: {} on {}, {} scaling, {} samples {}", run.model,
                     fmt::join(run.layers, "-"), run.device, run.scaling,
                     *run.global_batch / (weak ? run.world_size : 1),
                     weak ? "for each rank or thread" : "over all ranks");
}

void print_speeds(std::ostream& out, const Workload& runs) {
  constexpr const char* kDescription = "  {:<{}} {:<8} {:<7} {:>5}";
  const auto name = [](const Run* run) { return cut(run->program(), 30); };
  const auto length = [&](const Run* run) { return name(run).size(); };
  const std::size_t width = length(std::ranges::max(runs, {}, length));
  const bool elsewhere =
      std::ranges::any_of(runs, [](auto* run) { return !run->elsewhere.empty(); });
  print_line(out, "");
  print_line(out, title(runs));
  std::string titles = cells(&Column::speeds, nullptr, elsewhere);
  if (runs.front()->timed == "run") {
    titles.replace(titles.find("step ms"), std::strlen("step ms"), " run ms");
  }
  print_line(out,
             fmt::format(kDescription, "program", width, "launcher", "backend", "ranks") + titles);
  for (const Run* run : runs) {
    const std::string line =
        fmt::format(kDescription, name(run), width, dash_for_none(run->launcher),
                    dash_for_none(run->backend), ranks(*run));
    print_line(out, line + (run->has_speed() ? cells(&Column::speeds, run, elsewhere)
                                             : "  error: " + run->error.value_or("not timed")));
  }
}

/// Run to show in pieces: the fastest stage with pieces, if possible with several ranks.
const Run* run_in_pieces(const Workload& runs) {
  const auto has_pieces = [](const Run& run) { return run.pieces_ms.backward.has_value(); };
  const Run* const several =
      fastest_stage(runs, [&](const Run& run) { return has_pieces(run) && run.world_size > 1; });
  return several != nullptr ? several : fastest_stage(runs, has_pieces);
}

void print_pieces(std::ostream& out, const std::vector<Workload>& all) {
  constexpr const char* kDescription = "  {:<25} {:>5}";
  bool is_first = true;
  for (const Workload& runs : all) {
    const Run* const run = run_in_pieces(runs);
    if (run == nullptr) {
      continue;
    }
    if (is_first) {
      print_line(out, "");
      print_line(out,
                 "ms of a step: pieces alone (reduce: the all-reduces); exposed: what they "
                 "add; limit: bare products");
      print_line(out, fmt::format(kDescription, "program", "ranks") + cells(&Column::pieces));
      is_first = false;
    }
    const std::string name = fmt::format("{}: {}{}", run->model, run->program(),
                                         run->backend == "none" ? "" : " " + run->backend);
    print_line(out,
               fmt::format(kDescription, cut(name, 25), ranks(*run)) + cells(&Column::pieces, run));
  }
}

}  // namespace

void print(std::ostream& out, const Report& report) {
  print_line(out,
             fmt::format("{}, {} cores, LibTorch {}", report.machine.value("cpu_model", ""),
                         report.machine.value("cores", 0), report.software.value("libtorch", "")));
  for (const std::string& warning : {report.software.value("/blas/warning"_json_pointer, ""),
                                     report.machine.value("warning", "")}) {
    if (!warning.empty()) {
      print_wrapped(out, "", warning);
    }
  }
  const std::vector<Workload> all = workloads(report);
  for (const Workload& runs : all) {
    print_speeds(out, runs);
  }
  print_pieces(out, all);
  out << '\n';
  for (const Sentence& sentence : report.sentences) {
    const char* indent = "- ";
    for (const std::string& line : split(sentence.text, '\n')) {
      print_wrapped(out, std::exchange(indent, "  "), line);
    }
  }
  if (report.partial) {
    out << "This report is partial: the measurement was interrupted.\n";
  }
  if (!report.not_run.empty()) {  // "Not run: mpirun (not installed); nccl (no GPU)."
    std::vector<std::string> names;
    for (const NotRun& one : report.not_run) {
      names.push_back(fmt::format("{} ({})", one.what, one.reason));
    }
    // Two lines, with room for an early break.
    print_wrapped(out, "",
                  cut(fmt::format("Not run: {}.", fmt::join(names, "; ")), 2 * kScreenWidth - 30));
  }
  const auto is_marked = [](const Run& run) {
    return run.speedup && !mark(*run.speedup, Json(run.quotient)).empty();
  };
  if (std::ranges::any_of(report.runs, is_marked)) {
    print_wrapped(out, "", kTilde);
  }
  const auto is_single = [](const Run& run) {
    return run.has_speed() && run.kind != "control" && run.repetitions.size() == 1;
  };
  if (std::ranges::any_of(report.runs, is_single)) {
    print_line(out, "Programs with 1 launch are compared with nothing.");
  }
  out << "Steps are medians, brackets 95 % intervals. The rest: --json FILE, --html FILE.\n"
      << std::flush;
}

}  // namespace ddp::bench
