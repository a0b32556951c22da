// ddp-env - prints the rank of this process and the variables that say so. Start it like a stage.

#include <iostream>

#include "common/base/command_line.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/json_text.hpp"
#include "common/device/blas.hpp"
#include "common/launch/run_main.hpp"
#include "common/meet/launch.hpp"

namespace {

nlohmann::ordered_json to_json(const ddp::LaunchEnvironment& environment) {
  const char* const kinds[] = {"none", "file", "tcp", "agent_tcp", "shared_file"};
  const ddp::StoreLocation& store = environment.store;
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
  if (environment.world_size == 1) {  // srun mixes the ranks' lines if they have over 1024 bytes
    document["blas"] = ddp::find_blas();
  }
  for (const auto& [what, value, source] : environment.evidence) {
    document["evidence"].push_back({{"what", what}, {"value", value}, {"source", source}});
  }
  return document;
}

/// The facts in aligned lines, and below them their sources.
std::string to_table(nlohmann::ordered_json document) {
  const nlohmann::ordered_json evidence = document["evidence"];
  document.erase("evidence");
  std::string text;
  document = document.flatten();
  for (const auto& [pointer, value] : document.items()) {
    std::string name = pointer.substr(1);  // of "/store/kind"
    std::ranges::replace(name, '/', '.');
    const std::string shown = value.is_string() ? value.get<std::string>() : ddp::json_text(value);
    text += shown.empty() ? "" : fmt::format("{:<18}{}\n", name, shown);
  }
  text += evidence.empty() ? "no launcher started this process\n" : "because\n";
  for (const auto& fact : evidence) {
    text += fmt::format("  {:<16}{}  ({})\n", fact["what"].get<std::string>(),
                        ddp::json_text(fact["value"]), fact["source"].get<std::string>());
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::run_program([argc, argv](std::string&) {
    bool json = false;
    ddp::CommandLine line(
        "ddp-env",
        "Prints the rank, world size and store that a stage would find in this environment, and "
        "why; one process alone also names the library behind LibTorch's matrix products.",
        "ddp-env " DDP_VERSION,
        "Examples: torchrun --nproc-per-node=2 --no-python ddp-env; srun -n4 ddp-env --json\n"
        "Exit codes: 0 found, 2 the environment contradicts itself.",
        30);
    line.group("Options").add("--json", ddp::takes::flag(json), "print a JSON line");
    line.parse(argc, argv);
    const nlohmann::ordered_json document = to_json(ddp::read_launch_environment());
    std::cout << (json ? ddp::json_text(document) + "\n" : to_table(document));
    return static_cast<int>(ddp::ExitCode::kDone);
  });
}
