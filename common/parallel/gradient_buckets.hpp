// common/parallel/gradient_buckets.hpp - how gradients travel: in buckets, perhaps compressed.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "common/launch/options.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/parallel/bucket_ranges.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp {

/// The same on all ranks.
struct DistributedDataParallelOptions {
  int64_t bucket_bytes = BucketSizes().bytes;
  int64_t first_bucket_bytes = BucketSizes().first_bytes;
  /// What gradients are rounded to while they travel: torch::kBFloat16 or kHalf.
  std::optional<torch::ScalarType> compression = std::nullopt;
  /// Each rank gets the mean only of the gradients that its part of a sharded optimizer needs; what
  /// the others hold there is undefined.
  bool shard_optimizer = false;
  // Faults on purpose, see --inject.
  /// Each rank draws its weights with this seed plus its rank, and is not sent rank 0's.
  std::optional<uint64_t> seed_of_own_weights = std::nullopt;
  bool leaves_sum = false;  ///< gradients become their sum, not their mean
  bool keeps_gradients = false;  ///< each rank's stay its own
};

/// --bucket-mib, --gradient-compression, --shard-optimizer and --inject.
DistributedDataParallelOptions distributed_options(const Options& options);

/// For a program that sends gradients itself.
/// @throws UsageError if they are to be compressed, or for a fault in what it does without
void expect_uncompressed(const Options& options);

/// Of these parameters.
std::vector<BucketRange> bucket_ranges(const FlatParameters& flat,
                                       const DistributedDataParallelOptions& options);

/// Turns every rank's gradients into their mean, bucket by bucket. Every rank must start the same
/// buckets in the same order.
///
/// Note [Compression]: gradients are divided by the number of ranks before they are rounded, so
/// that their sum is no larger than the largest of them and does not overflow float16 for being a
/// sum. What does overflow, or is not a number, stays so: weights are not finite then, and training
/// fails. Backends add in the rounded type; some accumulate in float32 and round once.
class GradientBuckets {
 public:
  enum class Scale {
    kDivide,  ///< gradients are of the rank's own mean loss
    kDivided,  ///< they have been divided by the number of ranks already
  };

  /// @param flat its gradients must stay where they are; `process_group` must outlive this object
  GradientBuckets(const FlatParameters& flat, const ProcessGroup& process_group,
                  const DistributedDataParallelOptions& options, Scale scale,
                  const CallSite& site = CallSite::current());

  size_t size() const noexcept { return buckets_.size(); }
  const BucketRange& range(size_t bucket) const { return buckets_[bucket].range; }

  /// The gradients in this range are there.
  void start(size_t bucket);
  /// Waits for all buckets that were started.
  void finish();

 private:
  struct Bucket {
    BucketRange range;
    DividedTensor gradients;  // a range of the flat ones, and what each rank needs of it
    DividedTensor rounded;  // what travels; with compression only
    c10::intrusive_ptr<c10d::Work> work;
    bool started = false;
  };

  /// When this object divides by the number of ranks.
  enum class Division { kNever, kBeforeRounding, kWithinSum, kAfterSum };

  const ProcessGroup& process_group_;
  std::optional<torch::ScalarType> compression_;
  bool shard_;
  Division division_;
  CallSite site_;  // what messages name as the caller
  std::vector<Bucket> buckets_;
};

}  // namespace ddp
