#include "bench/command.hpp"

#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <filesystem>

#include "bench/launchers.hpp"
#include "common/base/hash.hpp"
#include "common/device/hardware.hpp"

namespace ddp::bench {
namespace {

/// Equal for all runs, because an epoch's first step is longer.
constexpr std::int64_t kStepsPerEpoch = 16;
/// Few steps, so that rounding differences by another order of sums do not grow.
constexpr std::int64_t kParitySteps = 48;

/// Port that was free a moment ago.
int free_port() {
  const FileDescriptor listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
  socklen_t size = sizeof(address);
  bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size);
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

/// What the shell of each rank runs: the user's command with RANK and LOCAL_RANK, also under
/// launchers with names of their own. At the end it names a rank that failed.
std::string script_of(const PlannedRun& planned) {
  std::string script = planned.row.command;
  for (std::size_t at = 0; (at = script.find("{ranks}", at)) != std::string::npos;) {
    script.replace(at, std::strlen("{ranks}"), std::to_string(planned.named_ranks));
  }
  const auto row = std::ranges::find(launchers(), planned.run.launcher, &Launcher::name);
  const NamesOfNumbers& names = row->numbers;
  const std::string variables =
      fmt::format("export RANK=${} LOCAL_RANK=${}; ", names.rank, names.local_rank);
  return (names.rank == std::string("RANK") ? "" : variables) +
         "trap '[ $? = 0 ] || echo error: rank $RANK >&2' EXIT; " + script;
}

Length length_of(std::int64_t global_batch, std::int64_t steps) {
  return {.global_batch = global_batch, .epochs = (steps + kStepsPerEpoch - 1) / kStepsPerEpoch};
}

}  // namespace

Length parity_length(const PlannedRun& planned) {
  return length_of(planned.parity_batch, kParitySteps);
}

Length timed_length(const PlannedRun& planned, const Settings& settings) {
  const std::int64_t timed_steps = settings.steps.value_or(planned.model.timed_steps);
  Length length =
      length_of(planned.run.global_batch.value_or(1), timed_steps + planned.model.warmup_steps);
  length.timed_steps = timed_steps;
  return length;
}

std::vector<std::string> launcher_command(const PlannedRun& planned, const Plan& plan) {
  const Run& run = planned.run;
  const Starter& starter = find_starter(run.launcher);
  const bool starts_itself = !planned.is_program() && !planned.row.is_peer();
  if (starter.command == nullptr || (starter.starts == LaunchKind::kSpawn && starts_itself)) {
    return {};
  }
  return starter.command(run, plan.launchers.at(run.launcher), plan.settings);
}

std::map<std::string, std::optional<std::string>> program_variables(const Run& run,
                                                                    const std::string& folder) {
  const std::string ranks = std::to_string(run.world_size);
  return {{"DDP_METRICS", folder + "/metrics.jsonl"},
          {"WORLD_SIZE", ranks},
          {"LOCAL_WORLD_SIZE", ranks},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(free_port())},
          {"OMP_NUM_THREADS", std::to_string(run.threads)}};
}

std::string step_file(const PlannedRun& planned, const Settings& settings) {
  static const std::string processor = Hash().update(instruction_sets()).hex();
  const auto steps = std::filesystem::path(settings.stage_dir + "/../steps").lexically_normal();
  return fmt::format("{}/{}-seed{}-{}-torch{}-{:.8}.pt2", steps.native(),
                     fmt::join(planned.run.layers, "-"), settings.seed, settings.device,
                     DDP_TORCH_VERSION, processor);
}

std::vector<std::string> command_line(const PlannedRun& planned, const Plan& plan,
                                      const Length& length, const std::string& folder) {
  const Run& run = planned.run;
  const bool is_peer = planned.row.is_peer();
  std::vector<std::string> argv = launcher_command(planned, plan);
  if (planned.is_program()) {
    argv.insert(argv.end(), {"/bin/sh", "-c", script_of(planned)});
    return argv;
  }
  if (is_peer) {
    const std::string script = plan.settings.peers_dir + "/" + run.stage + ".py";
    argv.insert(argv.end(), {plan.pythons.at(run.stage), script, "--variant", run.variant});
  } else {
    argv.push_back(plan.settings.stage_dir + "/" + planned.row.program());
  }
  // Saves only at the end, because training is measured.
  add_words(argv, "{0} {0} --global-batch {1} --layers {2} --dataset-size {3}", length.epochs,
            length.global_batch, fmt::join(run.layers, ","), kStepsPerEpoch * length.global_batch);
  if (!planned.row.has("model")) {
    argv.insert(argv.end(), {"--step", step_file(planned, plan.settings)});
  }
  if (planned.row.launch == LaunchKind::kReplicas ||
      (planned.row.launch == LaunchKind::kSpawn && !is_peer)) {
    add_words(argv, "--nprocs {}", run.world_size);
  }
  add_words(argv, "--threads {} --seed {} --device {}", run.threads, plan.settings.seed,
            run.device);
  if (!is_peer) {
    add_words(argv, "--quiet --resume never --snapshot");
    argv.push_back(folder + "/snapshot.safetensors");
  }
  if (run.backend != "none") {
    add_words(argv, "--backend {}", run.backend);
  }
  if (run.kind == kNoCommunication) {
    argv.push_back("--no-communication");
  }
  argv.insert(argv.end(), {"--metrics", folder + "/metrics.jsonl"});
  return argv;
}

std::string shell_line(const std::vector<std::string>& words) {
  constexpr const char* kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-";
  std::string line;
  for (const std::string& word : words) {
    const bool is_plain = !word.empty() && word.find_first_not_of(kPlain) == std::string::npos;
    line +=
        (line.empty() ? "" : " ") +
        (is_plain ? word : "'" + fmt::format("{}", fmt::join(split(word, '\''), R"('\'')")) + "'");
  }
  return line;
}

}  // namespace ddp::bench
