#include "common/backends/shm/communicator.hpp"

#include <fmt/format.h>

#include <array>
#include <stdexcept>

namespace ddp {
namespace {

struct DTypeFacts {
  const char* name;
  size_t bytes;
};

const DTypeFacts& facts(DType dtype) {
  static constexpr std::array<DTypeFacts, 9> kFacts = {{{"float32", 4},
                                                        {"float64", 8},
                                                        {"float16", 2},
                                                        {"bfloat16", 2},
                                                        {"int32", 4},
                                                        {"int64", 8},
                                                        {"int8", 1},
                                                        {"uint8", 1},
                                                        {"bool", 1}}};
  return kFacts[static_cast<size_t>(dtype)];
}

}  // namespace

size_t element_bytes(DType dtype) {
  return facts(dtype).bytes;
}

bool is_floating(DType dtype) {
  return dtype <= DType::kBFloat16;
}

const char* to_string(DType dtype) {
  return facts(dtype).name;
}

const char* to_string(ReduceOp op) {
  static constexpr std::array kNames = {"sum", "average", "product", "min", "max"};
  return kNames[static_cast<size_t>(op)];
}

std::string to_string(const Call& call) {
  const std::string elements =
      fmt::format(" of {} {}", uint64_t{call.count}, to_string(call.dtype));
  switch (call.operation) {
    case Operation::kAllReduce:
      return fmt::format("all_reduce {}{}", to_string(call.reduce_op), elements);
    case Operation::kReduceScatter:
      return fmt::format("reduce_scatter {}{}", to_string(call.reduce_op), elements);
    case Operation::kBroadcast:
      return fmt::format("broadcast from rank {}{}", int{call.root}, elements);
    case Operation::kGather:
      return fmt::format("gather to rank {}{}", int{call.root}, elements);
    case Operation::kAllGather:
      return "all_gather" + elements;
    case Operation::kBarrier:
      return "barrier";
    case Operation::kConnect:
      return "connect";
    case Operation::kClose:
      return "close";
  }
  return "unknown operation";
}

bool is_supported(DType dtype, ReduceOp op) {
  return op != ReduceOp::kAverage || is_floating(dtype);
}

size_t Communicator::only_count(const size_t* counts) const {
  for (int r = 1; r < world_size(); ++r) {
    if (counts[r] != counts[0]) {
      throw std::invalid_argument(
          fmt::format("Expected parts of one size, got {} and {} elements", counts[0], counts[r]));
    }
  }
  return counts[0];
}

}  // namespace ddp
