// tests/support/ranks_by_hand.hpp - ranks that a test starts one by one, as without a launcher.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "common/base/files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/run_program.hpp"

namespace ddp::test {

/// Command that runs test cases of this program.
inline std::string own_cases(const std::string& tag) {
  return std::filesystem::read_symlink("/proc/self/exe").native() + " " + tag;
}

/// Addresses of this host at which a program listens, in the kernel's form.
inline std::vector<std::string> listening_at(int port) {
  std::vector<std::string> found;
  for (const char* const table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream lines(table);
    for (std::string number, local, remote, state, rest;
         lines >> number >> local >> remote >> state; std::getline(lines, rest)) {
      const size_t colon = local.find(':');
      if (state == "0A" && std::stoi(local.substr(colon + 1), nullptr, 16) == port) {
        found.push_back(local.substr(0, colon));
      }
    }
  }
  return found;
}

/// Port of this host that the kernel gives to no other program. Our programs may listen on it,
/// because both sides set SO_REUSEADDR.
class HeldPort {
 public:
  HeldPort() {
    const int on = 1;
    setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), length);
    getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    number_ = std::to_string(ntohs(address.sin_port));
  }
  const std::string& number() const { return number_; }
  /// From now on the kernel takes connections that no program accepts.
  void listen() const { ::listen(fd_.get(), SOMAXCONN); }
  /// Takes a connection, and then refuses all, as a server that is killed.
  void end_after_connection() const {
    close(accept(fd_.get(), nullptr, nullptr));
    shutdown(fd_.get(), SHUT_RDWR);
  }

 private:
  FileDescriptor fd_{socket(AF_INET, SOCK_STREAM, 0)};
  std::string number_;
};

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
  void start_both(const std::string& command, const std::string& more = "") {
    start(0, command, more);
    start(1, command, more);
  }
  /// Waits for all ranks, and checks their exit codes and a part of what each said on stderr.
  void check_ends(int exit_code, const std::string& part = "") const {
    for (const auto& rank : started) {
      const RunResult result = rank->wait();
      INFO(result.err);
      CHECK(result.exit_code == exit_code);
      CHECK(contains(result.err, part));
    }
  }
};

}  // namespace ddp::test
