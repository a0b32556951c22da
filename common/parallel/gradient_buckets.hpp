// common/parallel/gradient_buckets.hpp - gradients travel in buckets and come back as means.
#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

#include "common/data/flat_parameters.hpp"
#include "common/parallel/bucket_ranges.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp {

/// Turns one bucket's gradients into what all ranks are to have, as torch's register_comm_hook().
/// @param gradients (elements of the bucket) this rank's own, a range of the flat gradients
/// @return waits for what was started, and leaves the result in `gradients`
using CommHook = std::function<std::function<void()>(const ProcessGroup& process_group,
                                                     const torch::Tensor& gradients)>;

/// A CommHook that halves the bytes: gradients are divided, rounded to bfloat16, and summed so.
std::function<void()> bf16_compress_hook(const ProcessGroup& process_group,
                                         const torch::Tensor& gradients);

/// Turns every rank's gradients into their mean, bucket by bucket. Every rank must start the same
/// buckets in the same order.
class GradientBuckets {
 public:
  /// @param flat its gradients must stay where they are; `process_group` must outlive this object
  /// @param site what messages name as the caller
  GradientBuckets(const FlatParameters& flat, const ProcessGroup& process_group,
                  const BucketSizes& sizes, const CallSite& site);

  size_t size() const noexcept { return buckets_.size(); }
  const BucketRange& range(size_t bucket) const { return buckets_[bucket].range; }
  void set_hook(CommHook hook) { hook_ = std::move(hook); }

  /// The gradients in this range are there.
  void start(size_t bucket);
  /// Waits for all buckets that were started.
  void finish();

 private:
  struct Bucket {
    BucketRange range;
    std::vector<torch::Tensor> gradients;  // one: a range of the flat ones
    ProcessGroup::Work work;
    std::function<void()> finish_hook;
    bool started = false;
  };

  const ProcessGroup& process_group_;
  bool backend_divides_;  // while it adds, which saves a pass over the gradients
  bool divides_before_;  // the sum of float16 may be infinite where the mean is not
  CommHook hook_;  // empty: an all-reduce
  CallSite site_;
  std::vector<Bucket> buckets_;
};

}  // namespace ddp
