#include "tests/support/run_program.hpp"

#include <algorithm>
#include <fstream>
#include <ranges>

#include "common/base/patience.hpp"
#include "tests/support/catch.hpp"

namespace ddp::test {
namespace {

bool runs(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(stat, line);
  // "123 (name) Z ...": a zombie.
  return !line.empty() && line.substr(line.rfind(')') + 2, 1) != "Z";
}

}  // namespace

bool wait_until(double seconds, const std::function<bool()>& holds) {
  const auto start = std::chrono::steady_clock::now();
  while (!holds()) {
    if (seconds_since(start) > seconds) {
      return false;
    }
    usleep(10'000);
  }
  return true;
}

Program::Program(const std::vector<std::string>& argv, const RunOptions& options)
    : CapturedChild(argv,
                    {.environment = environment_with(options.environment), .cwd = options.cwd}),
      timeout_seconds_(options.timeout_seconds) {}

bool Program::wait_for_output(const std::string& text) const {
  return wait_until(timeout_seconds_, [&] { return contains(out(), text); });
}

std::vector<std::string> words(const std::string& line) {
  std::vector<std::string> found;
  for (const auto word : line | std::views::split(' ')) {
    if (!word.empty()) {
      found.emplace_back(word.begin(), word.end());
    }
  }
  return found;
}

Changes variables(const std::string& line) {
  Changes found;
  for (const std::string& word : words(line)) {
    const size_t equals = word.find('=');
    found[word.substr(0, equals)] =
        equals == std::string::npos ? std::nullopt : std::optional(word.substr(equals + 1));
  }
  return found;
}

RunResult run_program(const std::vector<std::string>& argv, const RunOptions& options) {
  return Program(argv, options).wait();
}

void check_one_line(const RunResult& result, int exit_code, const std::vector<std::string>& parts) {
  INFO("stdout: " << result.out.substr(0, 1000) << "\nstderr: " << result.err);
  CHECK(result.exit_code == exit_code);
  CHECK(std::ranges::count(result.err, '\n') == 1);
  for (const std::string& part : parts) {
    INFO("expected " << part);
    CHECK(contains(result.err, part));
  }
}

std::vector<pid_t> children_of(pid_t parent) {
  std::ifstream list("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) +
                     "/children");
  return {std::istream_iterator<pid_t>(list), {}};
}

bool all_gone_within(const std::vector<pid_t>& pids, double seconds) {
  return wait_until(seconds, [&] { return std::ranges::none_of(pids, runs); });
}

}  // namespace ddp::test
