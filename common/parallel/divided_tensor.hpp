// common/parallel/divided_tensor.hpp - a tensor of which each rank owns a part.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace ddp {

/// Views of one contiguous, one-dimensional tensor. The lists are what c10d's calls want, made
/// once.
struct DividedTensor {
  std::vector<torch::Tensor> whole;  ///< just one
  std::vector<torch::Tensor> parts;  ///< by rank, in order; of equal size but for the last ones,
                                     ///< which may be shorter or empty
  bool is_even() const { return parts.front().numel() == parts.back().numel(); }
};

/// Rank `rank`'s part of `elements`: [begin, end). Parts begin at multiples of 32 elements, so that
/// in float32 as in half precision no line of cache belongs to two ranks.
std::pair<int64_t, int64_t> part_range(int64_t elements, int rank, int world_size);

DividedTensor divide(const torch::Tensor& whole, int world_size);

}  // namespace ddp
