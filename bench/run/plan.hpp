// bench/run/plan.hpp - what is compared: stages x launchers x world sizes on which workload.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/run/configuration.hpp"
#include "bench/run/settings.hpp"

namespace ddp::bench {

/// A launcher that was found on this machine.
struct Launcher {
  std::string path;
  std::optional<std::string> version;
};

/// Something that a reader may miss in the report, and why it is not there.
struct NotRun {
  std::string what;
  std::string reason;
};

struct Plan {
  std::vector<Configuration> configurations;
  std::vector<NotRun> not_run;
  std::map<std::string, Launcher> launchers;  ///< by name
  std::map<std::string, std::string>
      peer_pythons;  ///< interpreter of each peer that is not built here
  std::string device = "cpu";
  std::string stage_dir;
  std::string peers_dir;
  std::vector<std::string> notes;  ///< decisions that the reader should know
};

/// Finds programs and launchers, starts nothing.
/// @throws UsageError if what was asked for by name is not there
Plan make_plan(const Settings& settings);

}  // namespace ddp::bench
