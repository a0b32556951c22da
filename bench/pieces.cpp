#include "bench/run.hpp"

#include <fmt/ranges.h>

#include <fstream>
#include <set>

#include "bench/command.hpp"
#include "common/backends/traits.hpp"

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

/// Nothing for peers, on several nodes, and where stages.list says that the pieces are others.
std::optional<Shapes> shapes_of(const PlannedRun& planned) {
  const Run& run = planned.run;
  if (planned.row.is_peer() || !planned.row.has("pieces") || run.nodes > 1) {
    return std::nullopt;
  }
  return Shapes{run.layers, run.global_batch / run.world_size, run.world_size, run.threads,
                run.world_size > 1 ? run.backend : "none"};
}

std::vector<std::string> micro_command(const Run& run, const Shapes& shapes, const Plan& plan,
                                       const std::string& out) {
  std::vector<std::string> argv;
  if (traits_of(shapes.backend).needs_mpirun) {  // its launcher must start the ranks
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
  for (const auto& piece : document.at("benchmarks")) {
    if (!piece.value("error_occurred", false)) {
      const std::string name = piece.at("run_name").get<std::string>();
      times_ms[name.substr(0, name.find('/'))].push_back(piece.at("real_time").get<double>());
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
  for (const PlannedRun& planned : plan.runs) {
    if (const auto shapes = shapes_of(planned)) {
      all.insert(*shapes);
    }
  }
  return static_cast<int>(all.size()) * calls_of_each(plan);
}

void measure_pieces(const Plan& plan, Session& session, Report& report) {
  const std::string out = session.scratch.path() + "/pieces.json";
  std::map<Shapes, std::vector<Run*>> runs;  // of the report, with these shapes
  for (const PlannedRun& planned : plan.runs) {
    const auto run = std::ranges::find(report.runs, planned.run.name, &Run::name);
    if (const auto shapes = shapes_of(planned); shapes && run != report.runs.end()) {
      runs[*shapes].push_back(&*run);
    }
  }
  std::map<Shapes, PieceTimes> measured;
  for (int call = 0; call < calls_of_each(plan); ++call) {
    for (const auto& [shapes, those] : runs) {
      const auto first = std::ranges::find_if(those, [](const Run* run) { return !run->error; });
      if (first == those.end()) {
        continue;
      }
      const Run& run = **first;
      session.progress.start("pieces of " + run.name);
      const ChildResult child = run_child(
          {.argv = micro_command(run, shapes, plan, out), .timeout_s = plan.settings.timeout_s},
          session);
      session.progress.finish();
      const std::string failure = child.ok() ? read_times(out, measured[shapes]) : child.failure();
      if (!failure.empty() && !child.interrupted && call == 0) {
        report.not_run.push_back({"pieces of " + run.name, failure});
      }
    }
  }
  for (const auto& [shapes, those] : runs) {
    std::ranges::for_each(those, [&](Run* run) { fill(measured[shapes], *run); });
  }
  report.partial = report.partial || session.interrupts.requested();
}

}  // namespace ddp::bench
