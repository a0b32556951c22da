// bench/run/plan.hpp - what is compared: stages x launchers x world sizes on which workload.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "bench/report/record.hpp"
#include "bench/run/configuration.hpp"
#include "bench/run/settings.hpp"

namespace ddp::bench {

/// A launcher that was found on this machine.
struct Launcher {
  std::string path;
  std::string version = "";  ///< what it says of itself; empty: not known
};

struct Plan {
  std::vector<Configuration> configurations;
  std::vector<NotRun> not_run;
  std::map<std::string, Launcher> launchers;  ///< by name
  std::map<std::string, std::string> peer_pythons;  ///< of each peer that is not built here
  std::string device;
  std::uint64_t seed = 0;
  std::string stage_dir;
  std::string peers_dir;
  std::vector<std::string> notes;  ///< decisions that the reader should know

  std::string program_path(const std::string& name) const {
    return (std::filesystem::path(stage_dir) / name).string();
  }
};

/// Finds programs and launchers, starts nothing.
/// @throws UsageError if what was asked for by name is not there
Plan make_plan(const Settings& settings);

}  // namespace ddp::bench
