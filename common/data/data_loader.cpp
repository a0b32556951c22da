#include "common/data/data_loader.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>

#include "common/device/device.hpp"

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
  } else if (!device.is_cpu()) {
    copy_stream_ = new_stream(device);
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
  slots_.clear();
  slot_ = 0;
  if (!copy_stream_) {
    slots_.emplace_back().gathered = samples_.room_for(samples, device_);
    return;
  }
  while (slots_.size() < 2) {
    slots_.push_back(
        {.gathered = samples_.room_for(samples, torch::TensorOptions().pinned_memory(true)),
         .copy = samples_.room_for(samples, device_),
         .is_copied = c10::Event(device_.type()),
         .is_used = c10::Event(device_.type())});
    // The GPU may still compute on an earlier tensor in this memory.
    slots_.back().is_used->record(current_stream(device_));
  }
}

DataLoader::Iterator DataLoader::begin() {
  order_ = sampler_.indices().contiguous();
  if (samples_.rows.defined()) {
    order_ = samples_.rows.index_select(0, order_);
  }
  if (const int64_t most = std::min(batch_size_, order_.size(0));
      most > slots_.front().gathered.size()) {
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
  if (copy_stream_) {
    slots_[slot_].is_used->record(current_stream(device_));
  }
  if (step >= steps_) {
    return;
  }
  const int64_t own_samples = order_.sizes().front();
  const int64_t begin = std::min(step * batch_size_, own_samples);
  const int64_t count = std::min(batch_size_, own_samples - begin);
  Samples samples = is_resident_ ? gather_on_device(begin, count) : gather_on_host(begin, count);
  batch_.input = std::move(samples.input);
  batch_.target = std::move(samples.target);
  const int64_t step_samples =
      std::min(samples_per_step(), sampler_.epoch_samples() - step * samples_per_step());
  batch_.weight =
      static_cast<double>(count * sampler_.num_replicas()) / static_cast<double>(step_samples);
}

Samples DataLoader::gather_on_device(int64_t begin, int64_t count) {
  Samples batch = slots_.front().gathered.slice(0, count);
  const torch::Tensor order = order_.narrow(0, begin, count);
  at::index_select_out(batch.input, samples_.input, 0, order);
  at::index_select_out(batch.target, samples_.target, 0, order);
  return batch;
}

Samples DataLoader::gather_on_host(int64_t begin, int64_t count) {
  slot_ = (slot_ + 1) % slots_.size();
  Slot& slot = slots_[slot_];
  if (slot.is_copied) {
    slot.is_copied->synchronize();  // returns at once, unless the device is two batches behind
  }
  const Samples gathered = slot.gathered.slice(0, count);
  gather_rows(samples_, order_.const_data_ptr<int64_t>() + begin, count, gathered);
  if (!copy_stream_) {
    return gathered;
  }
  Samples copied = slot.copy.slice(0, count);
  slot.is_used->block(*copy_stream_);
  {
    const c10::StreamGuard guard(*copy_stream_);
    copied.input.copy_(gathered.input, /*non_blocking=*/true);
    copied.target.copy_(gathered.target, /*non_blocking=*/true);
    slot.is_copied->record(*copy_stream_);
  }
  slot.is_copied->block(current_stream(device_));
  return copied;
}

}  // namespace ddp
