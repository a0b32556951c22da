// common/parallel/gradient_buckets.hpp - gradients travel in buckets and come back as means.
#pragma once

#include <cmath>

#include "common/parallel/process_group.hpp"

namespace ddp {

/// Sizes of buckets: large enough to use the network well, small enough to start early. The first
/// bucket is smaller, so that the network starts sooner.
struct BucketSizes {
  int64_t bytes = int64_t{25} * 1024 * 1024;
  int64_t first_bytes = int64_t{1024} * 1024;
};
inline constexpr double kBucketMib = 25;

/// Sizes for --bucket-mib.
inline BucketSizes bucket_sizes(double mib) {
  BucketSizes sizes;
  sizes.bytes = std::max<int64_t>(1, std::llround(mib * 1024 * 1024));
  sizes.first_bytes = std::min(sizes.first_bytes, sizes.bytes);
  return sizes;
}

/// This rank's gradients of a bucket, as torch.distributed.GradBucket has them.
struct GradBucket {
  size_t index;  ///< 0: the bucket that is full first
  bool is_last;  ///< of this backward
  torch::Tensor buffer;  ///< (elements), all gradients; gaps between them are zero
  std::vector<torch::Tensor> gradients;  ///< views of `buffer`, each in its parameter's shape
  std::vector<torch::Tensor> parameters;  ///< in the same order

  /// A hook that needs only the buffer may take a tensor.
  operator const torch::Tensor&() const { return buffer; }
};

/// Replaces the all-reduce of a bucket, as in torch's register_comm_hook().
/// @return function that waits for the communication and leaves the result in bucket.buffer
using CommHook = std::function<std::function<void()>(const ProcessGroup& process_group,
                                                     const GradBucket& bucket)>;

/// CommHook that halves the bytes: divides the gradients, rounds them to bfloat16, and sums them,
/// as in torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py.
std::function<void()> bf16_compress_hook(const ProcessGroup& process_group,
                                         const GradBucket& bucket);

/// Turns every rank's gradients into their mean, bucket by bucket. Each dtype has a tensor, and a
/// bucket is a range of it, so that it is sent without a copy. Every rank must start the same
/// buckets in the same order.
class GradientBuckets {
 public:
  /// Collective. The first bucket has the last parameters, because backward makes their gradients
  /// first. @param parameters on the device of `process_group`, which must outlive this object
  /// @param site caller that messages name
  GradientBuckets(std::vector<torch::Tensor> parameters, const ProcessGroup& process_group,
                  const BucketSizes& sizes, const CallSite& site);

  size_t size() const noexcept { return buckets_.size(); }
  /// Parameters by index.
  const std::vector<torch::Tensor>& parameters() const noexcept { return parameters_; }
  const std::vector<size_t>& parameters_of(size_t bucket) const {
    return buckets_[bucket].parameters;
  }
  size_t bucket_of(size_t parameter) const { return bucket_of_[parameter]; }
  void set_hook(CommHook hook) { hook_ = std::move(hook); }

  /// Moves the parameter's gradient to its place in the bucket, or zero if there is no gradient.
  /// Call it once before each start(). Backward makes gradients elsewhere when a stock optimizer's
  /// zero_grad() has dropped the old tensors.
  void collect(size_t parameter) const;
  /// Starts the all-reduce of a bucket with all its gradients.
  void start(size_t bucket);
  /// Waits for all started buckets.
  void finish();
  /// After a backward that failed: starts the buckets from `first` on with zeros, waits for all,
  /// and drops the gradients that lie in a bucket's memory.
  void abandon(size_t first);
  /// Parameters, by index, in the order of the buckets.
  const std::vector<size_t>& order() const noexcept { return order_; }
  /// Makes new buckets of the same parameters, between steps. Gradients keep their values.
  void rebuild(const std::vector<size_t>& order);

 private:
  struct Bucket {
    std::vector<size_t> parameters;
    std::vector<torch::Tensor> gradients;  // a single tensor, the whole bucket
    ProcessGroup::Work work;  // null unless an all-reduce is under way
    std::function<void()> finish_hook;  // empty unless a hook is
  };

  void lay_out(const std::vector<size_t>& order);

  const ProcessGroup& process_group_;
  bool backend_divides_;  // else gradients are divided before the sum, which could overflow float16
  torch::Tensor divisor_;  // (), the world size, or undefined
  BucketSizes sizes_;
  CommHook hook_;  // empty: an all-reduce
  CallSite site_;
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> memory_;  // by dtype: all gradients of that dtype
  std::vector<torch::Tensor> bucket_views_;  // by parameter: its gradient, in its shape and strides
  std::vector<size_t> bucket_of_;
  std::vector<size_t> order_;
  std::vector<Bucket> buckets_;
};

}  // namespace ddp
