// tests/support/without_sockets.cpp - `without_sockets PROGRAM ARGUMENTS...` runs a program that
// the kernel kills, by SIGSYS, the moment it asks for a socket.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "which system calls make sockets is known for x86-64 and arm64"
#endif

int main(int argc, char** argv) {
  constexpr int kCannot = 125;
  if (argc < 2) {
    std::fputs("usage: without_sockets PROGRAM [ARGUMENTS...]\n", stderr);
    return kCannot;
  }
  std::array filter = {
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_socket, 1, 0),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_socketpair, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0) {
    execv(argv[1], argv + 1);
  }
  std::fprintf(stderr, "without_sockets: cannot run %s: %s\n", argv[1], std::strerror(errno));
  return kCannot;
}
