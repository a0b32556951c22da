// common/launch/launch_description.cpp - what ddp-env and --dump-env print about a process.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/launch/launch_environment.hpp"

namespace ddp {

namespace {

const char* kind_name(StoreLocation::Kind kind) {
  switch (kind) {
    case StoreLocation::Kind::kNone:
      return "none";
    case StoreLocation::Kind::kInheritedFile:
      return "inherited_file";
    case StoreLocation::Kind::kMeetingFile:
      return "meeting_file";
    case StoreLocation::Kind::kTcp:
      return "tcp";
    case StoreLocation::Kind::kAgentTcp:
      return "agent_tcp";
    case StoreLocation::Kind::kSharedFile:
      return "shared_file";
  }
  return "unknown";
}

std::string describe_as_json(const LaunchEnvironment& environment) {
  const StoreLocation& store = environment.store;
  nlohmann::ordered_json document = {
      {"launcher", environment.launcher},
      {"rank", environment.rank},
      {"local_rank", environment.local_rank},
      {"world_size", environment.world_size},
      {"local_world_size", environment.local_world_size},
      {"node_rank", environment.node_rank},
      {"num_nodes", environment.num_nodes},
      {"restart_count", environment.restart_count},
      {"store",
       {{"kind", kind_name(store.kind)},
        {"host", store.host},
        {"port", store.port},
        {"fd", store.fd},
        {"file", store.file},
        {"sealed", !store.key.empty()},
        {"prefix", store.prefix}}},
      {"evidence", nlohmann::ordered_json::array()},
  };
  for (const auto& [what, value, source] : environment.evidence) {
    document["evidence"].push_back({{"what", what}, {"value", value}, {"source", source}});
  }
  // Host names and ids come from outside and need not be UTF-8.
  return document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string describe(const LaunchEnvironment& environment, bool json) {
  if (json) {
    return describe_as_json(environment);
  }
  std::string text;
  const auto line = [&text](const std::string& name, const std::string& value) {
    text += fmt::format("{:<19} {}\n", name, value);
  };
  const auto of = [](int number, int count) { return fmt::format("{} of {}", number, count); };
  const StoreLocation& store = environment.store;
  line("launcher", environment.launcher);
  line("rank", of(environment.rank, environment.world_size));
  line("local rank", of(environment.local_rank, environment.local_world_size));
  line("node", of(environment.node_rank, environment.num_nodes));
  line("restarts", std::to_string(environment.restart_count));
  line("store", kind_name(store.kind) +
                    (store.port > 0 ? fmt::format(" {}:{}", store.host, store.port) : "") +
                    (store.file.empty() ? "" : " " + store.file) +
                    (store.fd >= 0 ? fmt::format(" (descriptor {})", store.fd) : "") +
                    (store.key.empty() ? "" : " (sealed)"));
  line("store prefix", store.prefix);
  text += environment.evidence.empty() ? "nobody started this process\n" : "because\n";
  for (const auto& [what, value, source] : environment.evidence) {
    line("  " + what, fmt::format("{}  ({})", value, source));
  }
  return text;
}

}  // namespace ddp
