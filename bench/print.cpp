#include "bench/report.hpp"

#include <fmt/ranges.h>

#include <numeric>

#include "bench/tables.hpp"
#include "common/base/parse.hpp"

namespace ddp::bench {
namespace {

using Json = nlohmann::ordered_json;

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
const Json& value_of(const Json& run, const std::string& key) {
  const Json* value = &run;
  for (const std::string& name : split(key, '.')) {
    value = &value->at(name);
  }
  return *value;
}

/// A run's number as columns.list says.
std::string shown(const Column& column, const Json& run) {
  const Json& value = value_of(run, column.keys.at(0));
  if (column.shown == "sum") {
    return significant(std::accumulate(value.begin(), value.end(), 0.0, [](double sum, auto& part) {
      return sum + (part.is_null() ? 0 : part.template get<double>());
    }));
  }
  if (value.is_null() || value.is_boolean()) {
    return value == true ? "ok" : "-";
  }
  const auto number = value.get<double>();
  if (column.shown == "ratio") {
    const Json& ends = value_of(run, column.keys.at(1));
    return ratio(number) +
           (ends.is_null() ? "" : fmt::format(" ({}-{})", ratio(ends[0]), ratio(ends[1])));
  }
  return column.shown == "count"   ? count(number)
         : column.shown == "share" ? fmt::format("{:.0f}%", 100 * number)
                                   : significant(number);
}

/// The columns that have a `place`, `text_of` in each.
template <typename TextOf>
std::string cells(std::string Column::*place, TextOf text_of) {
  std::string line;
  for (const Column& column : columns()) {
    if (const std::string& where = column.*place; where != "-") {
      line += fmt::format(" {:>{}}", text_of(column), std::stoi(where));
    }
  }
  return line;
}

std::string titles(std::string Column::*place) {
  return cells(place, [place](const Column& column) {
    const std::string& where = column.*place;
    return where.find(':') == std::string::npos ? column.title : where.substr(where.find(':') + 1);
  });
}

std::string numbers(std::string Column::*place, const Run& run) {
  const Json fields = run;
  return cells(place, [&fields](const Column& column) { return shown(column, fields); });
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

std::string title(const Run& run) {
  const bool weak = run.scaling == "weak";
  const std::string batch =
      weak ? fmt::format("{} samples for each rank or thread", run.global_batch / run.world_size)
           : fmt::format("{} samples over all ranks", run.global_batch);
  return fmt::format("{}: {} on {}, {} scaling, {}", run.model, fmt::join(run.layers, "-"),
                     run.device, run.scaling, batch);
}

void print_speeds(std::ostream& out, const Workload& runs) {
  constexpr const char* kDescription = "  {:<{}} {:<8} {:<7} {:>5}";
  const auto length = [](const Run* run) { return run->program().size(); };
  const std::size_t width = length(std::ranges::max(runs, {}, length));
  print_line(out, "");
  print_line(out, title(*runs.front()));
  print_line(out, fmt::format(kDescription, "program", width, "launcher", "backend", "ranks") +
                      titles(&Column::speeds));
  for (const Run* run : runs) {
    print_line(out, fmt::format(kDescription, run->program(), width, dash_for_none(run->launcher),
                                dash_for_none(run->backend), ranks(*run)) +
                        (run->has_speed() ? numbers(&Column::speeds, *run)
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
      print_line(out, fmt::format(kDescription, "program", "ranks") + titles(&Column::pieces));
      is_first = false;
    }
    const std::string name = fmt::format("{}: {}{}", run->model, run->program(),
                                         run->backend == "none" ? "" : " " + run->backend);
    print_line(out, fmt::format(kDescription, cut(name, 25), ranks(*run)) +
                        numbers(&Column::pieces, *run));
  }
}

/// Prints "Not run: mpirun (not installed); nccl (no GPU)."
void print_not_run(std::ostream& out, const std::vector<NotRun>& not_run) {
  if (not_run.empty()) {
    return;
  }
  std::vector<std::string> names;
  for (const NotRun& one : not_run) {
    names.push_back(fmt::format("{} ({})", one.what, one.reason));
  }
  // Two lines, with room for an early break.
  const std::string text = fmt::format("Not run: {}.", fmt::join(names, "; "));
  print_wrapped(out, "", cut(text, 2 * kScreenWidth - 30));
}

}  // namespace

void print(std::ostream& out, const Report& report) {
  print_line(out,
             fmt::format("{}, {} cores, LibTorch {}", report.machine.value("cpu_model", ""),
                         report.machine.value("cores", 0), report.software.value("libtorch", "")));
  const std::vector<Workload> all = workloads(report);
  for (const Workload& runs : all) {
    print_speeds(out, runs);
  }
  print_pieces(out, all);
  out << '\n';
  for (const Sentence& sentence : report.sentences) {
    print_wrapped(out, "- ", sentence.text);
  }
  if (report.partial) {
    out << "This report is partial: the measurement was interrupted.\n";
  }
  print_not_run(out, report.not_run);
  out << "Steps are medians, brackets 95 % intervals. The rest: --json FILE, --html FILE.\n"
      << std::flush;
}

}  // namespace ddp::bench
