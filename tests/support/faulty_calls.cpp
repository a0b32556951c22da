// tests/support/faulty_calls.cpp - linked or preloaded: a call to the system that touches a file of
// a certain folder fails, does half, takes long, or is the last of its process.
//
// DDP_FAULT: "kill" (SIGKILL just before the call), "short" (a write of half), "sleep <seconds>",
// "lost" (somebody removes the file just before), "locked" (likewise, and holds its lock), or an
// errno. DDP_FAULT_FOLDER: calls for files below it, by absolute path, count. DDP_FAULT_CALL:
// only this one does. DDP_FAULT_AT: of those that count the n-th is hit; without it all are.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

extern "C" {
/// How many have counted.
std::atomic<int> ddp_fault_calls{0};
}

namespace {

template <typename Function>
Function original(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

enum class Fault { kNone, kError, kShort };

Fault fault_of(const char* call, const char* path) {
  const char* const fault = std::getenv("DDP_FAULT");
  const char* const folder = std::getenv("DDP_FAULT_FOLDER");
  if (fault == nullptr || folder == nullptr || path == nullptr ||
      std::strncmp(path, folder, std::strlen(folder)) != 0) {
    return Fault::kNone;
  }
  const char* const only = std::getenv("DDP_FAULT_CALL");
  if (only != nullptr && std::strcmp(only, call) != 0) {
    return Fault::kNone;
  }
  const char* const at = std::getenv("DDP_FAULT_AT");
  const int count = ++ddp_fault_calls;
  if (at != nullptr && count != std::atoi(at)) {
    return Fault::kNone;
  }
  const std::string what = fault;
  if (what == "kill") {
    kill(getpid(), SIGKILL);
  }
  if (what == "short") {
    return Fault::kShort;
  }
  if (what.rfind("sleep ", 0) == 0) {
    const double seconds = std::atof(what.c_str() + std::strlen("sleep "));
    timespec left{
        static_cast<time_t>(seconds),
        static_cast<long>((seconds - static_cast<double>(static_cast<long>(seconds))) * 1e9)};
    while (nanosleep(&left, &left) != 0) {
    }
    return Fault::kNone;
  }
  if (what == "lost" || what == "locked") {
    original<int (*)(const char*)>("unlink")(path);
    errno = EWOULDBLOCK;
    return what == "lost" ? Fault::kNone : Fault::kError;
  }
  errno = std::atoi(fault);
  return Fault::kError;
}

Fault fault_of(const char* call, int fd) {
  if (std::getenv("DDP_FAULT") == nullptr) {
    return Fault::kNone;
  }
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = readlink(link.c_str(), path, sizeof(path) - 1);
  path[size < 0 ? 0 : size] = '\0';
  return fault_of(call, path);
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return fault_of("open", path) == Fault::kError
             ? -1
             : original<int (*)(const char*, int, ...)>("open")(path, flags, mode);
}
int close(int fd) {
  const Fault fault = fault_of("close", fd);
  const int error = errno;
  const int result = original<int (*)(int)>("close")(fd);
  if (fault != Fault::kError) {
    return result;
  }
  errno = error;
  return -1;
}
int flock(int fd, int operation) noexcept {
  return fault_of("flock", fd) == Fault::kError
             ? -1
             : original<int (*)(int, int)>("flock")(fd, operation);
}
int fsync(int fd) {
  return fault_of("fsync", fd) == Fault::kError ? -1 : original<int (*)(int)>("fsync")(fd);
}
ssize_t read(int fd, void* bytes, size_t size) {
  const Fault fault = fault_of("read", fd);
  return fault == Fault::kError ? -1
                                : original<ssize_t (*)(int, void*, size_t)>("read")(
                                      fd, bytes, fault == Fault::kShort ? (size + 1) / 2 : size);
}
ssize_t pwrite(int fd, const void* bytes, size_t size, off_t position) {
  const Fault fault = fault_of("pwrite", fd);
  return fault == Fault::kError
             ? -1
             : original<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite")(
                   fd, bytes, fault == Fault::kShort ? (size + 1) / 2 : size, position);
}
int access(const char* path, int mode) noexcept {
  return fault_of("access", path) == Fault::kError
             ? -1
             : original<int (*)(const char*, int)>("access")(path, mode);
}
int link(const char* from, const char* to) noexcept {
  return fault_of("link", to) == Fault::kError
             ? -1
             : original<int (*)(const char*, const char*)>("link")(from, to);
}
int rename(const char* from, const char* to) noexcept {
  return fault_of("rename", from) == Fault::kError
             ? -1
             : original<int (*)(const char*, const char*)>("rename")(from, to);
}
int unlink(const char* path) noexcept {
  return fault_of("unlink", path) == Fault::kError ? -1
                                                   : original<int (*)(const char*)>("unlink")(path);
}

}  // extern "C"
