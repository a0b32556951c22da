#include "common/training/accelerator.hpp"

#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "common/backends/device.hpp"
#include "common/parallel/distributed_sampler.hpp"

namespace ddp {
namespace {

ProcessGroup& join(const Options& options, const LaunchEnvironment& launch) {
  init_process_group(options, launch, set_device(options, launch.local_rank));
  return default_process_group();
}

}  // namespace

Accumulation::Accumulation(Optimizer& optimizer, ProcessGroup& process_group, bool completes_step)
    : optimizer_(optimizer), process_group_(process_group) {
  optimizer_.set_accumulating(!completes_step);
  process_group_.set_accumulating(!completes_step);
}

Accumulation::~Accumulation() {
  optimizer_.set_accumulating(false);
  process_group_.set_accumulating(false);
}

Accelerator::Accelerator(const Options& options, const LaunchEnvironment& launch)
    : Accelerator(options, join(options, launch)) {}

void Accelerator::print(std::string_view text) const {
  if (is_main_process()) {
    std::cout << std::string(text) + "\n" << std::flush;
  }
}

std::shared_ptr<DistributedDataParallel<Mlp>> Accelerator::prepare(Mlp model, Optimizer& optimizer,
                                                                   DataLoader& loader) {
  TORCH_CHECK(loader.dataset() != nullptr,
              "Expected a loader of a whole dataset, made by DataLoader(dataset, options), got one "
              "of samples");
  loader.reshard(std::make_unique<DistributedSampler>(*loader.dataset(), process_group_, options_),
                 options_, device());
  // The optimizer has made gradients; the wrap makes them where the backend wants them.
  model->zero_grad();
  model->to(device());
  const auto made =
      std::make_shared<Prepared>(options_, process_group_, std::move(model), optimizer, loader);
  optimizer = Optimizer(*made->model, options_, &process_group_);
  prepared_ = made;
  return {made, &made->parallel_model};
}

std::shared_ptr<Accelerator::Prepared> Accelerator::prepared() const {
  std::shared_ptr<Prepared> all = prepared_.lock();
  TORCH_CHECK(all != nullptr, "Expected prepare() to have been called, and its model to be there");
  return all;
}

Accumulation Accelerator::accumulate(const Batch& batch) const {
  return {prepared()->optimizer, process_group_, batch.completes_step};
}

torch::Tensor Accelerator::gather_for_metrics(const torch::Tensor& of_batch) const {
  const DataLoader& loader = prepared()->loader;
  const Sampler& sampler = loader.sampler();
  TORCH_CHECK(loader.accumulate() == 1 || sampler.epoch_samples() % sampler.num_replicas() == 0,
              "Expected --accumulate 1, or samples that the ranks share evenly, got --accumulate ",
              loader.accumulate(), " and ", sampler.epoch_samples(), " samples over ",
              sampler.num_replicas(), " ranks, of which some would gather once more than others");
  const int64_t samples = loader.batch().size();
  TORCH_CHECK(of_batch.dim() >= 1 && of_batch.size(0) == samples, "Expected a row for each of the ",
              samples, " samples of the batch at hand, got sizes ", of_batch.sizes());
  const torch::Tensor own = of_batch.detach().narrow(0, 0, loader.unpadded_samples());
  if (sampler.num_replicas() == 1) {
    return own.clone();  // a loader's batches share their memory
  }
  // Backends gather tensors of one size, so the shorter ones are filled up, and cut off again.
  const torch::Tensor rows =
      process_group_
          .all_gather(torch::scalar_tensor(own.size(0), own.options().dtype(torch::kInt64)))
          .to(torch::kCPU);
  const bool is_bool = own.scalar_type() == torch::kBool;  // which backends do not know
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes[0] = rows.max().item<int64_t>();
  const torch::Tensor filled =
      torch::zeros(sizes, is_bool ? own.options().dtype(torch::kByte) : own.options());
  filled.narrow(0, 0, own.size(0)).copy_(own);
  const torch::Tensor all = process_group_.all_gather(filled);
  std::vector<torch::Tensor> parts;
  for (int rank = 0; rank < process_group_.world_size(); ++rank) {
    parts.push_back(all[rank].narrow(0, 0, rows[rank].item<int64_t>()));
  }
  return torch::cat(parts).to(own.scalar_type());
}

Training& Accelerator::training() const {
  const std::shared_ptr<Prepared> all = prepared();
  if (all->training == nullptr) {
    all->training = std::make_unique<Training>(
        options_, process_group_.environment(), *all->loader.dataset(), all->loader, all->model,
        all->optimizer, std::vector<torch::Device>{}, &process_group_);
  }
  return *all->training;
}

void Accelerator::save_state() {
  TORCH_CHECK(prepared()->training != nullptr,
              "Expected save_state() inside the loop over epochs()");
  if (is_main_process()) {
    training().save_snapshot();
  }
}

int64_t Accelerator::load_state() {
  TORCH_CHECK(prepared()->training == nullptr, "Expected load_state() once, before epochs()");
  options_.resume = "auto";
  return training().load_snapshot();
}

void Accelerator::end_training() {
  training().report();
  destroy_process_group(process_group_);
}

}  // namespace ddp
