// tests/support/kill_at.cpp - preloaded into submit: SIGKILL just before the n-th call that leaves
// something behind.
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

void count_call() {
  static int calls = 0;
  const char* const at = getenv("DDP_KILL_AT");
  if (at != nullptr && strcmp(program_invocation_short_name, "submit") == 0 &&
      ++calls == atoi(at)) {
    kill(getpid(), SIGKILL);
  }
}

template <typename Function>
Function original(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int mkdir(const char* path, mode_t mode) noexcept {
  count_call();
  return original<int (*)(const char*, mode_t)>("mkdir")(path, mode);
}
int fsync(int fd) {
  count_call();
  return original<int (*)(int)>("fsync")(fd);
}
int rename(const char* from, const char* to) noexcept {
  count_call();
  return original<int (*)(const char*, const char*)>("rename")(from, to);
}
int link(const char* from, const char* to) noexcept {
  count_call();
  return original<int (*)(const char*, const char*)>("link")(from, to);
}
int unlink(const char* path) noexcept {
  count_call();
  return original<int (*)(const char*)>("unlink")(path);
}
int bind(int fd, const sockaddr* address, socklen_t size) noexcept {
  count_call();
  return original<int (*)(int, const sockaddr*, socklen_t)>("bind")(fd, address, size);
}
pid_t fork() noexcept {
  count_call();
  return original<pid_t (*)()>("fork")();
}

}  // extern "C"
