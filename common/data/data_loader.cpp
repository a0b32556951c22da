#include "common/data/data_loader.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/base/parse.hpp"

namespace ddp {
namespace {

/// One that is copied, one that is filled.
constexpr size_t kSlots = 2;

/// to[i] = from[order[i]]. Both contiguous.
void gather_rows(const torch::Tensor& from, const int64_t* order, int64_t rows,
                 const torch::Tensor& to) {
  const int64_t all_rows = from.size(0);
  const size_t row_bytes = all_rows == 0 ? 0 : from.nbytes() / static_cast<size_t>(all_rows);
  const char* const source = static_cast<const char*>(from.const_data_ptr());
  char* target = static_cast<char*>(to.mutable_data_ptr());
  for (int64_t i = 0; i < rows; ++i, target += row_bytes) {
    TORCH_CHECK(order[i] >= 0 && order[i] < all_rows, "Expected an index in [0, ", all_rows,
                "), got ", order[i]);
    std::memcpy(target, source + static_cast<size_t>(order[i]) * row_bytes, row_bytes);
  }
}

}  // namespace

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

bool fits_on(const torch::Device& device, const Samples& samples) {
  if (device.is_cpu()) {
    return false;
  }
  constexpr size_t kShare = 4;
  const char* const name = "DDP_RESIDENT_MIB";
  const char* const allowed_mib = std::getenv(name);
  const size_t room =
      allowed_mib != nullptr
          ? parse_integer<size_t>(name, allowed_mib, 0, size_t{1} << 32) << 20
          : c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first / kShare;
  return samples.input.nbytes() + samples.target.nbytes() <= room;
}

DataLoaderOptions loader_options(const Samples& samples, const Options& options,
                                 const torch::Device& device) {
  const bool resident = fits_on(device, samples);
  return {.batch_per_rank = options.batch_per_rank,
          .accumulate = options.accumulate,
          .device = device,
          .resident = resident,
          .step_gathers = resident && options.speedup == "graph"};
}

DataLoader::DataLoader(const Samples& samples, Sampler& sampler, const DataLoaderOptions& options)
    : samples_{samples.input.contiguous(), samples.target.contiguous()},
      sampler_(&sampler),
      options_(options) {
  TORCH_CHECK(options.batch_per_rank >= 1, "Expected batch_per_rank >= 1, got ",
              options.batch_per_rank);
  TORCH_CHECK(options.accumulate >= 1, "Expected accumulate >= 1, got ", options.accumulate);
  place();
}

void DataLoader::place() {
  if (options_.resident) {
    samples_ = {samples_.input.to(options_.device), samples_.target.to(options_.device)};
  }
  copy_stream_.reset();
  reserve(std::min(options_.batch_per_rank, sampler_->indices().size(0)));
}

void DataLoader::reshard(std::unique_ptr<Sampler> sampler, const Options& options,
                         const torch::Device& device) {
  own_sampler_ = std::move(sampler);
  sampler_ = own_sampler_.get();
  options_ = loader_options(samples_, options, device);
  place();
}

int64_t DataLoader::unpadded_samples() const {
  const int64_t samples = batch_.size();
  return std::clamp(sampler_->unpadded_samples() - (position_ - samples), int64_t{0}, samples);
}

void DataLoader::set_batch(int64_t batch_per_rank, int64_t accumulate) {
  options_.batch_per_rank = batch_per_rank;
  options_.accumulate = accumulate;
  batch_.input.reset();
  batch_.target.reset();
  batch_.rows.reset();
  reserve(std::min(batch_per_rank, sampler_->indices().size(0)));
}

void DataLoader::reserve(int64_t samples) {
  const auto buffers = [&](const torch::TensorOptions& place) {
    const auto room = [&](const torch::Tensor& all) {
      std::vector<int64_t> sizes = all.sizes().vec();
      sizes[0] = samples;
      return torch::empty(sizes, all.options().merge_in(place));
    };
    const Samples whole{room(samples_.input), room(samples_.target)};
    return Buffers{whole, whole};
  };
  slots_.clear();
  rows_.reset();
  slot_ = 0;
  reserved_ = samples;
  const torch::Device& device = options_.device;
  if (options_.step_gathers) {
    rows_ = torch::empty({samples}, torch::TensorOptions(device).dtype(torch::kInt64));
  } else if (device.is_cpu() || options_.resident) {
    slots_.push_back({.gathered = buffers({}), .copied = {}, .is_copied = {}, .is_used = {}});
  } else {
    if (!copy_stream_) {
      copy_stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    }
    while (slots_.size() < kSlots) {
      slots_.push_back({.gathered = buffers(torch::TensorOptions().pinned_memory(true)),
                        .copied = buffers(device),
                        .is_copied = c10::Event(device.type()),
                        .is_used = c10::Event(device.type())});
      // Whoever had this memory before may still be at work with it.
      slots_.back().is_used->record(current_stream());
    }
  }
}

c10::Stream DataLoader::current_stream() const {
  return c10::impl::VirtualGuardImpl(options_.device.type()).getStream(options_.device);
}

const Samples& DataLoader::Buffers::first(int64_t samples) {
  if (samples == whole.size()) {
    return whole;
  }
  if (samples != rest.size()) {
    rest = {whole.input.narrow(0, 0, samples), whole.target.narrow(0, 0, samples)};
  }
  return rest;
}

const Samples& DataLoader::gather(int64_t samples) {
  if (samples > reserved_) {
    reserve(samples);  // the sampler's epochs differ in length
  }
  if (options_.step_gathers) {
    batch_.rows = rows_.narrow(0, 0, samples);
    batch_.rows.copy_(order_.narrow(0, position_, samples), /*non_blocking=*/true);
    return samples_;
  }
  slot_ = (slot_ + 1) % slots_.size();
  Slot& slot = slots_[slot_];
  if (copy_stream_) {
    slot.is_copied->synchronize();  // at once, unless the device is two batches behind
  }
  const Samples& gathered = slot.gathered.first(samples);
  if (options_.resident) {
    const torch::Tensor order = order_.narrow(0, position_, samples);
    torch::Tensor input = gathered.input;
    torch::Tensor target = gathered.target;
    at::index_select_out(input, samples_.input, 0, order);
    at::index_select_out(target, samples_.target, 0, order);
    return gathered;
  }
  const int64_t* const order = sampler_->indices().const_data_ptr<int64_t>() + position_;
  gather_rows(samples_.input, order, samples, gathered.input);
  gather_rows(samples_.target, order, samples, gathered.target);
  return copy_stream_ ? copy_to_device(slot, gathered) : gathered;
}

const Samples& DataLoader::copy_to_device(Slot& slot, const Samples& gathered) {
  const Samples& copied = slot.copied.first(gathered.size());
  slot.is_used->block(*copy_stream_);
  {
    const c10::StreamGuard guard(*copy_stream_);
    copied.input.copy_(gathered.input, /*non_blocking=*/true);
    copied.target.copy_(gathered.target, /*non_blocking=*/true);
    slot.is_copied->record(*copy_stream_);
  }
  slot.is_copied->block(current_stream());
  return copied;
}

int64_t DataLoader::samples_per_step() const {
  return options_.batch_per_rank * options_.accumulate * sampler_->num_replicas();
}

DataLoader::Iterator DataLoader::begin() {
  step_ = 0;
  position_ = 0;
  if (options_.resident) {
    order_ = sampler_->indices().to(options_.device);
  }
  batch_.observer->begin_epoch((sampler_->epoch_samples() + samples_per_step() - 1) /
                               samples_per_step());
  next();
  return Iterator(this);
}

void DataLoader::next() {
  if (copy_stream_) {
    slots_[slot_].is_used->record(current_stream());
  }
  const torch::Tensor& indices = sampler_->indices();
  const int64_t step_per_rank = options_.batch_per_rank * options_.accumulate;
  const int64_t step_samples = samples_per_step();
  const int64_t step_begin = step_ * step_samples;
  has_batch_ = step_begin < sampler_->epoch_samples();
  if (!has_batch_) {
    batch_.observer->end_epoch();
    return;
  }
  const int64_t step_end = std::min((step_ + 1) * step_per_rank, indices.size(0));
  const int64_t samples = std::clamp(step_end - position_, int64_t{0}, options_.batch_per_rank);
  const Samples& tensors = gather(samples);
  batch_.input = tensors.input;
  batch_.target = tensors.target;
  batch_.step_samples_per_rank =
      static_cast<double>(std::min(step_samples, sampler_->epoch_samples() - step_begin)) /
      sampler_->num_replicas();

  position_ += samples;
  batch_.completes_step = position_ >= step_end;
  if (batch_.completes_step) {
    ++step_;
  }
  batch_.observer->begin_batch(batch_);
  batch_.observer->begin(Phase::kForward);
}

}  // namespace ddp
