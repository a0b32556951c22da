// bench/run/plan.hpp - what is compared: stages x launchers x world sizes on which workload.
#pragma once

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
  Settings settings;  ///< with an absolute stage_dir and the device that is meant
  std::vector<Configuration> configurations;
  std::vector<NotRun> not_run;
  std::map<std::string, Launcher> launchers;  ///< by name
  /// Of each peer that is not built here. One that is not among settings.peers takes part only if
  /// it is installed.
  std::map<std::string, std::string> peer_pythons;
  std::vector<std::string> notes;  ///< decisions that the reader should know

  std::string program_path(const std::string& name) const {
    return (std::filesystem::path(settings.stage_dir) / name).string();
  }
};

/// Finds programs and launchers, starts nothing.
/// @throws UsageError if what was asked for by name is not there
Plan make_plan(Settings settings);

}  // namespace ddp::bench
