// bench/peers/run_peer.hpp - what a peer's command line has and a stage's has not.
#pragma once

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
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

/// Answers --list-variants, takes --variant off the command line, and leaves the rest to `start`,
/// which is run_alone() or spawn().
/// @return the exit code of the program
inline int run_peer(int argc, char** argv, const PeerProgram& program, TrainFunction train,
                    int (*start)(int, char**, TrainFunction)) {
  if (argc == 2 && std::strcmp(argv[1], "--list-variants") == 0) {
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
    const bool is_variant = i + 1 < argc && std::strcmp(argv[i], "--variant") == 0;
    if (is_variant && std::strcmp(argv[i + 1], program.variant) != 0) {
      std::fprintf(stderr, "%s: error: --variant is \"%s\", expected %s\n", program.name,
                   argv[i + 1], program.variant);
      return static_cast<int>(ExitCode::kUsage);
    }
    if (is_variant) {
      ++i;
    } else {
      arguments.push_back(argv[i]);
    }
  }
  const int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  return start(count, arguments.data(), train);
}

}  // namespace ddp
