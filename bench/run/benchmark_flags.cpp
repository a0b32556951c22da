#include "bench/run/benchmark_flags.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "bench/report/output_file.hpp"
#include "bench/run/settings.hpp"
#include "common/base/command_line.hpp"

namespace ddp::bench {
namespace {

struct Refused {
  const char* name;
  const char* expected;
};

/// What would change nothing.
constexpr Refused kRefused[] = {
    {"--benchmark_min_time", "--steps or --budget"},
    {"--benchmark_min_warmup_time", "nothing: the stages have a warm-up of their own"},
    {"--benchmark_enable_random_interleaving", "--seed: the order is always drawn from it"},
    {"--benchmark_perf_counters", "nothing: the runs are processes of their own"},
    {"--benchmark_time_unit", "nothing: times are in ms"},
    {"--benchmark_dry_run", "--dry-run"},
    {"--benchmark_color", "nothing: the table is bench's own"},
    {"--benchmark_counters_tabular", "nothing: the table is bench's own"},
};

void read_flag(const std::string& name, const std::string& value, Settings& settings) {
  const auto expect = [&](bool ok, const char* expected) {
    if (!ok) {
      throw UsageError(fmt::format("{}: got {}, expected {}", name, quote(value), expected));
    }
  };
  // A flag without a value is true.
  const bool is_true = value != "false" && value != "0" && value != "no" && value != "off";
  BenchmarkOutput& output = settings.benchmark;
  for (const Refused& refused : kRefused) {
    expect(name != refused.name, refused.expected);
  }
  if (name == "--benchmark_format") {
    expect(value == "console" || value == "json", "console or json");
    settings.format_json = value == "json";
  } else if (name == "--benchmark_out_format") {
    expect(value == "json", "json");
  } else if (name == "--benchmark_out") {
    check_output_file(name, value);
    output.file = value;
  } else if (name == "--benchmark_context") {
    const std::size_t equals = value.find('=');
    expect(equals != std::string::npos, "KEY=VALUE");
    output.context.emplace_back(value.substr(0, equals), value.substr(equals + 1));
  } else if (name == "--benchmark_filter") {
    settings.filter = value;
  } else if (name == "--benchmark_list_tests") {
    settings.list_only = is_true;
  } else if (name == "--benchmark_repetitions") {
    settings.repetitions = parse_integer(name, value, 1, kMaxRepetitions);
  } else if (name == "--benchmark_report_aggregates_only" ||
             name == "--benchmark_display_aggregates_only") {
    output.aggregates_only = is_true;
  } else {
    throw UsageError(name + ": not known, expected one of --benchmark_filter, list_tests, " +
                     "repetitions, format, out, out_format, context, report_aggregates_only");
  }
}

}  // namespace

BenchmarkArguments split_arguments(int argc, const char* const* argv) {
  BenchmarkArguments arguments;
  for (int i = 1; i < argc; ++i) {
    std::string argument = with_dashes(argv[i]);
    if (argument.starts_with("--benchmark-")) {
      std::replace(argument.begin() + 2, std::find(argument.begin(), argument.end(), '='), '-',
                   '_');
      arguments.benchmark_flags.push_back(std::move(argument));
    } else {
      arguments.own.push_back(std::move(argument));
    }
  }
  return arguments;
}

void read_benchmark_flags(const std::vector<std::string>& flags, Settings& settings) {
  for (const std::string& flag : flags) {
    const std::size_t name_end = std::min(flag.find('='), flag.size());
    read_flag(flag.substr(0, name_end), flag.substr(std::min(name_end + 1, flag.size())), settings);
  }
}

}  // namespace ddp::bench
