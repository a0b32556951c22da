#include "bench/run/micro_command.hpp"

#include <sstream>

namespace ddp::bench {
namespace {

std::string join_numbers(const std::vector<std::int64_t>& numbers, char separator) {
  std::string text;
  for (const std::int64_t number : numbers) {
    text += (text.empty() ? "" : std::string(1, separator)) + std::to_string(number);
  }
  return text;
}

std::string shortest(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace

std::vector<std::string> micro_command(const std::string& program, const MicroRun& run,
                                       const std::string& out) {
  std::vector<std::string> argv = {program, "--suite", run.suite};
  const auto add = [&argv](const char* name, const std::string& value) {
    argv.insert(argv.end(), {name, value});
  };
  if (run.world_size) {
    add("--nprocs", std::to_string(*run.world_size));
  }
  if (!run.device.empty()) {
    add("--device", run.device);
  }
  std::string backends;
  for (const std::string& backend : run.backends) {
    backends += (backends.empty() ? "" : ",") + backend;
  }
  if (!backends.empty()) {
    add("--backends", backends);
  }
  if (run.bytes) {
    add("--bytes", run.bytes->empty() ? "none" : join_numbers(*run.bytes, ','));
  }
  for (const MicroRun::Step& step : run.steps) {
    add("--step", step.name + "=" + join_numbers(step.bucket_bytes, '+'));
  }
  if (run.min_seconds) {
    add("--min-seconds", shortest(*run.min_seconds));
  }
  if (run.repetitions) {
    add("--repetitions", std::to_string(*run.repetitions));
  }
  if (run.timeout_s) {
    add("--timeout", shortest(*run.timeout_s));
  }
  if (run.threads) {
    add("--threads", std::to_string(*run.threads));
  }
  if (!run.filter.empty()) {
    argv.push_back("--benchmark_filter=" + run.filter);
  }
  argv.push_back("--benchmark_out=" + out);
  argv.emplace_back("--benchmark_out_format=json");
  return argv;
}

}  // namespace ddp::bench
