// common/backends/shm/collective_types.hpp - what a collective can be asked to do.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ddp {

enum class DType : uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt32,
  kInt64,
  kInt8,
  kUint8,
  kBool,  ///< one byte, 0 or 1: a sum is "any", a product "all"
};

enum class ReduceOp : uint8_t { kSum, kAverage, kProduct, kMin, kMax };

size_t element_bytes(DType dtype);
const char* to_string(DType dtype);
const char* to_string(ReduceOp op);
/// A mean of integers or truth values has no exact result, so it is not offered.
bool is_supported(DType dtype, ReduceOp op);

/// "0.5", for messages.
std::string in_seconds(std::chrono::milliseconds time);

/// How ranks that share no memory yet meet: returns every rank's text, by rank. A collective call.
using Exchange = std::function<std::vector<std::string>(const std::string& mine)>;

}  // namespace ddp
