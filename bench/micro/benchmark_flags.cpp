#include "bench/micro/benchmark_flags.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <regex>
#include <utility>

#include "bench/report/output_file.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/parse.hpp"

namespace ddp::micro {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFilter = "--benchmark_filter";
constexpr const char* kList = "--benchmark_list_tests";

std::string name_of(const std::string& flag) {
  return flag.substr(0, flag.find('='));
}

/// Whether it is inverted, and the expression.
std::pair<bool, std::regex> parse_filter(const std::string& filter) {
  const bool inverted = filter.starts_with('-');
  const std::string text = filter.substr(inverted ? 1 : 0);
  try {
    return {inverted, std::regex(text == "all" ? "." : text, std::regex::extended)};
  } catch (const std::regex_error&) {
    throw UsageError(std::string(kFilter) + ": got " + quote(filter) +
                     ", expected a regular expression");
  }
}

void check_benchmark_flag(const std::string& flag) {
  const size_t end = std::min(flag.find('='), flag.size());
  const std::string name = name_of(flag);
  const std::string value = end < flag.size() ? flag.substr(end + 1) : "";
  if ((name == "--benchmark_format" || name == "--benchmark_out_format") && value != "json" &&
      value != "console" && value != "csv") {
    throw UsageError(name + ": got " + quote(value) + ", expected console, json or csv");
  }
  if (name == "--benchmark_min_time" || name == "--benchmark_repetitions") {
    const std::string own = name == "--benchmark_min_time" ? "--min-seconds" : "--repetitions";
    throw UsageError(name + ": got " + quote(value) + ", expected " + own + " instead of it");
  }
  if (name == kFilter) {
    parse_filter(value);
  }
  if (name == "--benchmark_out") {
    bench::check_output_file(name, value);
  }
}

}  // namespace

std::optional<std::string> flag_value(const std::vector<std::string>& flags,
                                      const std::string& name) {
  std::optional<std::string> value;
  for (const std::string& flag : flags) {
    if (flag.starts_with(name + "=")) {
      value = flag.substr(name.size() + 1);
    }
  }
  return value;
}

void check_benchmark_flags(const std::vector<std::string>& flags) {
  for (const std::string& flag : flags) {
    check_benchmark_flag(flag);
  }
}

bool list_only(const std::vector<std::string>& flags) {
  constexpr const char* kOff[] = {"false", "0", "no", "off"};
  const bool given = std::find(flags.begin(), flags.end(), kList) != flags.end();
  const std::optional<std::string> value = flag_value(flags, kList);
  return value ? std::find(std::begin(kOff), std::end(kOff), *value) == std::end(kOff) : given;
}

bool is_selected(const std::vector<std::string>& flags, const std::string& name) {
  const auto [inverted, expression] = parse_filter(flag_value(flags, kFilter).value_or("."));
  return std::regex_search(name, expression) != inverted;
}

void initialize_benchmark(const std::vector<std::string>& flags, int repetitions) {
  // Google Benchmark keeps a pointer to argv[0].
  static std::vector<std::string> arguments;
  arguments = {fs::read_symlink("/proc/self/exe").string(),
               "--benchmark_repetitions=" + std::to_string(repetitions)};
  std::copy_if(
      flags.begin(), flags.end(), std::back_inserter(arguments),
      [](const std::string& flag) { return name_of(flag) != kFilter && name_of(flag) != kList; });
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  int count = static_cast<int>(pointers.size());
  pointers.push_back(nullptr);
  benchmark::Initialize(&count, pointers.data());
  if (count > 1) {
    throw UsageError(std::string("Google Benchmark does not know ") + pointers[1] +
                     ", or its value");
  }
}

}  // namespace ddp::micro
