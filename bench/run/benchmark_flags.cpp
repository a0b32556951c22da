#include "bench/run/benchmark_flags.hpp"

#include <algorithm>
#include <utility>

#include "bench/report/output_file.hpp"
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

[[noreturn]] void refuse(const std::string& name, const std::string& value,
                         const std::string& expected) {
  throw UsageError(name + ": got " + quote(value) + ", expected " + expected);
}

/// A flag without a value is true.
bool is_true(const std::string& value) {
  return value != "false" && value != "0" && value != "no" && value != "off";
}

void read_flag(const std::string& flag, Settings& settings, BenchmarkOutput& output) {
  const std::size_t equals = flag.find('=');
  const std::string name = flag.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : flag.substr(equals + 1);
  for (const Refused& refused : kRefused) {
    if (name == refused.name) {
      refuse(name, value, std::string(refused.expected));
    }
  }
  if (name == "--benchmark_format") {
    if (value != "console" && value != "json") {
      refuse(name, value, "console or json");
    }
    settings.format_json = value == "json";
  } else if (name == "--benchmark_out_format") {
    if (value != "json") {
      refuse(name, value, "json");
    }
  } else if (name == "--benchmark_out") {
    check_output_file(name, value);
    output.file = value;
  } else if (name == "--benchmark_context") {
    const std::size_t separator = value.find('=');
    if (separator == std::string::npos) {
      refuse(name, value, "KEY=VALUE");
    }
    output.context.emplace_back(value.substr(0, separator), value.substr(separator + 1));
  } else if (name == "--benchmark_filter") {
    settings.filter = value;
  } else if (name == "--benchmark_list_tests") {
    settings.list_only = is_true(value);
  } else if (name == "--benchmark_repetitions") {
    settings.repetitions = parse_integer(name, value, 1, kMaxRepetitions);
  } else if (name == "--benchmark_report_aggregates_only" ||
             name == "--benchmark_display_aggregates_only") {
    output.aggregates_only = is_true(value);
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

void read_benchmark_flags(Settings& settings) {
  BenchmarkOutput ignored;
  for (const std::string& flag : settings.benchmark_flags) {
    read_flag(flag, settings, ignored);
  }
}

BenchmarkOutput benchmark_output(const Settings& settings) {
  BenchmarkOutput output;
  Settings ignored;
  for (const std::string& flag : settings.benchmark_flags) {
    read_flag(flag, ignored, output);
  }
  return output;
}

}  // namespace ddp::bench
