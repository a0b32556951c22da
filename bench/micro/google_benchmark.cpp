#include "bench/micro/google_benchmark.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <regex>
#include <utility>

#include "bench/report/output_file.hpp"
#include "bench/report/statistics.hpp"
#include "bench/run/machine.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/parse.hpp"

namespace ddp::micro {
namespace {

constexpr const char* kFilter = "--benchmark_filter";
constexpr const char* kList = "--benchmark_list_tests";

struct Flag {
  explicit Flag(const std::string& text)
      : name(text.substr(0, text.find('='))),
        value(text.substr(std::min(name.size() + 1, text.size()))) {}

  std::string name;
  std::string value;  // empty if there is none
};

/// The value of the last flag of that name.
std::optional<std::string> find_value(const std::vector<std::string>& flags,
                                      const std::string& name) {
  std::optional<std::string> value;
  for (const std::string& text : flags) {
    if (const Flag flag(text); flag.name == name) {
      value = flag.value;
    }
  }
  return value;
}

/// Which names --benchmark_filter selects: those with an extended regular expression somewhere in
/// them, or, after a "-", nowhere. Google Benchmark's own filter would see other names than the
/// report has, with "/iterations:1/manual_time" at their end: "bytes:4$" would find nothing.
struct Filter {
  explicit Filter(const std::string& text) : inverted(text.starts_with('-')) {
    const std::string wanted = text.substr(inverted ? 1 : 0);
    try {
      expression.assign(wanted == "all" ? "." : wanted, std::regex::extended);
    } catch (const std::regex_error&) {
      throw UsageError(
          fmt::format("{}: got {}, expected a regular expression", kFilter, quote(text)));
    }
  }
  bool selects(const Entry& entry) const {
    return std::regex_search(entry.name, expression) != inverted;
  }

  bool inverted;
  std::regex expression;
};

/// All of them in each pass, after the first in random order, and none twice in a row: what slows
/// the machine for a while meets a benchmark in one pass. Google Benchmark's interleaving shuffles
/// all passes at once.
std::vector<size_t> in_passes(std::vector<size_t> selected, int passes) {
  std::vector<size_t> order = selected;
  std::mt19937_64 generator;
  for (int pass = 1; pass < passes; ++pass) {
    std::shuffle(selected.begin(), selected.end(), generator);
    if (selected.front() == order.back()) {
      std::swap(selected.front(), selected.back());
    }
    order.insert(order.end(), selected.begin(), selected.end());
  }
  return order;
}

bool is_true(const std::string& value) {
  return value != "false" && value != "0" && value != "no" && value != "off";
}

std::unique_ptr<benchmark::BenchmarkReporter> file_reporter(const std::string& format) {
  if (format == "json") {
    return std::make_unique<benchmark::JSONReporter>();
  }
  if (format == "console") {
    return std::make_unique<benchmark::ConsoleReporter>(benchmark::ConsoleReporter::OO_None);
  }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return std::make_unique<benchmark::CSVReporter>();
#pragma GCC diagnostic pop
}

/// Passes everything on, but takes from the names what Google Benchmark adds to them: how they were
/// registered ("/iterations:1/manual_time") is no property of what is measured.
class ExactNames : public benchmark::BenchmarkReporter {
 public:
  explicit ExactNames(benchmark::BenchmarkReporter& inner) : inner_(inner) {}

  bool ReportContext(const Context& context) override {
    inner_.SetOutputStream(&GetOutputStream());
    inner_.SetErrorStream(&GetErrorStream());
    return inner_.ReportContext(context);
  }

  void ReportRuns(const std::vector<Run>& runs) override {
    std::vector<Run> renamed = runs;
    for (Run& run : renamed) {
      benchmark::BenchmarkName name;
      name.function_name = run.run_name.function_name;
      run.run_name = name;
    }
    inner_.ReportRuns(renamed);
  }

  void Finalize() override { inner_.Finalize(); }

