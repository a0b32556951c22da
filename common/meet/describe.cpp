// common/meet/describe.cpp - an identity as ddp-env prints it.
#include <fmt/format.h>

#include "common/base/json_text.hpp"
#include "common/meet/launch.hpp"

namespace ddp {
namespace {

nlohmann::ordered_json to_json(const LaunchEnvironment& environment) {
  const char* const kinds[] = {"none", "file", "tcp", "agent_tcp", "shared_file"};
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
       {{"kind", kinds[static_cast<size_t>(store.kind)]},
        {"host", store.host},
        {"port", store.port},
        {"file", store.file},
        {"prefix", store.prefix}}},
      {"evidence", nlohmann::ordered_json::array()},
  };
  for (const auto& [what, value, source] : environment.evidence) {
    document["evidence"].push_back({{"what", what}, {"value", value}, {"source", source}});
  }
  return document;
}

}  // namespace

std::string describe(const LaunchEnvironment& environment, bool json) {
  nlohmann::ordered_json document = to_json(environment);
  if (json) {
    return json_text(document) + "\n";
  }
  document.erase("evidence");
  std::string text;
  for (const auto& [name, value] : document.items()) {
    text += fmt::format("{:<18}{}\n", name,
                        value.is_string() ? value.get<std::string>() : json_text(value));
  }
  text += environment.evidence.empty() ? "no launcher started this process\n" : "because\n";
  for (const auto& [what, value, source] : environment.evidence) {
    text +=
        fmt::format("  {:<16}{}  ({})\n", what, json_text(nlohmann::ordered_json(value)), source);
  }
  return text;
}

}  // namespace ddp
