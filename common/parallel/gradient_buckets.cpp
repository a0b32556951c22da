#include "common/parallel/gradient_buckets.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/exit_codes.hpp"

namespace ddp {

DistributedDataParallelOptions distributed_options(const Options& options) {
  DistributedDataParallelOptions result;
  const double mib = 1024 * 1024;
  result.bucket_bytes = std::max<int64_t>(1, std::llround(options.bucket_mib * mib));
  result.first_bucket_bytes = std::min(result.first_bucket_bytes, result.bucket_bytes);
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
  const auto element_bytes = static_cast<int64_t>(flat.grad.element_size());
  std::vector<BucketRange> ranges;
  int64_t end = flat.grad.numel();
  size_t end_parameter = flat.parameters.size();
  for (size_t i = flat.parameters.size(); i-- > 0;) {
    const int64_t begin = flat.offsets[i];
    const int64_t limit = ranges.empty() ? options.first_bucket_bytes : options.bucket_bytes;
    if ((end - begin) * element_bytes >= limit || i == 0) {
      ranges.push_back({begin, end, i, end_parameter - i});
      end = begin;
      end_parameter = i;
    }
  }
  return ranges;
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
