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

/// The runs are made when the library hears of them: these would change nothing.
constexpr Refused kRefused[] = {
    {"--benchmark_min_time", "--steps or --budget"},
    {"--benchmark_min_warmup_time", "nothing: the stages have a warm-up of their own"},
    {"--benchmark_enable_random_interleaving", "--seed: the order is always drawn from it"},
    {"--benchmark_perf_counters", "nothing: the runs are processes of their own"},
    {"--benchmark_time_unit", "nothing: times are in ms"},
    {"--benchmark_dry_run", "--dry-run"},
};

[[noreturn]] void refuse(const std::string& name, const std::string& value,
                         const std::string& expected) {
  throw UsageError(name + ": got " + quote(value) + ", expected " + expected);
}

void read_flag(const std::string& flag, Settings& settings) {
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
    if (value != "json" && value != "console" && value != "csv") {
      refuse(name, value, "json, console or csv");
    }
  } else if (name == "--benchmark_out") {
    check_output_file(name, value);
  } else if (name == "--benchmark_context") {
    if (value.find('=') == std::string::npos) {
      refuse(name, value, "KEY=VALUE");
    }
  } else if (name == "--benchmark_filter") {
    settings.filter = value;
  } else if (name == "--benchmark_list_tests") {
    settings.list_only = value != "false" && value != "0" && value != "no" && value != "off";
  } else if (name == "--benchmark_repetitions") {
    settings.repetitions = parse_integer(name, value, 1, kMaxRepetitions);
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
  for (const std::string& flag : settings.benchmark_flags) {
    read_flag(flag, settings);
  }
}

}  // namespace ddp::bench
