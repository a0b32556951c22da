// common/base/refuse.hpp - throws a user's mistake as one formatted line.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "common/base/exit_codes.hpp"

namespace ddp {

/// @throws UsageError: what is wrong, its value, what was expected
template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> message, Args&&... args) {
  throw UsageError(fmt::format(message, std::forward<Args>(args)...));
}

}  // namespace ddp
