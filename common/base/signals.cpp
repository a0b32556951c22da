#include "common/base/signals.hpp"

#include <unistd.h>

#include <atomic>
#include <csignal>

#include "common/base/exit_codes.hpp"

namespace ddp {
namespace {

// Atomic, because the handler may run in any thread. A signal handler must not lock.
std::atomic<int> requested{0};
static_assert(std::atomic<int>::is_always_lock_free);

void remember(int signal) {
  requested = signal;
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction old {};
  sigaction(signal, nullptr, &old);
  if (old.sa_handler == SIG_IGN) {
    return;
  }
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // the signal does not interrupt calls of LibTorch
  sigaction(signal, &action, nullptr);
}

}  // namespace

void remember_user_signals() {
  sigset_t user_signals;
  sigemptyset(&user_signals);
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    handle(signal, remember);
    sigaddset(&user_signals, signal);
  }
  pthread_sigmask(SIG_UNBLOCK, &user_signals, nullptr);  // spawn's ranks begin with them blocked
}

void watch_for_stop_request() {
  remember_user_signals();
  handle(SIGTERM, remember);
}

int stop_request() {
  return requested;
}

void survive_broken_connections() {
  handle(SIGPIPE, SIG_IGN);
}

void exit_on_sigterm() {
  handle(SIGTERM, [](int) { _exit(static_cast<int>(ExitCode::kTrainingFailed)); });
}

}  // namespace ddp
