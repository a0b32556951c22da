// tests/backends/cut_connection.cpp - preloaded: breaks the connection under Gloo's message number
// DDP_CUT_AT, after the peer's own message has arrived.
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace {

constexpr int kHeadAndBody = 2;  // a head without body only announces a message
std::atomic<int> messages{0};

}  // namespace

extern "C" ssize_t writev(int socket, const iovec* parts, int count) {
  using Writev = ssize_t (*)(int, const iovec*, int);
  static const auto real_writev = reinterpret_cast<Writev>(dlsym(RTLD_NEXT, "writev"));
  static const char* const cut_at = std::getenv("DDP_CUT_AT");
  if (cut_at != nullptr && count == kHeadAndBody && ++messages == std::atoi(cut_at)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    shutdown(socket, SHUT_RDWR);
  }
  return real_writev(socket, parts, count);
}
