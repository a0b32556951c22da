#include "common/parallel/gradient_buckets.hpp"

#include <fmt/format.h>
#include <utility>

#include "common/base/exit_codes.hpp"

namespace ddp {

DistributedDataParallelOptions distributed_options(const Options& options) {
  DistributedDataParallelOptions result;
  const BucketSizes sizes = bucket_sizes(options.bucket_mib);
  result.bucket_bytes = sizes.bytes;
  result.first_bucket_bytes = sizes.first_bytes;
  if (options.gradient_compression != "none") {
    result.compression = options.gradient_compression == "bf16" ? torch::kBFloat16 : torch::kHalf;
  }
  result.shard_optimizer = options.shard_optimizer;
  if (options.inject == "no-broadcast") {
    result.seed_of_own_weights = options.seed;
  }
  result.leaves_sum = options.inject == "no-mean";
  result.keeps_gradients = options.inject == "average-weights";
  return result;
}

void expect_uncompressed(const Options& options) {
  if (options.gradient_compression != "none" && options.speedup == "none") {
    throw UsageError(fmt::format(
        "--gradient-compression: got {}, expected none: {} all-reduces gradients as they are; "
        "03_ddp_spawn compresses",
        options.gradient_compression, options.program));
  }
  for (const char* const fault : {"no-broadcast", "no-mean", "average-weights"}) {
    if (options.inject == fault) {
      throw UsageError(
          fmt::format("--inject: got {}, expected no fault of DistributedDataParallel: {} does "
                      "without; 03_ddp_spawn has it",
                      fault, options.program));
    }
  }
}

std::vector<BucketRange> bucket_ranges(const FlatParameters& flat,
                                       const DistributedDataParallelOptions& options) {
  return bucket_ranges(FlatLayout{flat.offsets, flat.grad.numel()},
                       static_cast<int64_t>(flat.grad.element_size()),
                       {options.bucket_bytes, options.first_bucket_bytes});
}

GradientBuckets::GradientBuckets(const FlatParameters& flat, const ProcessGroup& process_group,
                                 const DistributedDataParallelOptions& options, Scale scale,
                                 const CallSite& site)
    : process_group_(process_group),
      compression_(options.compression),
      shard_(options.shard_optimizer),
      division_(scale == Scale::kDivided                 ? Division::kNever
                : compression_                           ? Division::kBeforeRounding
                : process_group.has_average() && !shard_ ? Division::kWithinSum
                                                         : Division::kAfterSum),
      site_(site) {
  for (const BucketRange& range : bucket_ranges(flat, options)) {
    Bucket& bucket = buckets_.emplace_back();
    bucket.range = range;
    bucket.gradients =
        divide(flat.grad.slice(0, range.begin, range.end), process_group.world_size());
  }
}

void GradientBuckets::start(size_t index) {
  const torch::NoGradGuard no_grad;
  Bucket& bucket = buckets_[index];
  bucket.started = true;
  DividedTensor& travels = compression_ ? bucket.rounded : bucket.gradients;
  if (compression_) {
    torch::Tensor& gradients = bucket.gradients.whole.front();
    if (travels.whole.empty()) {
      travels = divide(process_group_.allocate(gradients.numel(), *compression_),
                       process_group_.world_size());
    }
    if (division_ == Division::kBeforeRounding) {
      gradients.div_(process_group_.world_size());
    }
    travels.whole.front().copy_(gradients);
  }
  const auto op = division_ == Division::kWithinSum ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
  site_.bucket = static_cast<int>(index);
  bucket.work = shard_ ? process_group_.start_reduce_scatter(travels, site_)
                       : process_group_.start_all_reduce(travels.whole, op, site_);
}

void GradientBuckets::finish() {
  const torch::NoGradGuard no_grad;
  for (Bucket& bucket : buckets_) {
    if (!std::exchange(bucket.started, false)) {
      continue;
    }
    process_group_.wait(bucket.work);
    bucket.work.reset();
    const auto own = static_cast<size_t>(process_group_.rank());
    const auto needed = [&](DividedTensor& tensor) -> torch::Tensor& {
      return shard_ ? tensor.parts[own] : tensor.whole.front();
    };
    if (compression_) {
      needed(bucket.gradients).copy_(needed(bucket.rounded));
    } else if (division_ == Division::kAfterSum) {
      needed(bucket.gradients).div_(process_group_.world_size());
    }
  }
}

}  // namespace ddp
