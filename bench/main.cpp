// bench: runs the stages at several world sizes, checks that they agree, measures and compares.

#include <chrono>
#include <exception>
#include <iostream>
#include <optional>
#include <utility>

#include "bench/report/google_benchmark.hpp"
#include "bench/report/output_file.hpp"
#include "bench/report/page/page.hpp"
#include "bench/report/record.hpp"
#include "bench/report/subcommands.hpp"
#include "bench/report/terminal_report.hpp"
#include "bench/run/benchmark_flags.hpp"
#include "bench/run/child_process.hpp"
#include "bench/run/machine.hpp"
#include "bench/run/machine_limits.hpp"
#include "bench/run/measurement.hpp"
#include "bench/run/parity.hpp"
#include "bench/run/peer_installation.hpp"
#include "bench/run/plan.hpp"
#include "bench/run/progress.hpp"
#include "bench/run/results.hpp"
#include "bench/run/settings.hpp"
#include "bench/run/stage_runner.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/base/standard_streams.hpp"

namespace ddp::bench {
namespace {

/// One command a line. How many epochs the timed runs have is known after the parity runs.
void print_commands(const Plan& plan, const Settings& settings) {
  for (const bool parity : {true, false}) {
    std::cout << (parity ? "# parity, once each\n"
                         : "# timed, " + std::to_string(settings.repetitions) +
                               " times each in random order; EPOCHS follows from the parity run\n");
    for (const Configuration& configuration : plan.configurations) {
      const bool own_parity =
          configuration.role == Role::kStage || configuration.role == Role::kPeer;
      if (parity && !own_parity) {
        continue;
      }
      std::vector<std::string> argv = command_line(
          configuration, plan, parity ? configuration.parity_batch : configuration.global_batch,
          parity ? parity_length(configuration) : planned_length(configuration), settings.seed,
          "METRICS", "SNAPSHOT");
      for (std::string& argument : argv) {
        argument = !parity && argument == std::to_string(kUnknownEpochs) ? "EPOCHS" : argument;
      }
      std::cout << shell_quote(argv) << '\n';
    }
  }
  for (const NotRun& not_run : plan.not_run) {
    std::cout << "# not run: " << not_run.what << " (" << not_run.reason << ")\n";
  }
}

/// @param document what Google Benchmark's tools read @param benchmark_file for that alone
void write_report(const Settings& settings, const Plan& plan, const Report& report,
                  nlohmann::ordered_json document, const std::string& benchmark_file) {
  if (!benchmark_file.empty()) {
    write_json_file(benchmark_file, document);
  }
  print_terminal_report(settings.json_on_stdout() ? std::cerr : std::cout, report, plan.notes);
  document["ddp_scaling"] = to_json(report);
  if (settings.json_on_stdout()) {
    write_json(std::cout, document);
  }
  if (!settings.json_file.empty()) {
    write_json_file(settings.json_file, document);
  }
  if (!settings.html_file.empty()) {
    write_page(settings.html_file, document, report);
  }
}

int run(int argc, char** argv) {
  Interrupts interrupts;
  const Settings settings = parse_settings(argc, argv);
  Plan plan = make_plan(settings);
  const BenchmarkOutput output = benchmark_output(settings);
  if (settings.list_only) {
    for (const Configuration& configuration : plan.configurations) {
      std::cout << configuration.name() << kBenchmarkSuffix << '\n';
    }
    return static_cast<int>(ExitCode::kDone);
  }
  if (settings.dry_run) {
    print_commands(plan, settings);
    return static_cast<int>(ExitCode::kDone);
  }

  const auto start = std::chrono::steady_clock::now();
  const ScratchFolder scratch("ddp-bench");
  Progress progress;
  const nlohmann::ordered_json machine = describe_machine();
  ask_launchers(plan, scratch.path(), interrupts);
  const nlohmann::ordered_json software = describe_software(plan, scratch.path(), interrupts);

  install_peers(scratch.path(), interrupts, progress, plan);

  StageRunner runner(plan, scratch.path(), settings.timeout_s, settings.seed, interrupts,
                     progress.on_terminal() ? [&] { progress.tick(); } : std::function<void()>());
  Measurements measurements = check_parity(plan, settings, runner, progress, interrupts);
  measure_limits(settings, scratch.path(), interrupts, progress, plan, measurements);
  const double used_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  choose_lengths(settings, used_s, measurements);
  measure(settings, runner, progress, interrupts, measurements);

  Report report = make_report(measurements);
  report.machine = machine;
  report.software = software;
  report.settings = describe_settings(settings);
  report.not_run = plan.not_run;
  write_report(settings, plan, report,
               google_benchmark_document(measurements, settings.repetitions, machine, output),
               output.file);
  const bool failed = measurements.failed() || measurements.partial;
  return static_cast<int>(failed ? ExitCode::kTrainingFailed : ExitCode::kDone);
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  try {
    ddp::fill_closed_streams();
    const std::optional<int> code = ddp::bench::run_subcommand(argc, argv);
    const int result = code ? *code : ddp::bench::run(argc, argv);
    ddp::bench::flush_standard_output();
    return result;
  } catch (const ddp::Error& error) {
    std::cerr << "error: " << error.what() << '\n';
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return static_cast<int>(ddp::ExitCode::kTrainingFailed);
  }
}
