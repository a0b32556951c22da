// bench/peers/run_peer.hpp - what a peer's command line has and a stage's has not.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "common/launch/spawn.hpp"

namespace ddp {

/// A peer with one way of training.
struct PeerProgram {
  const char* name;  ///< of the executable
  const char* variant;
  const char* description;
  int min_processes;
  std::vector<const char*> devices;
};

/// The part of `argument` before "=", with dashes: options are named with either.
inline std::string option_name(std::string_view argument) {
  std::string name(argument.substr(0, argument.find('=')));
  std::ranges::replace(name, '_', '-');
  return name;
}

/// Answers --list-variants, takes --variant off the command line, and leaves the rest to `start`,
/// which is run_alone() or spawn().
/// @return the exit code of the program
inline int run_peer(int argc, char** argv, const PeerProgram& program, TrainFunction train,
                    int (*start)(int, char**, TrainFunction)) {
  if (argc == 2 && option_name(argv[1]) == "--list-variants") {
    std::printf("%s\n", nlohmann::json{{"variant", program.variant},
                                       {"description", program.description},
                                       {"min_processes", program.min_processes},
                                       {"max_processes", nullptr},
                                       {"devices", program.devices}}
                            .dump()
                            .c_str());
    return 0;
  }
  std::vector<char*> arguments;
  for (int i = 0; i < argc; ++i) {
    if (option_name(argv[i]) != "--variant") {
      arguments.push_back(argv[i]);
      continue;
    }
    const char* const equals = std::strchr(argv[i], '=');
    const std::string variant = equals != nullptr ? equals + 1 : i + 1 < argc ? argv[++i] : "";
    if (variant != program.variant) {
      std::fprintf(stderr, "%s: error: --variant is \"%s\", expected %s\n", program.name,
                   variant.c_str(), program.variant);
      return static_cast<int>(ExitCode::kUsage);
    }
  }
  const int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  return start(count, arguments.data(), train);
}

}  // namespace ddp
