// tests/bench/made_up_reports.hpp - made-up runs of bench.
#pragma once

#include <fmt/format.h>

#include <sstream>

#include "bench/record.hpp"
#include "bench/report.hpp"

namespace ddp::test {

/// Run without repetitions, and the step that it shall have.
struct Timed {
  bench::Run run;
  double step_ms = 0;
};

/// Runs from a table: kind, stage, variant, launcher, backend, ranks x threads, ms of a step. The
/// batch grows with ranks and threads.
inline std::vector<Timed> made_up_runs(const std::string& table, const std::string& model = "M") {
  std::istringstream words(table);
  std::vector<Timed> timed;
  char by = 'x';
  for (auto [run, step_ms] = Timed(); words >> run.kind >> run.stage >> run.variant >>
                                      run.launcher >> run.backend >> run.world_size >> by >>
                                      run.threads >> step_ms;) {
    run.name = fmt::format("{}/weak/{}_{}/{}/{}/threads:{}/ranks:{}{}", model, run.stage,
                           run.variant, run.launcher, run.backend, run.threads, run.world_size,
                           run.kind == "control" ? "/control" : "");
    run.model = model;
    run.layers = {784, 512, 512, 10};
    run.global_batch = 64 * run.cores();
    run.parity = {.moved = 0.125, .reference_moved = 0.125, .ok = true};
    timed.push_back({run, step_ms});
  }
  return timed;
}

/// Adds a launch with a few steps around `median_ms`.
inline void add_repetition(bench::Run& run, int block, double median_ms) {
  bench::Repetition& repetition = run.repetitions.emplace_back();
  repetition.block = block;
  repetition.started = "2026-01-02T03:04:05Z";
  for (const double share : {0.98, 0.99, 1.0, 1.01, 1.02}) {
    repetition.samples_ms.push_back(median_ms * share);
  }
  repetition.median_ms = median_ms;
}

/// Draws the conclusions, like bench after its measurements.
inline void conclude(bench::Report& report) {
  bench::pair(report);
  bench::judge(report);
  bench::write_sentences(report);
}

}  // namespace ddp::test
