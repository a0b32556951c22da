#include <filesystem>

#include "bench/command.hpp"
#include "bench/report.hpp"

namespace ddp::bench {
namespace {

/// Path relative to the current folder, if it lies there.
std::string from_here(const std::string& path) {
  const std::string here = std::filesystem::current_path().string() + "/";
  return path.starts_with(here) ? path.substr(here.size()) : path;
}

/// Command for a shell. For a peer's Python it calls install.sh.
std::string shown_command(const PlannedRun& planned, const Plan& plan) {
  std::vector<std::string> argv =
      command_line(planned, plan, timed_length(planned, plan.settings), "FOLDER");
  std::ranges::transform(argv, argv.begin(), from_here);
  std::string before;
  if (planned.is_program()) {
    for (const auto& [name, value] : program_variables(planned.run, "FOLDER")) {
      before += fmt::format("{}={} ", name, *value);
    }
  }
  std::string line = shell_line(argv);
  if (planned.row.is_peer()) {
    const std::string& python = plan.pythons.at(planned.run.stage);
    line.replace(
        line.find(python), python.size(),
        fmt::format("$({}/install.sh {})", from_here(plan.settings.peers_dir), planned.run.stage));
  }
  return before + line;
}

}  // namespace

void list_benchmarks(std::ostream& out, const Plan& plan) {
  for (const PlannedRun& planned : plan.runs) {
    if (planned.run.kind != kNoCommunication) {
      out << planned.run.name << kBenchmarkSuffix << '\n';
    }
  }
}

void print_plan(std::ostream& out, const Plan& plan) {
  constexpr const char* kRow = "{:<7} {:<28} {:<8} {:<7} {:>5} {:>7} {:<7} {:>6} {:>4}  {}\n";
  out << fmt::format(kRow, "role", "program", "launcher", "backend", "ranks", "threads", "scaling",
                     "batch", "reps", "model");
  for (const PlannedRun& planned : plan.runs) {
    const Run& run = planned.run;
    out << fmt::format(kRow, run.kind, run.program(), run.launcher, run.backend, run.world_size,
                       run.threads, run.scaling,
                       run.global_batch ? std::to_string(*run.global_batch) : "-",
                       planned.repetitions, run.model);
  }
  out << "\nThe commands as they are timed. Each also runs once before, to compare weights: all "
         "with\n"
         "the same global batch, and those of --program as they are, to compare losses. FOLDER is\n"
         "one that bench makes, empty before each run.\n\n";
  for (const PlannedRun& planned : plan.runs) {
    out << fmt::format("{}: {}\n", planned.run.name, shown_command(planned, plan));
  }
  out << '\n';
  for (const std::string& note : plan.notes) {
    out << fmt::format("Note: {}\n", note);
  }
  for (const NotRun& not_run : plan.not_run) {
    out << fmt::format("Not run: {} ({})\n", not_run.what, not_run.reason);
  }
}

}  // namespace ddp::bench
