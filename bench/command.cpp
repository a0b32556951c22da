#include "bench/command.hpp"

#include <fmt/ranges.h>

#include "bench/launchers.hpp"

namespace ddp::bench {
namespace {

/// Equal for all runs, because an epoch's first step is longer.
constexpr std::int64_t kStepsPerEpoch = 16;
/// Few steps, so that rounding differences by another order of sums do not grow.
constexpr std::int64_t kParitySteps = 48;

Length length_of(std::int64_t global_batch, std::int64_t steps) {
  return {.global_batch = global_batch, .epochs = (steps + kStepsPerEpoch - 1) / kStepsPerEpoch};
}

}  // namespace

Length parity_length(const PlannedRun& planned) {
  return length_of(planned.parity_batch, kParitySteps);
}

Length timed_length(const PlannedRun& planned, const Settings& settings) {
  const std::int64_t timed_steps = settings.steps.value_or(planned.model.timed_steps);
  Length length = length_of(planned.run.global_batch, timed_steps + planned.model.warmup_steps);
  length.timed_steps = timed_steps;
  return length;
}

std::vector<std::string> launcher_command(const Run& run, const Plan& plan) {
  const auto command = find_launcher(run.launcher).command;
  return command == nullptr ? std::vector<std::string>()
                            : command(run, plan.launchers.at(run.launcher), plan.settings);
}

std::vector<std::string> command_line(const PlannedRun& planned, const Plan& plan,
                                      const Length& length, const std::string& folder) {
  const Run& run = planned.run;
  const bool is_python = planned.row.is_python;
  std::vector<std::string> argv = launcher_command(run, plan);
  const auto append = [&argv](const std::vector<std::string>& more) {
    argv.insert(argv.end(), more.begin(), more.end());
  };
  if (is_python) {
    append({plan.pythons.at(run.stage), plan.settings.peers_dir + "/" + run.stage + ".py",
            "--variant", run.variant});
  } else {
    append({plan.settings.stage_dir + "/" + planned.row.file()});
  }
  // Saves only at the end, because training is measured.
  const std::string epochs = std::to_string(length.epochs);
  append({epochs, epochs, "--global-batch", std::to_string(length.global_batch), "--layers",
          fmt::format("{}", fmt::join(run.layers, ",")), "--dataset-size",
          std::to_string(kStepsPerEpoch * length.global_batch)});
  if (planned.row.launch == LaunchKind::kReplicas || planned.row.launch == LaunchKind::kSpawn) {
    append({"--nprocs", std::to_string(run.world_size)});
  }
  append({"--threads", std::to_string(run.threads), "--seed", std::to_string(plan.settings.seed),
          "--device", run.device});
  if (!is_python) {
    append({"--quiet", "--resume", "never", "--snapshot", folder + "/snapshot.safetensors"});
    if (run.backend != "none") {
      append({"--backend", run.backend});
    }
  }
  if (run.kind == kNoCommunication) {
    append({"--no-communication"});
  }
  append({"--metrics", folder + "/metrics.jsonl"});
  return argv;
}

std::string shell_line(const std::vector<std::string>& words) {
  constexpr const char* kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-";
  std::string line;
  for (const std::string& word : words) {
    const bool is_plain = !word.empty() && word.find_first_not_of(kPlain) == std::string::npos;
    line += (line.empty() ? "" : " ") + (is_plain ? word : "'" + word + "'");
  }
  return line;
}

}  // namespace ddp::bench
