#include "bench/run/peer_installation.hpp"

#include <filesystem>

#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

constexpr double kInstallTimeoutSeconds = 1800;  // some frameworks are gigabytes

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') {
    text.pop_back();
  }
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace

void install_peers(const std::string& scratch, Interrupts& interrupts, Progress& progress,
                   Plan& plan) {
  for (auto& [peer, installed_python] : plan.peer_pythons) {
    progress.note("peer " + peer + ": checking what is installed");
    const Command command = {
        .argv = {(std::filesystem::path(plan.peers_dir) / "install.sh").string(), peer},
        .env = {},
        .cwd = "",
        .timeout_s = kInstallTimeoutSeconds,
    };
    const ChildResult result = run_child(command, scratch, interrupts);
    if (result.interrupted) {
      return;
    }
    const std::string python = last_line(result.out);
    if (!result.ok() || python.empty()) {
      throw UsageError("--peers " + peer + " cannot be installed: " + last_line(result.err));
    }
    installed_python = python;
  }
}

}  // namespace ddp::bench
