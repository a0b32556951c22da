// tools/submit/presence.cpp - abstract sockets as names that end with their processes.
#include "tools/submit/presence.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <system_error>

#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

int make_socket() {
  return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

/// @param call bind or connect
template <typename Call>
int call_with_address(const Call& call, const FileDescriptor& socket, const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // The zero in front makes it a name of no file.
  const std::size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::copy_n(name.begin(), length, address.sun_path + 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return call(socket.get(), reinterpret_cast<const sockaddr*>(&address), size);
}

}  // namespace

Presence::Presence(const std::string& name)
    : socket_(make_socket()), is_ours_(call_with_address(bind, socket_, name) == 0) {
  if (const int error = errno; !is_ours_ && error != EADDRINUSE) {
    throw Error(ExitCode::kTrainingFailed,
                "cannot make a socket: " + std::generic_category().message(error));
  }
}

std::string this_machine() {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  const std::string boot = read_text("/proc/sys/kernel/random/boot_id").value_or("?\n");
  std::error_code error;
  return fmt::format("{} {} {}", host, boot.substr(0, boot.find('\n')),
                     std::filesystem::read_symlink("/proc/self/ns/net", error).string());
}

std::optional<bool> is_present(const std::string& name, const std::string& machine) {
  const std::string here = this_machine();
  if (machine != here) {
    const std::vector<std::string> there_parts = split(machine, ' ');
    const std::vector<std::string> here_parts = split(here, ' ');
    const bool has_rebooted = there_parts.size() == here_parts.size() &&
                              there_parts[0] == here_parts[0] && there_parts[1] != here_parts[1];
    return has_rebooted ? std::optional<bool>(false) : std::nullopt;
  }
  const FileDescriptor socket(make_socket());
  const bool connected = call_with_address(connect, socket, name) == 0;
  const bool refused = !connected && errno == ECONNREFUSED;
  return connected || refused ? std::optional<bool>(connected) : std::nullopt;
}

}  // namespace ddp::submit
