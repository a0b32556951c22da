// common/parallel/bucket_ranges.hpp - which gradients travel together.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/data/flat_layout.hpp"

namespace ddp {

/// A range of the flat parameters and gradients.
struct BucketRange {
  int64_t begin;
  int64_t end;
  size_t first_parameter;  ///< the one at `begin`: backward comes to it last
  size_t parameters;
};

/// Gradients are reduced in buckets of about this size: large enough to use the network well, small
/// enough that the first one starts early. The first is smaller, having nothing to overlap with.
struct BucketSizes {
  int64_t bytes = int64_t{25} * 1024 * 1024;
  int64_t first_bytes = int64_t{1024} * 1024;
};
inline constexpr double kBucketMib = 25;

/// --bucket-mib
inline BucketSizes bucket_sizes(double mib) {
  BucketSizes sizes;
  sizes.bytes = std::max<int64_t>(1, std::llround(mib * 1024 * 1024));
  sizes.first_bytes = std::min(sizes.first_bytes, sizes.bytes);
  return sizes;
}

/// From the last parameter backwards, which is about the order in which backward makes gradients.
inline std::vector<BucketRange> bucket_ranges(const FlatLayout& layout, int64_t element_bytes,
                                              const BucketSizes& sizes) {
  std::vector<BucketRange> ranges;
  int64_t end = layout.total;
  size_t end_parameter = layout.offsets.size();
  for (size_t i = layout.offsets.size(); i-- > 0;) {
    const int64_t begin = layout.offsets[i];
    const int64_t limit = ranges.empty() ? sizes.first_bytes : sizes.bytes;
    if ((end - begin) * element_bytes >= limit || i == 0) {
      ranges.push_back({begin, end, i, end_parameter - i});
      end = begin;
      end_parameter = i;
    }
  }
  return ranges;
}

}  // namespace ddp
