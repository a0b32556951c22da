// common/data/flat_layout.hpp - where parameters lie in flat storage.
#pragma once

#include <cstdint>
#include <vector>

namespace ddp {

struct FlatLayout {
  std::vector<int64_t> offsets;  ///< where each parameter begins, in elements
  int64_t total = 0;  ///< elements, with the gaps between parameters

  /// Behind the others.
  /// @param elements of the parameter @param element_bytes the same for all
  void add(int64_t elements, int64_t element_bytes) {
    // A cache line and the widest vector, 64 bytes: no parameter starts in the middle of one.
    constexpr int64_t kAlignmentBytes = 64;
    const int64_t alignment = kAlignmentBytes / element_bytes;
    offsets.push_back(total);
    total += (elements + alignment - 1) / alignment * alignment;
  }
};

}  // namespace ddp
