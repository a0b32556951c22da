// tests/support/held_port.hpp - holds a port for ranks that a test starts.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace ddp::test {

/// Port of this host that the kernel gives to no other program. Our programs may listen on it,
/// because both sides set SO_REUSEADDR.
class HeldPort {
 public:
  HeldPort() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const int on = 1;
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    bind(fd_, reinterpret_cast<sockaddr*>(&address), length);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    number_ = std::to_string(ntohs(address.sin_port));
  }
  ~HeldPort() { close(fd_); }
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;
  const std::string& number() const { return number_; }
  /// From now on the kernel takes connections that no program accepts.
  void listen() const { ::listen(fd_, SOMAXCONN); }

 private:
  int fd_;
  std::string number_;
};

}  // namespace ddp::test
