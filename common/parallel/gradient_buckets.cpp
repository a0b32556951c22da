#include "common/parallel/gradient_buckets.hpp"

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <numeric>

#include "common/model/flat_parameters.hpp"

namespace ddp {

namespace {

/// Divides parameters, by index, into buckets, in the order in which these fill. A bucket has a
/// single dtype, and the first bucket of each dtype is smaller.
/// @param order parameters, by index, in the order of their gradients
std::vector<std::vector<size_t>> assign_buckets(const std::vector<torch::Tensor>& parameters,
                                                const std::vector<size_t>& order,
                                                const BucketSizes& sizes) {
  if (order.empty()) {
    return {};
  }
  std::vector<torch::Tensor> ordered;
  for (const size_t index : order) {
    ordered.push_back(parameters[index]);
  }
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
      ordered, {static_cast<size_t>(sizes.first_bytes), static_cast<size_t>(sizes.bytes)}));
  std::ranges::sort(buckets, {}, [](const auto& bucket) { return bucket.back(); });
  for (std::vector<size_t>& bucket : buckets) {
    for (size_t& index : bucket) {
      index = order[index];
    }
  }
  return buckets;
}

}  // namespace

std::function<void()> bf16_compress_hook(const ProcessGroup& process_group,
                                         const GradBucket& bucket) {
  const torch::Tensor gradients =
      bucket.buffer.is_complex() ? torch::view_as_real(bucket.buffer) : bucket.buffer;
  const auto rounded = std::make_shared<std::vector<torch::Tensor>>(
      1, gradients.div(process_group.world_size()).to(torch::kBFloat16));
  const ProcessGroup::Work work = process_group.start_all_reduce(*rounded);
  return [&process_group, gradients, rounded, work] {
    process_group.wait(work);
    gradients.copy_(rounded->front());
  };
}

GradientBuckets::GradientBuckets(std::vector<torch::Tensor> parameters,
                                 const ProcessGroup& process_group, const BucketSizes& sizes,
                                 const CallSite& site)
    : process_group_(process_group),
      backend_divides_(process_group.traits().divides),
      sizes_(sizes),
      site_(site),
      parameters_(std::move(parameters)),
      bucket_views_(parameters_.size()),
      bucket_of_(parameters_.size()) {
  const torch::NoGradGuard no_grad;
  if (!backend_divides_ && process_group.all_reduces()) {
    divisor_ = torch::scalar_tensor(process_group.world_size(), torch::kFloat64);
  }
  std::map<torch::ScalarType, int64_t> totals;
  for (const torch::Tensor& parameter : parameters_) {
    totals[parameter.scalar_type()] += padded_elements(parameter);
  }
  for (const auto& [dtype, elements] : totals) {
    memory_.push_back(process_group.allocate(elements, dtype).zero_());
  }
  std::vector<size_t> backwards(parameters_.size());
  std::iota(backwards.rbegin(), backwards.rend(), 0);
  lay_out(backwards);
}

void GradientBuckets::lay_out(const std::vector<size_t>& order) {
  order_ = order;
  buckets_.clear();
  std::vector<int64_t> ends(memory_.size());
  for (std::vector<size_t>& members : assign_buckets(parameters_, order, sizes_)) {
    const auto memory = std::ranges::find(memory_, parameters_[members[0]].scalar_type(),
                                          [](const auto& m) { return m.scalar_type(); });
    int64_t& end = ends[static_cast<size_t>(memory - memory_.begin())];
    const int64_t begin = end;
    for (const size_t index : members) {
      bucket_views_[index] = view_like(*memory, end, parameters_[index]);
      bucket_of_[index] = buckets_.size();
      end += padded_elements(parameters_[index]);
    }
    Bucket& bucket = buckets_.emplace_back();
    bucket.parameters = std::move(members);
    bucket.gradients = {memory->slice(0, begin, end)};
  }
}

void GradientBuckets::rebuild(const std::vector<size_t>& order) {
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> before = bucket_views_;
  std::vector<torch::Tensor> values;
  for (const torch::Tensor& place : bucket_views_) {
    values.push_back(place.clone());
  }
  lay_out(order);
  for (const torch::Tensor& memory : memory_) {
    memory.zero_();  // the gaps, which are sent too
  }
  for (size_t i = 0; i < bucket_views_.size(); ++i) {
    bucket_views_[i].copy_(values[i]);
    torch::Tensor& gradient = parameters_[i].mutable_grad();
    gradient = gradient.is_same(before[i]) ? bucket_views_[i] : gradient;
  }
}

void GradientBuckets::collect(size_t parameter) const {
  const torch::NoGradGuard no_grad;
  move_gradient(parameters_[parameter], bucket_views_[parameter],
                hook_ ? torch::Tensor() : divisor_);
}

void GradientBuckets::start(size_t index) {
  const torch::NoGradGuard no_grad;
  Bucket& bucket = buckets_[index];
  site_.bucket = static_cast<int>(index);
  if (hook_) {
    GradBucket to_hook{index, index + 1 == buckets_.size(), bucket.gradients.front(), {}, {}};
    for (const size_t parameter : bucket.parameters) {
      to_hook.gradients.push_back(bucket_views_[parameter]);
      to_hook.parameters.push_back(parameters_[parameter]);
    }
    bucket.finish_hook = hook_(process_group_, to_hook);
    return;
  }
  bucket.work = process_group_.start_all_reduce(
      bucket.gradients, backend_divides_ ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM, site_);
}

void GradientBuckets::abandon(size_t first) {
  for (size_t index = first; index < buckets_.size(); ++index) {
    buckets_[index].gradients.front().zero_();
    start(index);
  }
  finish();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (torch::Tensor& gradient = parameters_[i].mutable_grad();
        // Not is_same(): zero_grad(false) of LibTorch puts another tensor on the same memory.
        gradient.has_storage() && gradient.is_alias_of(bucket_views_[i])) {
      gradient.reset();
    }
  }
}

void GradientBuckets::finish() {
  const torch::NoGradGuard no_grad;
  for (Bucket& bucket : buckets_) {
    process_group_.wait(std::exchange(bucket.work, {}));  // none: returns at once
    if (const auto finish_hook = std::exchange(bucket.finish_hook, {})) {
      finish_hook();
    }
  }
}

}  // namespace ddp
