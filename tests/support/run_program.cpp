#include "tests/support/run_program.hpp"

#include <sstream>

namespace ddp::test {
namespace {

ChildOptions child_options(const RunOptions& options) {
  ChildOptions result;
  result.environment = environment_with(options.environment);
  result.cwd = options.cwd;
  result.timeout_s = options.timeout_seconds;
  result.capture = true;
  return result;
}

}  // namespace

Program::Program(const std::vector<std::string>& argv, const RunOptions& options)
    : Child(argv, child_options(options)) {}

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

RunResult run_program(const std::vector<std::string>& argv, const RunOptions& options) {
  return Program(argv, options).wait();
}

}  // namespace ddp::test
