// common/base/seconds_since.hpp - elapsed time, and times in messages.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <string>

namespace ddp {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// "0.5", for messages.
inline std::string in_seconds(std::chrono::milliseconds time) {
  return fmt::format("{:g}", std::chrono::duration<double>(time).count());
}

}  // namespace ddp
