// common/parallel/gradient_buckets.hpp - gradients travel in buckets and come back as means.
#pragma once

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "common/parallel/process_group.hpp"

namespace ddp {

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

/// Turns one bucket's gradients into what all ranks are to have, as torch's register_comm_hook().
/// @param gradients (elements of the bucket) this rank's own
/// @return waits for what was started, and leaves the result in `gradients`
using CommHook = std::function<std::function<void()>(const ProcessGroup& process_group,
                                                     const torch::Tensor& gradients)>;

/// A CommHook that halves the bytes: gradients are divided, rounded to bfloat16, and summed so.
std::function<void()> bf16_compress_hook(const ProcessGroup& process_group,
                                         const torch::Tensor& gradients);

/// Turns every rank's gradients into their mean, bucket by bucket. A bucket is a range of one
/// tensor for each dtype, so that it travels without a copy. Every rank must start the same buckets
/// in the same order.
class GradientBuckets {
 public:
  /// Collective. Begins with the last parameter, whose gradient backward makes first.
  /// @param parameters on the device of `process_group`, which must outlive this object
  /// @param site what messages name as the caller
  GradientBuckets(std::vector<torch::Tensor> parameters, const ProcessGroup& process_group,
                  const BucketSizes& sizes, const CallSite& site);

  size_t size() const noexcept { return buckets_.size(); }
  /// By index; one is in the bucket bucket_of().
  const std::vector<torch::Tensor>& parameters() const noexcept { return parameters_; }
  const std::vector<size_t>& parameters_of(size_t bucket) const {
    return buckets_[bucket].parameters;
  }
  size_t bucket_of(size_t parameter) const { return bucket_of_[parameter]; }
  void set_hook(CommHook hook) { hook_ = std::move(hook); }

  /// Moves the parameter's gradient to its place in the bucket, once before each start(): zero if
  /// there is none. Backward makes new gradients elsewhere when a stock optimizer's zero_grad() has
  /// dropped them.
  void collect(size_t parameter) const;
  /// The gradients of this bucket are there.
  void start(size_t bucket);
  /// Waits for all buckets that were started.
  void finish();
  /// Makes other buckets of the same parameters, between steps. Gradients keep their values.
  void rebuild(const std::vector<size_t>& order);

 private:
  struct Bucket {
    std::vector<size_t> parameters;
    std::vector<torch::Tensor> gradients;  // one: all of the bucket
    ProcessGroup::Work work;
    std::function<void()> finish_hook;
    bool started = false;
  };

  void lay_out(const std::vector<size_t>& order);

  const ProcessGroup& process_group_;
  bool backend_divides_;  // while it adds; else gradients are divided before, since a sum could
                          // overflow float16
  torch::Tensor divisor_;  // () the world size, or undefined
  BucketSizes sizes_;
  CommHook hook_;  // empty: an all-reduce
  CallSite site_;
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> memory_;  // all gradients of one dtype
  std::vector<torch::Tensor> bucket_views_;  // each parameter's gradient, in its shape and strides
  std::vector<size_t> bucket_of_;
  std::vector<Bucket> buckets_;
};

}  // namespace ddp
