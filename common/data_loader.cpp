#include "common/data_loader.hpp"

#include <algorithm>

namespace ddp {

torch::Tensor shuffled_indices(int64_t size, uint64_t seed, int64_t epoch) {
  at::Generator generator = at::detail::createCPUGenerator(seed + static_cast<uint64_t>(epoch));
  return torch::randperm(size, generator, torch::kInt64);
}

RandomSampler::RandomSampler(int64_t dataset_size, uint64_t seed)
    : dataset_size_(dataset_size), seed_(seed) {
  set_epoch(0);
}

void RandomSampler::set_epoch(int64_t epoch) {
  indices_ = shuffled_indices(dataset_size_, seed_, epoch);
}

DataLoader::DataLoader(const Samples& samples, Sampler& sampler, const DataLoaderOptions& options)
    : samples_(&samples), sampler_(&sampler), options_(options) {
  TORCH_CHECK(options.batch_per_rank >= 1, "Expected batch_per_rank >= 1, got ",
              options.batch_per_rank);
  TORCH_CHECK(options.accumulate >= 1, "Expected accumulate >= 1, got ", options.accumulate);
  host_input_ = torch::empty({0}, samples.input.options());
  host_target_ = torch::empty({0}, samples.target.options());
}

DataLoader::Iterator DataLoader::begin() {
  step_ = 0;
  position_ = 0;
  next();
  return Iterator(this);
}

void DataLoader::next() {
  const torch::NoGradGuard no_grad;
  const torch::Tensor& indices = sampler_->indices();
  const int64_t step_per_rank = options_.batch_per_rank * options_.accumulate;
  const int64_t step_samples = step_per_rank * sampler_->num_replicas();
  const int64_t step_begin = step_ * step_samples;
  has_batch_ = step_begin < sampler_->epoch_samples();
  if (!has_batch_) {
    return;
  }
  const int64_t step_end = std::min((step_ + 1) * step_per_rank, indices.size(0));
  const int64_t samples = std::clamp(step_end - position_, int64_t{0}, options_.batch_per_rank);
  const torch::Tensor batch_indices =
      indices.narrow(0, std::min(position_, indices.size(0)), samples);
  if (host_input_.size(0) != samples) {  // the last batch of an epoch, and the first of the next
    host_input_.resize_({0});
    host_target_.resize_({0});
  }
  at::index_select_out(host_input_, samples_->input, 0, batch_indices);
  at::index_select_out(host_target_, samples_->target, 0, batch_indices);
  batch_.input = host_input_.to(options_.device);  // the same tensor if it is the host
  batch_.target = host_target_.to(options_.device);
  batch_.step_samples_per_rank =
      static_cast<double>(std::min(step_samples, sampler_->epoch_samples() - step_begin)) /
      sampler_->num_replicas();

  position_ += samples;
  batch_.completes_step = position_ >= step_end;
  if (batch_.completes_step) {
    ++step_;
  }
}

}  // namespace ddp
