#include "bench/run/stage_runner.hpp"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <utility>

#include "bench/report/statistics.hpp"
#include "bench/run/child_process.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxAttempts = 3;

/// From the start of the command, launcher included. The stage tells when its first step ended by
/// the wall clock, which may have been set in between: then only its own process counts.
double startup_ms(const StageMetrics& metrics, const ChildResult& child) {
  const double since_start_ms = metrics.first_step_unix_ms.value_or(0) - child.start_unix_ms;
  const bool plausible = since_start_ms > 0 && since_start_ms <= child.seconds * 1e3;
  return plausible ? since_start_ms : largest_or_zero(metrics.startup_ms);
}

}  // namespace

StageRunner::StageRunner(const Plan& plan, std::string scratch, double timeout_s,
                         std::uint64_t seed, Interrupts& interrupts, std::function<void()> tick)
    : plan_(plan),
      scratch_(std::move(scratch)),
      timeout_s_(timeout_s),
      seed_(seed),
      interrupts_(interrupts),
      tick_(std::move(tick)) {}

StageRun StageRunner::run(const Configuration& configuration, std::int64_t global_batch,
                          const RunLength& length) {
  for (int attempt = 1;; ++attempt) {
    bool transient = false;
    StageRun run = run_once(configuration, global_batch, length, transient);
    if (!transient || attempt == kMaxAttempts) {
      return run;
    }
  }
}

StageRun StageRunner::run_once(const Configuration& configuration, std::int64_t global_batch,
                               const RunLength& length, bool& transient) {
  // A folder of its own, empty at the start: nothing of another run can be read by mistake.
  const fs::path folder = fs::path(scratch_) / "run";
  fs::remove_all(folder);
  fs::create_directory(folder);
  const std::string metrics_path = (folder / "metrics.jsonl").string();
  // torchrun leaves a folder behind.
  std::map<std::string, std::string> environment;
  if (configuration.launcher == "torchrun") {
    environment["TMPDIR"] = folder.string();
  }
  const Command command = {
      .argv = command_line(configuration, plan_, global_batch, length, seed_, metrics_path,
                           (folder / "snapshot.safetensors").string()),
      .env = environment,
      .cwd = folder.string(),
      .timeout_s = timeout_s_,
  };
  gpu_monitor_.take();
  const ChildResult child = run_child(command, scratch_, interrupts_, [this] {
    gpu_monitor_.sample();
    if (tick_) {
      tick_();
    }
  });
  StageRun run;
  run.wall_s = child.seconds;
  run.interrupted = child.interrupted;
  if (child.interrupted) {
    run.error = "interrupted";
    return run;
  }
  if (!child.ok()) {
    run.error = describe_failure(child, timeout_s_);
    run.usage_error = child.exit_code == static_cast<int>(ExitCode::kUsage);
    transient = child.exit_code == static_cast<int>(ExitCode::kTransient);
    return run;
  }
  try {
    run.metrics = read_metrics(metrics_path, configuration.processes());
    if (run.metrics.global_batch != global_batch) {
      run.error = "it trained with a global batch of " + std::to_string(run.metrics.global_batch) +
                  ", expected " + std::to_string(global_batch);
    }
  } catch (const Error& error) {
    run.error = error.what();
  }
  run.startup_ms = startup_ms(run.metrics, child);
  run.gpu = gpu_monitor_.take();
  return run;
}

}  // namespace ddp::bench