 private:
  benchmark::BenchmarkReporter& inner_;
};

void count_times(const std::vector<double>& seconds, benchmark::UserCounters& counters) {
  std::vector<double> time_us;
  std::ranges::transform(seconds, std::back_inserter(time_us), [](double s) { return s * 1e6; });
  const bench::Distribution distribution = bench::summarize(time_us);
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  counters["time_us_median"] = distribution.median.value_or(kUnknown);
  counters["time_us_p10"] = distribution.p10.value_or(kUnknown);
  counters["time_us_p90"] = distribution.p90.value_or(kUnknown);
  counters["time_us_p95"] = distribution.p95.value_or(kUnknown);
  counters["time_us_n"] = static_cast<double>(distribution.n);
}

/// All that the ranks did is one batch of iterations, whose times are set by hand.
/// @param iterations of the repetition before, since Google Benchmark wants all to have as many; 0:
/// this is the first
void run_entry(benchmark::State& state, const std::vector<Entry>& entries, size_t index,
               std::int64_t& iterations, Team& team, std::vector<std::string>& errors) {
  const auto report = [&](const Series& series, const Exercise& exercise) {
    const std::vector<double> seconds = series.slowest();
    iterations = static_cast<std::int64_t>(seconds.size());
    while (state.KeepRunningBatch(iterations)) {
      for (const double iteration_seconds : seconds) {
        state.SetIterationTime(iteration_seconds);
      }
    }
    state.counters["ranks"] = team.world_size();
    exercise.report(series, state.counters);
    count_times(seconds, state.counters);
  };
  try {
    team.lead(entries, index, iterations, report);
  } catch (const WrongResult& error) {
    errors.push_back(entries[index].name + ": " + error.what());
    while (state.KeepRunning()) {  // Google Benchmark wants an error to come from inside the loop
      state.SkipWithError(error.what());
      break;
    }
  }
}

/// What a kept result must tell, by the names that bench's reports have. Not the commit: whoever
/// started it knows it, --benchmark_context=git_commit=HASH.
void describe_run(const MicroOptions& options, const Team& team) {
  benchmark::AddCustomContext("device", team.device().is_cuda() ? "cuda" : "cpu");
  const nlohmann::ordered_json machine = bench::describe_machine(std::nullopt);
  for (const char* fact : {"cpu_model", "cpu_governor", "os"}) {
    benchmark::AddCustomContext(
        fact, machine.at(fact).is_null() ? "none" : machine.at(fact).get<std::string>());
  }
  benchmark::AddCustomContext("libtorch", DDP_TORCH_VERSION);
  std::ifstream file("/proc/self/cmdline");
  std::string command = options.stage.program;
  std::string argument;
  std::getline(file, argument, '\0');  // the program, of which ranks are started by another name
  while (std::getline(file, argument, '\0')) {
    command += ' ' + argument;
  }
  benchmark::AddCustomContext("command", command);
}

}  // namespace

void check_benchmark_flags(const std::vector<std::string>& flags) {
  for (const std::string& text : flags) {
    const Flag flag(text);
    const auto refuse = [&flag](const std::string& expected) {
      throw UsageError(
          fmt::format("{}: got {}, expected {}", flag.name, quote(flag.value), expected));
    };
    if (flag.name == "--benchmark_format" || flag.name == "--benchmark_out_format") {
      if (flag.value != "json" && flag.value != "console" && flag.value != "csv") {
        refuse("console, json or csv");
      }
    } else if (flag.name == "--benchmark_min_time") {
      refuse("--min-seconds instead of it");
    } else if (flag.name == "--benchmark_repetitions") {
      refuse("--repetitions instead of it");
    } else if (flag.name == "--benchmark_out") {
      bench::check_output_file(flag.name, flag.value);
    } else if (flag.name == kFilter) {
      const Filter accepted(flag.value);
    }
  }
}

void initialize_benchmark(const std::vector<std::string>& flags, int repetitions) {
  // Google Benchmark keeps a pointer to argv[0].
  static std::vector<std::string> arguments;
  arguments = {std::filesystem::read_symlink("/proc/self/exe").string(),
               fmt::format("--benchmark_repetitions={}", repetitions)};
  std::ranges::copy_if(flags, std::back_inserter(arguments), [](const std::string& text) {
    const Flag flag(text);
    return flag.name != kFilter && flag.name != kList;
  });
  std::vector<char*> pointers;
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  int count = static_cast<int>(pointers.size());
  pointers.push_back(nullptr);
  benchmark::Initialize(&count, pointers.data());
  if (count > 1) {
    throw UsageError(fmt::format("Google Benchmark does not know {}, or its value", pointers[1]));
  }
}

void run_benchmarks(const std::vector<Entry>& entries, const MicroOptions& options, Team& team) {
  const auto value_of = [&](const std::string& name, const std::string& initial) {
    return find_value(options.benchmark_flags, name).value_or(initial);
  };
  const Filter filter(value_of(kFilter, "all"));
  std::vector<size_t> selected;
  for (size_t index = 0; index < entries.size(); ++index) {
    if (filter.selects(entries[index])) {
      selected.push_back(index);
    }
  }
  if (selected.empty()) {
    throw UsageError(fmt::format("{}: got {}, expected one that selects something {} lists",
                                 kFilter, quote(value_of(kFilter, "")), kList));
  }
  if (is_true(value_of(kList, "false"))) {
    for (const size_t index : selected) {
      std::cout << entries[index].name << '\n';
    }
    return;
  }
  std::vector<std::int64_t> iterations(entries.size(), 0);
  std::vector<std::string> errors;
  for (const size_t index : in_passes(selected, options.passes)) {
    benchmark::RegisterBenchmark(entries[index].name.c_str(),
                                 [&, index](benchmark::State& state) {
                                   run_entry(state, entries, index, iterations[index], team,
                                             errors);
                                 })
        ->Iterations(1)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  }
  describe_run(options, team);
  ExactNames display(*benchmark::CreateDefaultDisplayReporter());
  const auto inner = file_reporter(value_of("--benchmark_out_format", "json"));
  ExactNames to_file(*inner);
  const bool has_file = !value_of("--benchmark_out", "").empty();
  benchmark::RunSpecifiedBenchmarks(&display, has_file ? &to_file : nullptr);
  if (!errors.empty()) {
    throw Error(ExitCode::kTrainingFailed, errors.front());
  }
}

}  // namespace ddp::micro
