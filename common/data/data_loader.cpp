#include "common/data/data_loader.hpp"

#include <c10/core/CachingDeviceAllocator.h>

namespace ddp {
namespace {

/// True if the samples take at most a quarter of the GPU's free memory: then the GPU keeps them.
bool fits_on(const torch::Device& device, const Samples& samples) {
  if (device.is_cpu()) {
    return false;
  }
  const size_t free_bytes =
      c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first;
  const size_t input_bytes =
      static_cast<size_t>(samples.input.numel()) * samples.room_for(0).input.itemsize();
  return input_bytes + samples.target.nbytes() <= free_bytes / 4;
}

}  // namespace

torch::Tensor shuffled_indices(int64_t size, uint64_t seed, int64_t epoch) {
  at::Generator generator = at::detail::createCPUGenerator(seed + static_cast<uint64_t>(epoch));
  return torch::randperm(size, generator, torch::kInt64);
}

std::vector<Batch> Batch::split(int64_t samples) const {
  if (size() <= samples) {
    return {*this};
  }
  const std::vector<torch::Tensor> inputs = input.split(samples);
  const std::vector<torch::Tensor> targets = target.split(samples);
  std::vector<Batch> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const double fraction = static_cast<double>(inputs[i].size(0)) / static_cast<double>(size());
    parts.push_back({.input = inputs[i], .target = targets[i], .weight = weight * fraction});
  }
  return parts;
}

DataLoader::DataLoader(const Samples& samples, Sampler& sampler, int64_t batch_size,
                       const torch::Device& device, bool drop_last)
    : samples_(samples),
      sampler_(sampler),
      batch_size_(batch_size),
      device_(device),
      drop_last_(drop_last),
      is_resident_(fits_on(device, samples)) {
  TORCH_CHECK(batch_size >= 1, "Expected batch_size >= 1, got ", batch_size);
  for (torch::Tensor* const part : {&samples_.input, &samples_.target}) {
    TORCH_CHECK((is_resident_ || part->is_cpu()) && part->layout() == torch::kStrided &&
                    !part->is_quantized(),
                "Expected samples in dense tensors on the host, got a ", part->toString());
    *part = as_rows(*part);
  }
  if (is_resident_) {
    samples_.input = as_features(samples_.input.to(device));
    samples_.target = samples_.target.to(device);
  }
  reserve(std::min(batch_size, sampler.indices().size(0)));
}

int64_t DataLoader::max_batch() const {
  return std::min(batch_size_, (sampler_.epoch_samples() - 1) / sampler_.num_replicas() + 1);
}

int64_t DataLoader::steps() const {
  const int64_t samples = sampler_.epoch_samples();
  return samples / samples_per_step() + (drop_last_ || samples % samples_per_step() == 0 ? 0 : 1);
}

void DataLoader::reserve(int64_t samples) {
  batch_ = {};
  room_ = samples_.room_for(samples, is_resident_ ? device_ : torch::Device(torch::kCPU));
}

DataLoader::Iterator DataLoader::begin() {
  order_ = sampler_.indices().contiguous();
  if (samples_.rows.defined()) {
    order_ = samples_.rows.index_select(0, order_);
  }
  if (const int64_t most = std::min(batch_size_, order_.size(0)); most > room_.size()) {
    reserve(most);  // the sampler's epochs differ in length
  }
  if (is_resident_) {
    order_ = order_.to(device_);
  }
  steps_ = steps();
  load(0);
  return Iterator(this);
}

void DataLoader::load(int64_t step) {
  step_ = step;
  if (step >= steps_) {
    return;
  }
  const int64_t own_samples = order_.sizes().front();
  const int64_t begin = std::min(step * batch_size_, own_samples);
  const int64_t count = std::min(batch_size_, own_samples - begin);
  Samples samples = gather(begin, count);
  batch_.input = std::move(samples.input);
  batch_.target = std::move(samples.target);
  const int64_t step_samples =
      std::min(samples_per_step(), sampler_.epoch_samples() - step * samples_per_step());
  batch_.weight =
      static_cast<double>(count * sampler_.num_replicas()) / static_cast<double>(step_samples);
}

Samples DataLoader::gather(int64_t begin, int64_t count) {
  Samples batch = room_.slice(0, count);
  if (is_resident_) {
    const torch::Tensor order = order_.narrow(0, begin, count);
    at::index_select_out(batch.input, samples_.input, 0, order);
    at::index_select_out(batch.target, samples_.target, 0, order);
    return batch;
  }
  gather_rows(samples_, order_.const_data_ptr<int64_t>() + begin, count, batch);
  return device_.is_cpu() ? batch : Samples{batch.input.to(device_), batch.target.to(device_)};
}

}  // namespace ddp
