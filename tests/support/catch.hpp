// tests/support/catch.hpp - Catch2, version 2 or 3. Use only features of both.
#pragma once

#include <exception>
#include <string>

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
namespace Catch::Matchers {
inline auto ContainsSubstring(const std::string& part) {
  return Contains(part);
}
}  // namespace Catch::Matchers
#endif
using Catch::Matchers::ContainsSubstring;

namespace ddp::test {

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// @return the exception of `call`, or nothing
template <typename Exception = std::exception, typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace ddp::test

using namespace ddp::test;  // all of tests/support, without a prefix
