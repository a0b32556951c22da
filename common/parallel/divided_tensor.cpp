#include "common/parallel/divided_tensor.hpp"

#include <algorithm>

namespace ddp {

std::pair<int64_t, int64_t> part_range(int64_t elements, int rank, int world_size) {
  constexpr int64_t kUnit = 32;
  const int64_t units = (elements + kUnit - 1) / kUnit;
  const int64_t part = (units + world_size - 1) / world_size * kUnit;
  return {std::min(rank * part, elements), std::min((rank + 1) * part, elements)};
}

DividedTensor divide(const torch::Tensor& whole, int world_size) {
  DividedTensor divided{.whole = {whole}, .parts = {}};
  for (int rank = 0; rank < world_size; ++rank) {
    const auto [begin, end] = part_range(whole.numel(), rank, world_size);
    divided.parts.push_back(whole.narrow(0, begin, end - begin));
  }
  return divided;
}

}  // namespace ddp
