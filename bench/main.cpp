// bench: measures the stages and writes the report; `bench compare` and `bench html` read one,
// `bench predict` needs none.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <iostream>
#include <optional>
#include <set>
#include <utility>

#include "bench/report/conclusions.hpp"
#include "bench/report/output_file.hpp"
#include "bench/report/page/page.hpp"
#include "bench/report/record.hpp"
#include "bench/report/subcommands.hpp"
#include "bench/report/terminal_report.hpp"
#include "bench/run/child_process.hpp"
#include "bench/run/google_benchmark.hpp"
#include "bench/run/lines_of_code.hpp"
#include "bench/run/machine.hpp"
#include "bench/run/machine_limits.hpp"
#include "bench/run/measurement.hpp"
#include "bench/run/plan.hpp"
#include "bench/run/results.hpp"
#include "bench/run/time_to_accuracy.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/process.hpp"
#include "common/base/seconds_since.hpp"
#include "common/base/standard_streams.hpp"

namespace ddp::bench {
namespace {

/// One command a line. How many epochs the timed runs have is known after the parity runs.
void print_commands(const Plan& plan) {
  const auto print = [&](const Configuration& configuration, const RunLength& length) {
    std::vector<std::string> argv =
        command_line(configuration, plan, length, "METRICS", "SNAPSHOT");
    std::ranges::replace(argv, std::to_string(kUnknownEpochs), std::string("EPOCHS"));
    std::cout << shell_line(argv) << '\n';
  };
  std::cout << "# parity, once each\n";
  for (const Configuration& configuration : plan.configurations) {
    if (configuration.is_original()) {
      print(configuration, parity_length(configuration));
    }
  }
  std::set<int, std::greater<>> repetitions;
  for (const Configuration& configuration : plan.configurations) {
    repetitions.insert(configuration.repetitions);
  }
  repetitions.erase(0);
  for (const int times : repetitions) {
    std::cout << fmt::format(
        "# timed, {} times each in random order; EPOCHS follows from the parity run\n", times);
    for (const Configuration& configuration : plan.configurations) {
      if (configuration.repetitions == times) {
        print(configuration, timed_length(configuration));
      }
    }
  }
  for (const NotRun& not_run : plan.not_run) {
    std::cout << fmt::format("# not run: {} ({})\n", not_run.what, not_run.reason);
  }
}

/// How the numbers were asked for.
/// @param repetitions of what was repeated most
nlohmann::ordered_json describe_settings(const Settings& settings, int repetitions) {
  std::vector<std::string> command = {"bench"};
  command.insert(command.end(), settings.arguments.begin(), settings.arguments.end());
  return {
      {"command", shell_line(command)},
      {"repetitions", repetitions},
      {"steps_asked", settings.steps ? nlohmann::ordered_json(*settings.steps) : nullptr},
      {"budget_s", settings.budget_s},
      {"timeout_s", settings.timeout_s},
      {"seed", settings.seed},
      {"parity_tolerance", kParityTolerance},
  };
}

/// @param document what Google Benchmark's tools read
void write_report(const Plan& plan, const Report& report, nlohmann::ordered_json document) {
  const Settings& settings = plan.settings;
  if (!settings.benchmark.file.empty()) {
    write_json_file(settings.benchmark.file, document);
  }
  print_terminal_report(settings.json_on_stdout ? std::cerr : std::cout, report);
  document["ddp_scaling"] = to_json(report);
  if (settings.json_on_stdout) {
    write_json(std::cout, document);
  }
  if (!settings.json_file.empty()) {
    write_json_file(settings.json_file, document);
  }
  if (!settings.html_file.empty()) {
    write_page(settings.html_file, document, report);
  }
  for (const std::string& file : {settings.json_file, settings.html_file}) {
    if (!file.empty()) {
      (settings.json_on_stdout ? std::cerr : std::cout) << "wrote " << file << '\n';
    }
  }
}

ExitCode measure_and_report(Plan plan) {
  const auto start = std::chrono::steady_clock::now();
  Session session;
  ask_launchers(plan, session);
  const nlohmann::ordered_json software = describe_software(plan, session);
  install_peers(plan, session);
  const nlohmann::ordered_json machine =
      describe_machine(wait_for_quiet(plan.settings.quiet_wait_s, session));

  Measurements measurements = check_parity(plan, session);
  measure_limits(plan, session, measurements);
  choose_lengths(plan.settings, seconds_since(start), measurements);
  const bool to_accuracy = plan.settings.full && plan.settings.by_default();
  const double to_accuracy_s = to_accuracy ? kTimeToAccuracySeconds : 0;
  const double later_s = seconds_of_limits_again(plan, measurements) + to_accuracy_s;
  keep_to_budget(plan, seconds_since(start), later_s, measurements);
  measure(plan, session, seconds_since(start), later_s, measurements);
  measure_limits_again(to_accuracy_s, plan, session, measurements);
  if (to_accuracy && !measurements.partial) {
    measure_time_to_accuracy(plan, session, measurements);
  }

  if (const double took_s = seconds_since(start); took_s > plan.settings.budget_s + 1) {
    plan.notes.push_back(fmt::format("it took {:.0f} s, more than the {:g} s of --budget", took_s,
                                     plan.settings.budget_s));
  }

  measurements.network = plan.settings.network;
  Report report = make_report(measurements);
  count_lines_of_code(plan.settings.peers_dir, report);
  report.machine = machine;
  report.software = software;
  report.settings = describe_settings(plan.settings, measurements.blocks());
  append(report.not_run, plan.not_run);
  report.conclusions = conclude(report, plan.notes);
  if (plan.settings.no_samples) {
    drop_samples(report);
  }
  write_report(plan, report,
               google_benchmark_document(measurements, machine, plan.settings.benchmark));
  return measurements.failed() || measurements.partial ? ExitCode::kTrainingFailed
                                                       : ExitCode::kDone;
}

ExitCode run(int argc, char** argv) {
  Plan plan = make_plan(parse_settings(argc, argv));
  if (plan.settings.list_only) {
    for (const Configuration& configuration : plan.configurations) {
      if (configuration.is_timed()) {
        std::cout << configuration.name() << kBenchmarkSuffix << '\n';
      }
    }
  } else if (plan.settings.dry_run) {
    print_commands(plan);
  } else {
    return measure_and_report(std::move(plan));
  }
  return ExitCode::kDone;
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  try {
    ddp::fill_closed_streams();
    const std::optional<int> code = ddp::bench::run_subcommand(argc, argv);
    const int result = code ? *code : static_cast<int>(ddp::bench::run(argc, argv));
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
