// tests/support/ranks_by_hand.hpp - ranks that a test starts one by one, as without a launcher.
#pragma once

#include <filesystem>
#include <memory>

#include "common/base/files.hpp"
#include "tests/support/held_port.hpp"
#include "tests/support/run_program.hpp"

namespace ddp::test {

/// Command that runs test cases of this program.
inline std::string own_cases(const std::string& tag) {
  return std::filesystem::read_symlink("/proc/self/exe").native() + " " + tag;
}

/// Two ranks on this host, in a folder and at a port of their own.
struct RanksByHand {
  ScratchFolder folder{"ddp-ranks"};
  HeldPort port;
  std::vector<std::unique_ptr<Program>> started;

  /// @param more variables beside those of a start by hand, or instead of them
  Program& start(int rank, const std::string& command, const std::string& more = "") {
    const std::string number = std::to_string(rank);
    RunOptions options;
    options.cwd = folder.path();
    options.environment =
        variables("RANK=" + number + " LOCAL_RANK=" + number +
                  " WORLD_SIZE=2 MASTER_PORT=" + port.number() + " MASTER_ADDR=127.0.0.1 " + more);
    return *started.emplace_back(std::make_unique<Program>(words(command), options));
  }
};

}  // namespace ddp::test
