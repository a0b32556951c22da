#include "common/data/data_loader.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "common/base/parse.hpp"

namespace ddp {
namespace {

/// One that is copied, or used by the device, and one that is filled.
constexpr size_t kBatchesUnderWay = 2;

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
  return static_cast<size_t>(samples.input.numel()) * sizeof(float) + samples.target.nbytes() <=
         room;
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
    : samples_(samples), sampler_(&sampler), options_(options) {
  TORCH_CHECK(options.batch_per_rank >= 1, "Expected batch_per_rank >= 1, got ",
              options.batch_per_rank);
  TORCH_CHECK(options.accumulate >= 1, "Expected accumulate >= 1, got ", options.accumulate);
  set_up();
}

void DataLoader::set_up() {
  samples_.target = samples_.target.contiguous();
  samples_.input = samples_.input.contiguous();
  if (options_.resident) {
    samples_.input = as_features(samples_.input.to(options_.device));
    samples_.target = samples_.target.to(options_.device);
  }
  reserve(std::min(options_.batch_per_rank, sampler_->indices().size(0)));
}

void DataLoader::reshard(std::unique_ptr<Sampler> sampler, const Options& options,
                         const torch::Device& device) {
  copy_stream_.reset();
  own_sampler_ = std::move(sampler);
  sampler_ = own_sampler_.get();
  samples_ = dataset_->train;
  options_ = loader_options(samples_, options, device);
  set_up();
}

int64_t DataLoader::unpadded_samples() const {
  const int64_t samples = batch_.size();
  return std::clamp(sampler_->unpadded_samples() - (place_.position - samples), int64_t{0},
                    samples);
}

void DataLoader::set_batch(int64_t batch_per_rank, int64_t accumulate) {
  options_.batch_per_rank = batch_per_rank;
  options_.accumulate = accumulate;
  reserve(std::min(batch_per_rank, sampler_->indices().size(0)));
}

void DataLoader::reserve(int64_t samples) {
  slots_.clear();
  copies_.clear();
  rows_.reset();
  batch_.input.reset();
  batch_.target.reset();
  batch_.rows.reset();
  slot_ = copy_ = 0;
  reserved_ = samples;
  const torch::Device& device = options_.device;
  const auto buffers = [&](const torch::TensorOptions& place) {
    const Samples whole = samples_.room_for(samples, place);
    return Buffers{whole, whole};
  };
  if (options_.step_gathers) {
    rows_ = torch::empty({samples}, torch::TensorOptions(device).dtype(torch::kInt64));
    return;
  }
  if (options_.resident) {
    slots_.push_back({buffers(device), std::nullopt});
    return;
  }
  const bool copies = !device.is_cpu();
  const auto place = torch::TensorOptions().pinned_memory(copies);
  while (slots_.size() < (copies ? kBatchesUnderWay : 1)) {
    slots_.push_back(
        {buffers(place), copies ? std::optional<c10::Event>(device.type()) : std::nullopt});
  }
  if (copies && !copy_stream_) {
    copy_stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  }
  while (copies && copies_.size() < kBatchesUnderWay) {
    copies_.push_back({buffers(device), c10::Event(device.type())});
    // Whoever had this memory before may still be at work with it.
    copies_.back().is_used.record(current_stream());
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

DataLoader::Slot& DataLoader::next_free() {
  Slot& slot = slots_[slot_];
  slot_ = slot_ + 1 == slots_.size() ? 0 : slot_ + 1;
  slot.wait_for_copy();
  return slot;
}

const Samples& DataLoader::gather(int64_t position, int64_t samples) {
  if (options_.step_gathers) {
    batch_.rows = rows_.narrow(0, 0, samples);
    batch_.rows.copy_(order_.narrow(0, position, samples), /*non_blocking=*/true);
    return samples_;
  }
  if (options_.resident) {
    const Samples& batch = slots_.front().gathered.first(samples);
    const torch::Tensor order = order_.narrow(0, position, samples);
    torch::Tensor input = batch.input;
    torch::Tensor target = batch.target;
    at::index_select_out(input, samples_.input, 0, order);
    at::index_select_out(target, samples_.target, 0, order);
    return batch;
  }
  Slot& slot = next_free();
  const Samples& gathered = slot.gathered.first(samples);
  gather_rows(samples_, order_.const_data_ptr<int64_t>() + position, samples, gathered);
  return copy_stream_ ? copy_to_device(slot, gathered) : gathered;
}

const Samples& DataLoader::copy_to_device(Slot& slot, const Samples& gathered) {
  copy_ = (copy_ + 1) % copies_.size();
  Copy& copy = copies_[copy_];
  const Samples& copied = copy.buffers.first(gathered.size());
  copy.is_used.block(*copy_stream_);
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

bool DataLoader::is_in_epoch(const Place& place) const {
  return place.step * samples_per_step() < sampler_->epoch_samples();
}

DataLoader::Place DataLoader::after(const Place& place) const {
  const int64_t step_end =
      std::min((place.step + 1) * options_.batch_per_rank * options_.accumulate,
               sampler_->indices().sizes().front());
  const int64_t position =
      place.position + std::clamp(step_end - place.position, int64_t{0}, options_.batch_per_rank);
  return {place.step + (position >= step_end ? 1 : 0), position};
}

DataLoader::Iterator DataLoader::begin() {
  place_ = {};
  order_ = sampler_->indices();
  if (samples_.rows.defined()) {
    order_ = samples_.rows.index_select(0, order_);
  }
  if (options_.resident) {
    order_ = order_.to(options_.device);
  }
  const int64_t most = after(place_).position;
  if (most > reserved_) {
    reserve(most);  // the sampler's epochs differ in length
  }
  batch_.observer->begin_epoch((sampler_->epoch_samples() + samples_per_step() - 1) /
                               samples_per_step());
  next();
  return Iterator(this);
}

void DataLoader::next() {
  if (copy_stream_) {
    copies_[copy_].is_used.record(current_stream());
  }
  has_batch_ = is_in_epoch(place_);
  if (!has_batch_) {
    batch_.observer->end_epoch();
    return;
  }
  const Place following = after(place_);
  const Samples& tensors = gather(place_.position, following.position - place_.position);
  batch_.input = tensors.input;
  batch_.target = tensors.target;
  const int64_t step_samples = samples_per_step();
  batch_.step_samples_per_rank =
      static_cast<double>(
          std::min(step_samples, sampler_->epoch_samples() - place_.step * step_samples)) /
      sampler_->num_replicas();
  batch_.completes_step = following.step > place_.step;
  place_ = following;
  batch_.observer->begin_batch(batch_);
  batch_.observer->begin(Phase::kForward);
}

}  // namespace ddp
