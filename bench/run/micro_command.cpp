#include "bench/run/micro_command.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddp::bench {
namespace {

/// Empty without a value.
template <typename Number>
std::string text_of(const std::optional<Number>& number) {
  return number ? fmt::to_string(*number) : "";
}

}  // namespace

std::vector<std::string> micro_command(const std::string& program, const MicroRun& run,
                                       const std::string& out) {
  std::vector<std::string> argv = {program, "--suite", run.suite};
  const auto add = [&argv](const char* option, const std::string& value) {
    if (!value.empty()) {
      argv.insert(argv.end(), {option, value});
    }
  };
  add("--nprocs", text_of(run.world_size));
  add("--device", run.device);
  add("--backends", fmt::format("{}", fmt::join(run.backends, ",")));
  if (run.bytes) {
    add("--bytes", run.bytes->empty() ? "none" : fmt::format("{}", fmt::join(*run.bytes, ",")));
  }
  for (const auto& [name, bucket_bytes] : run.steps) {
    add("--step", fmt::format("{}={}", name, fmt::join(bucket_bytes, "+")));
  }
  add("--min-seconds", text_of(run.min_seconds));
  add("--repetitions", text_of(run.repetitions));
  add("--passes", text_of(run.passes));
  add("--timeout", text_of(run.timeout_s));
  if (!run.filter.empty()) {
    argv.push_back("--benchmark_filter=" + run.filter);
  }
  argv.insert(argv.end(), {"--benchmark_out=" + out, "--benchmark_out_format=json"});
  return argv;
}

}  // namespace ddp::bench
