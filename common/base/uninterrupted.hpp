// common/base/uninterrupted.hpp - a system call that no signal interrupts.
#pragma once

#include <cerrno>

namespace ddp {

/// What `call` returns, which it repeats while that is negative and errno EINTR.
template <typename Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) {
    result = call();
  }
  return result;
}

}  // namespace ddp
