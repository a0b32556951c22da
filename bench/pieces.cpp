#include "bench/run.hpp"

#include <fmt/ranges.h>

#include <fstream>
#include <map>
#include <set>

#include "bench/command.hpp"
#include "bench/statistics.hpp"

namespace ddp::bench {
namespace {

/// Shapes and ranks on which the time of a piece depends.
struct Shapes {
  std::vector<std::int64_t> layers;
  std::int64_t batch = 0;  ///< samples per rank
  int world_size = 1;
  int threads = 1;
  std::string backend;
  auto operator<=>(const Shapes&) const = default;
};

/// Nothing for stage 02 (replicas in a process), and for peers, by_hand and fused (other pieces).
std::optional<Shapes> shapes_of(const Run& run) {
  if (run.kind == "peer" || run.stage == "02_data_parallel" || run.variant == "by_hand" ||
      run.variant == "fused" || run.nodes > 1) {
    return std::nullopt;
  }
  return Shapes{run.layers, run.global_batch / run.world_size, run.world_size, run.threads,
                run.world_size > 1 ? run.backend : "none"};
}

std::vector<std::string> micro_command(const Run& run, const Shapes& shapes, const Plan& plan,
                                       const std::string& out) {
  std::vector<std::string> argv;
  if (shapes.backend == "mpi") {  // mpirun must start its ranks
    argv = launcher_command(run, plan);
  }
  argv.insert(argv.end(),
              {plan.settings.stage_dir + "/bench_micro", "--suite", "pieces", "--layers",
               fmt::format("{}", fmt::join(shapes.layers, ",")), "--batch",
               std::to_string(shapes.batch), "--nprocs", std::to_string(shapes.world_size),
               "--threads", std::to_string(shapes.threads), "--device", plan.settings.device});
  if (shapes.backend != "none") {
    argv.insert(argv.end(), {"--backend", shapes.backend});
  }
  argv.insert(argv.end(), {"--benchmark_min_time=0.02", "--benchmark_out=" + out,
                           "--benchmark_out_format=json"});
  return argv;
}

using PieceTimes = std::map<std::string, std::vector<double>>;  // milliseconds, by the piece's name

/// Adds the times of a call of bench_micro. A piece's name ends at a slash. @return what is wrong
std::string read_times(const std::string& path, PieceTimes& times_ms) {
  const auto document =
      nlohmann::json::parse(std::ifstream(path), nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) {
    return "its times are cut off, expected room for them in TMPDIR";
  }
  for (const auto& entry : document.at("benchmarks")) {
    if (!entry.value("error_occurred", false)) {
      const std::string name = entry.at("run_name").get<std::string>();
      times_ms[name.substr(0, name.find('/'))].push_back(entry.at("real_time").get<double>());
    }
  }
  return "";
}

/// Sets each piece to its median over the calls, because a whole launch may be slow.
void fill(PieceTimes times_ms, Run& run) {
  const auto of = [&](const char* name) { return median(times_ms[name]); };
  run.pieces_ms = {of("data"), of("forward"), of("backward"), of("update"), of("all_reduce")};
  run.limit_ms = of("limit");
}

int calls_of_each(const Plan& plan) {
  return plan.settings.most_repetitions() > 1 ? 3 : 1;
}

}  // namespace

int count_piece_calls(const Plan& plan) {
  std::set<Shapes> all;
  for (const Entry& entry : plan.entries) {
    if (const auto shapes = shapes_of(entry.run)) {
      all.insert(*shapes);
    }
  }
  return static_cast<int>(all.size()) * calls_of_each(plan);
}

void measure_pieces(const Plan& plan, Session& session, Report& report) {
  const std::string out = session.scratch.path() + "/pieces.json";
  std::map<Shapes, const Run*> first;  // run with these shapes
  for (const Run& run : report.runs) {
    if (const std::optional<Shapes> shapes = shapes_of(run); shapes && !run.error) {
      first.try_emplace(*shapes, &run);
    }
  }
  std::map<Shapes, PieceTimes> measured;
  for (int call = 0; call < calls_of_each(plan); ++call) {
    for (const auto& [shapes, run] : first) {
      session.progress.start("pieces of " + run->name);
      const ChildResult child = run_child(
          {.argv = micro_command(*run, shapes, plan, out), .timeout_s = plan.settings.timeout_s},
          session);
      session.progress.finish();
      const std::string failure = child.ok() ? read_times(out, measured[shapes]) : child.failure();
      if (!failure.empty() && !child.interrupted && call == 0) {
        report.not_run.push_back({"pieces of " + run->name, failure});
      }
    }
  }
  for (Run& run : report.runs) {
    if (const std::optional<Shapes> shapes = shapes_of(run)) {
      fill(measured[*shapes], run);
    }
  }
  report.partial = report.partial || session.interrupts.requested();
}

}  // namespace ddp::bench
