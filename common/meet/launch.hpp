// common/meet/launch.hpp - finds this process's rank in the variables of its launcher.
#pragma once

#include <string_view>

#include "common/meet/launchers.hpp"

namespace ddp {

/// Explicit identity, which overrides the launcher's.
struct IdentityOptions {
  std::optional<int> rank;
  std::optional<int> local_rank;
  std::optional<int> world_size;
  std::optional<int> local_world_size;
  std::string master_addr;
  std::optional<int> master_port;
};

/// Finds the identity by the first of launchers() that recognises this process; else the process
/// is alone. Opens no socket.
/// @throws UsageError naming a variable that is missing, malformed, out of range or contradictory,
/// or a variable of an unknown launcher that started several processes
LaunchEnvironment read_launch_environment(const IdentityOptions& options = {},
                                          const Variables& variables = process_variables());

/// True if `variable`, a "NAME=value" of this process, tells it its place in a job. A program that
/// starts a job of its own must not pass it on.
bool is_identity_variable(std::string_view variable);

}  // namespace ddp
