// common/base/process_exit.hpp - what happens after `train`, and how a process ends.
#pragma once

#include <functional>
#include <string>

namespace ddp {

/// True in a thread that is a rank: tests run ranks as threads. Else the whole process is one rank.
inline thread_local bool thread_is_a_rank = false;

/// This rank's only object of the type T: one for the process, or for a thread that is a rank.
template <typename T>
T& of_this_rank() {
  static T of_process;
  static thread_local T of_thread;
  return thread_is_a_rank ? of_thread : of_process;
}

/// Calls `action` after `train` has returned or thrown, its local objects are destroyed, and its
/// error is printed. Use it to close things that other ranks need, such as rank 0's store.
void at_train_end(std::function<void()> action);
/// Calls this rank's actions, in their order.
void run_train_end_actions();

/// Ends the process without static destructors, after the actions of at_train_end(): for threads
/// that cannot be joined.
void skip_destructors_at_exit();
/// Ends the process by `code`, without destructors if skip_destructors_at_exit() was called.
/// @return `code`, for main() to return
int exit_code_of_process(int code);

/// Replaces the message of an exception that leaves a thread, such as NCCL's watchdog, by
/// `explain(message)`. The process prints it as one line, waits a moment, so that other ranks can
/// read its store, and exits.
using Explain = std::function<std::string(const std::string& what)>;
void explain_thread_errors(Explain explain);
/// The explanation that was set; empty for none.
Explain thread_error_explanation();

/// Sleeps, so that the launcher ends this rank first: the exit code of the rank that really failed
/// must not be hidden by this rank's, such as 75.
void wait_for_launcher();

}  // namespace ddp
