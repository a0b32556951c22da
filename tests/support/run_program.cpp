#include "tests/support/run_program.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>

#include "common/base/patience.hpp"

namespace ddp::test {
namespace {

ChildOptions child_options(const RunOptions& options) {
  ChildOptions result;
  result.environment = environment_with(options.environment);
  result.cwd = options.cwd;
  return result;
}

}  // namespace

Program::Program(const std::vector<std::string>& argv, const RunOptions& options)
    : CapturedChild(argv, child_options(options)), timeout_seconds_(options.timeout_seconds) {}

bool Program::wait_for_output(const std::string& text) const {
  const auto start = std::chrono::steady_clock::now();
  bool is_there = false;
  while (!is_there && seconds_since(start) < timeout_seconds_) {
    usleep(10'000);
    is_there = out().find(text) != std::string::npos;
  }
  return is_there;
}

std::vector<std::string> words(const std::string& line) {
  std::vector<std::string> found;
  std::istringstream text(line);
  for (std::string word; std::getline(text, word, ' ');) {
    if (!word.empty()) {
      found.push_back(word);
    }
  }
  return found;
}

Variables variables(const std::string& line) {
  Variables found;
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

namespace {

bool runs(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(stat, line);
  // "123 (name) Z ...": a zombie.
  return !line.empty() && line.substr(line.rfind(')') + 2, 1) != "Z";
}

}  // namespace

std::vector<pid_t> children_of(pid_t parent) {
  std::ifstream list("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) +
                     "/children");
  return {std::istream_iterator<pid_t>(list), {}};
}

bool all_gone_within(const std::vector<pid_t>& pids, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::any_of(pids.begin(), pids.end(), runs)) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

}  // namespace ddp::test
