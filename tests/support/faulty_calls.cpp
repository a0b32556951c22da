// tests/support/faulty_calls.cpp - linked or preloaded: a system call for a file of a folder fails,
// does half of its work, or ends the process.
//
// DDP_FAULT: "kill" (SIGKILL just before the call), "short" (a write of half), or an errno.
// DDP_FAULT_FOLDER: counts calls for files below it, by absolute path. DDP_FAULT_AT: number of the
// call with the fault. DDP_FAULT_CALL: counts only calls of this name. DDP_CUT_AT: number of Gloo's
// message under which the connection breaks, after the peer's own message has arrived.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

extern "C" {
/// Number of counted calls.
std::atomic<int> ddp_fault_calls{0};
}

namespace {

constexpr int kHeadAndBody = 2;  // a head without body only announces a message
std::atomic<int> messages{0};

enum class Fault { kNone, kError, kShort };

Fault fault_of(const char* call, const std::string& path) {
  const char* const fault = std::getenv("DDP_FAULT");
  const char* const folder = std::getenv("DDP_FAULT_FOLDER");
  const char* const at = std::getenv("DDP_FAULT_AT");
  const char* const only = std::getenv("DDP_FAULT_CALL");
  if (fault == nullptr || folder == nullptr || at == nullptr || !path.starts_with(folder) ||
      (only != nullptr && std::strcmp(only, call) != 0) || ++ddp_fault_calls != std::atoi(at)) {
    return Fault::kNone;
  }
  if (std::strcmp(fault, "kill") == 0) {
    kill(getpid(), SIGKILL);
  }
  errno = std::atoi(fault);
  return std::strcmp(fault, "short") == 0 ? Fault::kShort : Fault::kError;
}

Fault fault_of(const char* call, int fd) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size =
      std::getenv("DDP_FAULT") == nullptr ? 0 : readlink(link.c_str(), path, sizeof(path));
  return fault_of(call, std::string(path, size < 0 ? 0 : static_cast<size_t>(size)));
}

}  // namespace

// The real work is done by calls of other names, which are not replaced.
extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return fault_of("open", path) == Fault::kError ? -1 : openat(AT_FDCWD, path, flags, mode);
}
int fsync(int fd) {
  return fault_of("fsync", fd) == Fault::kError ? -1 : static_cast<int>(syscall(SYS_fsync, fd));
}
ssize_t pwrite(int fd, const void* bytes, size_t size, off_t position) {
  const Fault fault = fault_of("pwrite", fd);
  const size_t part = fault == Fault::kShort ? (size + 1) / 2 : size;
  return fault == Fault::kError ? -1 : pwrite64(fd, bytes, part, position);
}
int link(const char* from, const char* to) noexcept {
  return fault_of("link", to) == Fault::kError ? -1 : linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int rename(const char* from, const char* to) noexcept {
  return fault_of("rename", from) == Fault::kError ? -1 : renameat(AT_FDCWD, from, AT_FDCWD, to);
}
int unlink(const char* path) noexcept {
  return fault_of("unlink", path) == Fault::kError ? -1 : unlinkat(AT_FDCWD, path, 0);
}
ssize_t writev(int socket, const iovec* parts, int count) {
  using Writev = ssize_t (*)(int, const iovec*, int);
  static const auto real_writev = reinterpret_cast<Writev>(dlsym(RTLD_NEXT, "writev"));
  static const char* const cut_at = std::getenv("DDP_CUT_AT");
  if (cut_at != nullptr && count == kHeadAndBody && ++messages == std::atoi(cut_at)) {
    usleep(50'000);
    shutdown(socket, SHUT_RDWR);
  }
  return real_writev(socket, parts, count);
}

}  // extern "C"
