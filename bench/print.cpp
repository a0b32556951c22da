#include "bench/report.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "common/base/parse.hpp"

namespace ddp::bench {
namespace {

/// At most `width` bytes of `text`, with "..." for the rest.
std::string shorten(const std::string& text, std::size_t width) {
  return text.size() <= width ? text : text.substr(0, width - 3) + "...";
}

void print_line(std::ostream& out, const std::string& line) {
  out << shorten(line, kScreenWidth) << '\n';
}

/// Three significant digits, with at most four after the point: "0.0412", "1.23", "1230"; "-" for
/// nothing.
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

std::string speedup(const Run& run) {
  if (!run.speedup) {
    return "-";
  }
  return run.speedup_ci95 ? fmt::format("{} ({}-{})", ratio(*run.speedup),
                                        ratio(run.speedup_ci95->low), ratio(run.speedup_ci95->high))
                          : ratio(*run.speedup);
}

/// "2", or "1x2" for a rank with two threads.
std::string ranks(const Run& run) {
  return run.threads == 1 ? std::to_string(run.world_size)
                          : fmt::format("{}x{}", run.world_size, run.threads);
}

std::string dash_for_none(const std::string& name) {
  return name == "none" ? "-" : name;
}

/// Prints a text in lines that break between words.
void print_wrapped(std::ostream& out, const std::string& first_indent, const std::string& text) {
  std::string line = first_indent;
  const std::string indent(first_indent.size(), ' ');
  for (const std::string& part : split(text, ' ')) {
    const std::string word = shorten(part, kScreenWidth - indent.size());
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
  constexpr const char* kSpeed = " {:>7} {:>10} {:>16} {:>4} {:>6}";
  std::size_t width = 0;
  for (const Run* run : runs) {
    width = std::max(width, run->program().size());
  }
  print_line(out, "");
  print_line(out, title(*runs.front()));
  print_line(out, fmt::format(kDescription, "program", width, "launcher", "backend", "ranks") +
                      fmt::format(kSpeed, "step ms", "samples/s", "speed-up", "eff.", "parity"));
  for (const Run* run : runs) {
    const std::string efficiency =
        run->efficiency ? fmt::format("{:.0f}%", 100 * *run->efficiency) : "-";
    print_line(out, fmt::format(kDescription, run->program(), width, dash_for_none(run->launcher),
                                dash_for_none(run->backend), ranks(*run)) +
                        (run->has_speed() ? fmt::format(kSpeed, significant(run->step_ms.median),
                                                        count(*run->samples_per_second),
                                                        speedup(*run), efficiency, "ok")
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
  constexpr const char* kRow =
      "  {:<25} {:>5} {:>6} {:>7} {:>8} {:>6} {:>6} {:>6} {:>6} {:>7} {:>6}";
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
      print_line(out, fmt::format(kRow, "program", "ranks", "data", "forward", "backward", "update",
                                  "reduce", "= sum", "step", "exposed", "limit"));
      is_first = false;
    }
    const auto& [data, forward, backward, update, reduce] = run->pieces_ms;
    const double sum = data.value_or(0) + forward.value_or(0) + backward.value_or(0) +
                       update.value_or(0) + reduce.value_or(0);
    const std::string name = fmt::format("{}: {}{}", run->model, run->program(),
                                         run->backend == "none" ? "" : " " + run->backend);
    print_line(out,
               fmt::format(kRow, shorten(name, 25), ranks(*run), significant(data),
                           significant(forward), significant(backward), significant(update),
                           significant(reduce), significant(sum), significant(run->step_ms.median),
                           significant(run->exposed_comm_ms), significant(run->limit_ms)));
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
  print_wrapped(out, "", shorten(text, 2 * kScreenWidth - 30));
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
