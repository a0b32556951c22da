#include "bench/run.hpp"

#include <fmt/ranges.h>

#include <fstream>

#include "bench/command.hpp"
#include "common/backends/traits.hpp"

namespace ddp::bench {
namespace {

using Words = std::vector<std::string>;

/// Command that times the pieces of a run, equal for equal shapes and ranks. Empty for peers, on
/// several nodes, and where stages.list says that the pieces are others.
Words pieces_command(const PlannedRun& planned, const Plan& plan) {
  const Run& run = planned.run;
  const bool has_backend = run.world_size > 1;
  Words argv;
  if (planned.row.is_peer() || !planned.row.has("pieces") || run.nodes > 1) {
    return argv;
  }
  if (has_backend && traits_of(run.backend).needs_mpirun) {  // its launcher must start the ranks
    argv = launcher_command(planned, plan);
  }
  argv.push_back(plan.settings.stage_dir + "/bench_micro");
  add_words(argv, "--suite pieces --layers {} --batch {} --nprocs {} --threads {} --device {}",
            fmt::join(run.layers, ","), *run.global_batch / run.world_size, run.world_size,
            run.threads, run.device);
  if (has_backend) {
    add_words(argv, "--backend {}", run.backend);
  }
  add_words(argv, "--benchmark_min_time=0.02 --benchmark_out_format=json");
  return argv;
}

/// Names of the runs of each command.
std::map<Words, Words> runs_by_command(const Plan& plan) {
  std::map<Words, Words> all;
  for (const PlannedRun& planned : plan.runs) {
    if (const Words command = pieces_command(planned, plan); !command.empty()) {
      all[command].push_back(planned.run.name);
    }
  }
  return all;
}

using PieceTimes = std::map<std::string, std::vector<double>>;  // milliseconds, by the piece's name

/// Adds the times of a call of bench_micro. A piece's name ends at a slash. @return what is wrong
std::string read_times(const std::string& path, PieceTimes& times_ms) {
  const auto document =
      nlohmann::json::parse(std::ifstream(path), nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) {
    return "its times are cut off, expected room for them in TMPDIR";
  }
  for (const auto& piece : document.at("benchmarks")) {
    if (!piece.value("error_occurred", false)) {
      const std::string name = piece.at("run_name").get<std::string>();
      times_ms[name.substr(0, name.find('/'))].push_back(piece.at("real_time").get<double>());
    }
  }
  return "";
}

/// Sets each piece to its median over the calls, because a whole launch may be slow.
void set_pieces(PieceTimes times_ms, Run& run) {
  const auto of = [&](const char* name) { return median(times_ms[name]); };
  run.pieces_ms = {of("data"), of("forward"), of("backward"), of("update"), of("all_reduce")};
  run.limit_ms = of("limit");
}

int calls_of_each(const Plan& plan) {
  return plan.settings.most_repetitions() > 1 ? 3 : 1;
}

}  // namespace

int count_piece_calls(const Plan& plan) {
  return static_cast<int>(runs_by_command(plan).size()) * calls_of_each(plan);
}

void measure_pieces(const Plan& plan, Session& session, Report& report) {
  const std::string out = session.scratch.path() + "/pieces.json";
  const auto commands = runs_by_command(plan);
  std::map<Words, PieceTimes> measured;
  for (int call = 0; call < calls_of_each(plan); ++call) {
    for (const auto& [command, names] : commands) {
      const auto run = std::ranges::find_if(report.runs, [&those = names](const Run& each) {
        return contains(those, each.name) && !each.error;
      });
      if (run == report.runs.end()) {
        continue;
      }
      const std::string what = "pieces of " + run->name;
      Words argv = command;
      argv.push_back("--benchmark_out=" + out);
      session.progress.start(what);
      const ChildResult child =
          run_child({.argv = argv, .timeout_s = plan.settings.timeout_s}, session);
      session.progress.finish();
      const std::string failure = child.ok() ? read_times(out, measured[command]) : child.failure();
      if (!failure.empty() && !child.interrupted && call == 0) {
        report.not_run.push_back({what, failure});
      }
    }
  }
  for (Run& run : report.runs) {
    for (const auto& [command, names] : commands) {
      if (contains(names, run.name)) {
        set_pieces(measured[command], run);
      }
    }
  }
  report.partial = report.partial || session.interrupted;
}

}  // namespace ddp::bench
