// tests/bench/made_up_reports.hpp - made-up runs of bench, and normal noise.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "bench/record.hpp"
#include "bench/report.hpp"

namespace ddp::test {

/// Standard normal numbers that are the same on every platform.
class NormalNoise {
 public:
  explicit NormalNoise(std::uint64_t seed) : engine_(seed) {}
  double operator()() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::acos(-1.0) * uniform());
  }

 private:
  double uniform() { return (static_cast<double>(engine_() >> 11) + 0.5) / 9007199254740992.0; }
  std::mt19937_64 engine_;
};

struct RunFields {
  std::string kind = "stage";
  std::string variant = "main";
  std::string launcher = "none";
  std::string backend = "none";
  int ranks = 1;
  int threads = 1;
  std::string model = "M";
};

/// Makes a run without repetitions. The batch grows with ranks and threads.
inline bench::Run make_run(const std::string& stage, const RunFields& options = {}) {
  bench::Run run;
  run.name = options.model + "/weak/" + stage + "_" + options.variant + "/" + options.launcher +
             "/" + options.backend + "/threads:" + std::to_string(options.threads) +
             "/ranks:" + std::to_string(options.ranks);
  run.kind = options.kind;
  run.stage = stage;
  run.variant = options.variant;
  run.launcher = options.launcher;
  run.backend = options.backend;
  run.model = options.model;
  run.layers = {784, 512, 512, 10};
  run.world_size = options.ranks;
  run.threads = options.threads;
  run.global_batch = 64 * options.ranks * options.threads;
  run.parity = {.moved = 0.125, .reference_moved = 0.125, .ok = true};
  return run;
}

/// Makes a control: the same command, without repetitions.
inline bench::Run control_of(bench::Run run) {
  run.name += "/control";
  run.kind = "control";
  run.repetitions.clear();
  return run;
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
