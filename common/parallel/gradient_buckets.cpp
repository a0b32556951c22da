#include "common/parallel/gradient_buckets.hpp"

#include <memory>
#include <utility>

namespace ddp {

std::function<void()> bf16_compress_hook(const ProcessGroup& process_group,
                                         const torch::Tensor& gradients) {
  const auto rounded = std::make_shared<std::vector<torch::Tensor>>(
      1, gradients.div(process_group.world_size()).to(torch::kBFloat16));
  const ProcessGroup::Work work = process_group.start_all_reduce(*rounded);
  return [&process_group, gradients, rounded, work] {
    process_group.wait(work);
    gradients.copy_(rounded->front());
  };
}

GradientBuckets::GradientBuckets(const FlatParameters& flat, const ProcessGroup& process_group,
                                 const BucketSizes& sizes, const CallSite& site)
    : process_group_(process_group),
      // NCCL's AVG multiplies before it adds: other bits, and a sum that NVSwitch cannot do.
      backend_divides_(process_group.backend_name() == "shm"),
      divides_before_(!backend_divides_ && flat.grad.scalar_type() == torch::kHalf),
      site_(site) {
  for (const BucketRange& range :
       bucket_ranges(FlatLayout{flat.offsets, flat.grad.numel()},
                     static_cast<int64_t>(flat.grad.element_size()), sizes)) {
    Bucket& bucket = buckets_.emplace_back();
    bucket.range = range;
    bucket.gradients = {flat.grad.slice(0, range.begin, range.end)};
  }
}

void GradientBuckets::start(size_t index) {
  const torch::NoGradGuard no_grad;
  Bucket& bucket = buckets_[index];
  bucket.started = true;
  site_.bucket = static_cast<int>(index);
  if (hook_) {
    bucket.finish_hook = hook_(process_group_, bucket.gradients.front());
    return;
  }
  if (divides_before_ && process_group_.all_reduces()) {
    bucket.gradients.front().div_(process_group_.world_size());
  }
  bucket.work = process_group_.start_all_reduce(
      bucket.gradients, backend_divides_ ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM, site_);
}

void GradientBuckets::finish() {
  const torch::NoGradGuard no_grad;
  for (Bucket& bucket : buckets_) {
    if (!std::exchange(bucket.started, false)) {
      continue;
    }
    if (bucket.finish_hook) {
      std::exchange(bucket.finish_hook, {})();
      continue;
    }
    process_group_.wait(std::exchange(bucket.work, {}));
    if (!backend_divides_ && !divides_before_ && process_group_.all_reduces()) {
      bucket.gradients.front().div_(process_group_.world_size());
    }
  }
}

}  // namespace ddp
