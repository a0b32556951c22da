#include "common/backends/shm/shm_call.hpp"

#include <fmt/format.h>

#include <array>

namespace ddp::shm {

std::string to_string(const Call& call) {
  static constexpr std::array kTypes = {"float32", "float64", "int64", "bytes"};
  static constexpr std::array kOps = {"sum", "average", "maximum", "minimum"};
  const std::string elements =
      fmt::format("of {} {}", uint64_t{call.count}, kTypes[static_cast<size_t>(call.dtype)]);
  switch (call.operation) {
    case Operation::kAllReduce:
      return fmt::format("all_reduce {} {}", kOps[static_cast<size_t>(call.reduce_op)], elements);
    case Operation::kBroadcast:
      return fmt::format("broadcast from rank {} {}", int{call.root}, elements);
    case Operation::kAllGather:
      return "all_gather " + elements;
    case Operation::kBarrier:
      return "barrier";
  }
  return "unknown operation";
}

}  // namespace ddp::shm
