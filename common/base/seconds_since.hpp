// common/base/seconds_since.hpp - the time that has passed, by the clock that nobody sets.
#pragma once

#include <chrono>

namespace ddp {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace ddp
