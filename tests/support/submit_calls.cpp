// tests/support/submit_calls.cpp - submit as a function: command after command in one process.
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "tools/submit/commands.hpp"

namespace {

/// The answer's parts are told apart by their lengths: they may hold anything.
void answer(int code, const std::string& out, const std::string& error) {
  std::cout << code << ' ' << out.size() << ' ' << error.size() << '\n'
            << out << error << std::flush;
}

void run_submit(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"submit"};
  for (const std::string& argument : arguments) {
    argv.push_back(argument.c_str());
  }
  std::ostringstream out;
  std::streambuf* const before = std::cout.rdbuf(out.rdbuf());
  int code = 0;
  std::string error;
  try {
    code = ddp::submit::run(static_cast<int>(argv.size()), argv.data());
  } catch (const ddp::Error& refused) {
    code = static_cast<int>(refused.code());
    error = refused.what();
  }
  std::cout.rdbuf(before);
  answer(code, out.str(), error);
}

}  // namespace

/// Standard input: for each call the number of arguments, a newline, and each with a NUL behind it.
int main() {
  for (std::string count; std::getline(std::cin, count);) {
    std::vector<std::string> arguments(std::stoul(count));
    for (std::string& argument : arguments) {
      std::getline(std::cin, argument, '\0');
    }
    run_submit(arguments);
  }
  return 0;
}
