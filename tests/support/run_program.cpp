#include "tests/support/run_program.hpp"

#include <cstdlib>
#include <sstream>

namespace ddp::test {
namespace {

CaptureOptions capture_options(const RunOptions& options) {
  CaptureOptions result;
  result.start.environment = environment_with(
      options.environment, [&](std::string_view) { return options.clear_environment; });
  result.start.cwd = options.cwd;
  result.timeout_s = options.timeout_seconds;
  result.merge = options.merge;
  return result;
}

}  // namespace

Program::Program(const std::vector<std::string>& argv, const RunOptions& options)
    : CapturedProcess(argv, capture_options(options)) {}

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

int repeats() {
  const char* const wanted = std::getenv("DDP_TEST_REPEATS");
  return wanted == nullptr ? 5 : std::stoi(wanted);
}

RunResult run_program(const std::vector<std::string>& argv, const RunOptions& options) {
  return Program(argv, options).wait();
}

}  // namespace ddp::test
