// common/launch/of_this_rank.hpp - objects of which each rank has one.
#pragma once

namespace ddp {

/// True in a thread that is a rank, as in tests. Else the whole process is one rank.
inline thread_local bool thread_is_a_rank = false;

/// This rank's object of the type T, which all threads of the process share.
template <typename T>
T& of_this_rank() {
  static T of_process;
  static thread_local T of_thread;
  return thread_is_a_rank ? of_thread : of_process;
}

}  // namespace ddp
