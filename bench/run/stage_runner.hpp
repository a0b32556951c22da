// bench/run/stage_runner.hpp - runs a configuration's program once and reads what it measured.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "bench/run/child_process.hpp"
#include "bench/run/gpu_monitor.hpp"
#include "bench/run/metrics.hpp"
#include "bench/run/plan.hpp"

namespace ddp::bench {

/// One run of a stage program.
struct StageRun {
  std::string error;  ///< empty: it ran, and `metrics` are complete
  bool usage_error = false;  ///< it refused its command line or its environment
  bool interrupted = false;  ///< it was stopped; then it says nothing about the stage
  StageMetrics metrics;
  double wall_s = 0;
  double startup_ms = 0;  ///< from the start of the command to the end of the first step
  std::optional<GpuUsage> gpu;
};

class StageRunner {
 public:
  /// @param tick called now and then while a program runs
  StageRunner(const Plan& plan, std::string scratch, double timeout_s, std::uint64_t seed,
              Interrupts& interrupts, std::function<void()> tick);

  /// A run that ends with exit code 75, "try again later", is tried again.
  StageRun run(const Configuration& configuration, std::int64_t global_batch,
               const RunLength& length);

 private:
  StageRun run_once(const Configuration& configuration, std::int64_t global_batch,
                    const RunLength& length, bool& transient);

  const Plan& plan_;
  std::string scratch_;
  double timeout_s_;
  std::uint64_t seed_;
  Interrupts& interrupts_;
  std::function<void()> tick_;
  GpuMonitor gpu_monitor_;
};

}  // namespace ddp::bench
