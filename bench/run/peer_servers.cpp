#include "bench/run/peer_servers.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "common/base/process.hpp"

namespace ddp::bench {

namespace {

void end_process(pid_t pid) {
  if (!has_ended(pid)) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

}  // namespace

PeerServers::~PeerServers() {
  for (const auto& [peer, pid] : servers_) {
    end_process(pid);
  }
}

void PeerServers::end_others() {
  std::erase_if(servers_, [&](const auto& server) {
    const bool is_ready = !socket_of(server.first).empty();
    if (!is_ready) {
      end_process(server.second);
    }
    return !is_ready;
  });
}

void PeerServers::start(const std::string& peer, const std::string& python,
                        const std::string& program) {
  const FileDescriptor nowhere(open("/dev/null", O_WRONLY | O_CLOEXEC));
  StartOptions options;
  options.out_fd = options.err_fd = nowhere.get();
  options.parent_death_signal = SIGKILL;
  try {
    servers_[peer] = start_process({python, program, "--serve", socket_path(peer)}, options);
  } catch (const std::system_error&) {
    // A run says what is wrong.
  }
}

bool PeerServers::settled() const {
  return std::ranges::all_of(servers_, [&](const auto& server) {
    return has_ended(server.second) || !socket_of(server.first).empty();
  });
}

std::string PeerServers::socket_of(const std::string& peer) const {
  std::error_code error;
  const auto server = servers_.find(peer);
  const bool is_ready = server != servers_.end() && !has_ended(server->second) &&
                        std::filesystem::exists(socket_path(peer), error);
  return is_ready ? socket_path(peer) : "";
}

bool PeerServers::contains(pid_t pid) const {
  return std::ranges::any_of(servers_, [&](const auto& server) { return server.second == pid; });
}

}  // namespace ddp::bench
