#include "common/training/training.hpp"

#include <fmt/format.h>

#include <iostream>
#include <string>
#include <utility>

#include "common/base/exit_codes.hpp"
#include "common/launch/stop_request.hpp"
#include "common/training/batch_finder.hpp"

namespace ddp {

Training::Training(const Options& options, const LaunchEnvironment& launch, const Dataset& dataset,
                   DataLoader& loader, Mlp model, Optimizer& optimizer,
                   std::vector<torch::Device> devices, ProcessGroup* process_group)
    : options_(options.find_batch
                   ? find_batch(options, launch, loader, model, optimizer, devices, process_group)
                   : options),
      launch_(launch),
      dataset_(dataset),
      loader_(loader),
      optimizer_(optimizer),
      process_group_(process_group),
      log_(options_, model, model->parameters().front().device(), process_group_),
      snapshot_(options_, launch, dataset, *model, optimizer) {
  const int world_size = process_group == nullptr ? 1 : process_group->world_size();
  TORCH_CHECK(loader.batch_per_rank() == resolve_batch_per_rank(options_, world_size),
              "Expected a loader of ", resolve_batch_per_rank(options_, world_size),
              " samples a batch, as the options say, got ", loader.batch_per_rank());
  if (process_group_ != nullptr) {
    model->set_rank(process_group_->rank());
  }
  if (devices.empty()) {
    devices.push_back(model->parameters().front().device());
  }
  log_.set_devices(devices);
  if (options_.speedup != "none") {
    fused_step_ = std::make_unique<FusedStep>(options_, std::move(model), devices, process_group_,
                                              [this] { optimizer_.fused_step(); });
  }
  log_.also_compare([this] { optimizer_.expect_mirrored(); });
  loader_.set_observer(this);
  optimizer_.set_observer(this);
  watch_for_stop_request();
  if (options_.inject != "none" && launch.rank == 0) {
    std::cerr << fmt::format("{}: note: --inject {}: this run has a fault on purpose\n",
                             options_.program, options_.inject);
  }
}

Training::~Training() {
  loader_.set_observer(nullptr);
  optimizer_.set_observer(nullptr);
  optimizer_.set_accumulating(false);
  if (process_group_ != nullptr) {
    process_group_->set_accumulating(false);
  }
}

void Training::begin_epoch(int64_t steps) {
  epoch_ended_ = false;
  if (options_.verbose) {
    log_.print_order(loader_.sampler().indices());
  }
  log_.begin_epoch(steps);
}

void Training::end_epoch() {
  epoch_ended_ = true;
  log_.end_epoch();
  if (options_.inject != "none") {
    differ_in_collectives();
  }
  if (!options_.tensorboard.empty()) {
    log_.write_events(dataset_, optimizer_.learning_rate());
  }
  if (is_due() || log_.stop_asked()) {
    log_.before_snapshot();
  }
}

/// Faults on purpose, --inject rank-0-collective and mismatched: ranks do not call the same.
void Training::differ_in_collectives() const {
  if (process_group_ == nullptr) {
    return;
  }
  const bool is_first = process_group_->rank() == 0;
  const torch::TensorOptions place(process_group_->device());
  if (options_.inject == "rank-0-collective" && is_first) {
    process_group_->all_reduce(torch::ones({1}, place));
  } else if (options_.inject == "mismatched") {
    // Of as many bytes, which is all that Gloo compares: it adds them up.
    constexpr int64_t kElements = 96;  // that 2, 3, 4, 6 or 8 ranks can divide
    const torch::Tensor sums = is_first
                                   ? torch::ones({kElements}, place.dtype(torch::kFloat32))
                                   : torch::ones({kElements / 2}, place.dtype(torch::kFloat64));
    process_group_->all_reduce(sums);
    if (is_first) {
      std::cerr << fmt::format("{}: note: sums of 1 over {} ranks are {:g} to {:g}\n",
                               options_.program, process_group_->world_size(),
                               sums.min().item<double>(), sums.max().item<double>());
    }
  }
}

void Training::begin_batch(const Batch& batch) {
  const bool accumulates = !batch.completes_step;
  optimizer_.set_accumulating(accumulates);
  if (process_group_ != nullptr) {
    process_group_->set_accumulating(accumulates);
  }
}

int64_t Training::load_snapshot() {
  if (!std::exchange(loaded_, true)) {
    set_epoch(snapshot_.load(process_group_));
  }
  return epoch_;
}

Training::Epochs Training::epochs() {
  log_.begin_training(load_snapshot());
  if (fused_step_ != nullptr) {
    train_by_fused_step();
  }
  return Epochs(*this);
}

Training::Epochs& Training::Epochs::operator++() {
  training_.finish_epoch();
  return *this;
}

bool Training::Epochs::operator!=(std::nullptr_t) const {
  return training_.epoch_ < training_.options_.total_epochs;
}

void Training::set_epoch(int64_t epoch) {
  epoch_ = epoch;
  epoch_ended_ = false;
  if (epoch < options_.total_epochs) {
    optimizer_.set_epoch(epoch);
    log_.set_epoch(epoch);
  }
}

void Training::train_by_fused_step() {
  for (; epoch_ < options_.total_epochs; finish_epoch()) {
    loader_.set_epoch(epoch_);
    for (const Batch& batch : loader_) {
      fused_step_->run(batch, optimizer_.learning_rate());
    }
    if (launch_.rank == 0 && is_due()) {
      save_snapshot();
    }
  }
}

void Training::save_snapshot() {
  // The other ranks know by the same arithmetic when to give their parts.
  TORCH_CHECK(!optimizer_.is_sharded() || is_due(), "Expected --shard-optimizer to save every ",
              options_.save_every, " epochs, got ", epoch_ + 1);
  snapshot_.save(epoch_ + 1, process_group_);
}

void Training::finish_epoch() {
  TORCH_CHECK(epoch_ended_, "Expected the loop to read the loader to its end in epoch ", epoch_,
              ": there the ranks' losses are summed and requests to stop are heard");
  const int64_t epochs_done = epoch_ + 1;
  const bool stops = log_.stop_asked() && epochs_done < options_.total_epochs;
  if (launch_.rank == 0 && stops && snapshot_.saved_epochs() != epochs_done) {
    snapshot_.save(epochs_done, process_group_);
  }
  if (process_group_ != nullptr && (stops || is_due())) {
    snapshot_.finish_save(epochs_done, *process_group_);
  }
  if (!stops) {
    set_epoch(epochs_done);
    return;
  }
  if (process_group_ != nullptr) {
    // Waits for rank 0: a launcher that sees one rank leave may end the others at once.
    destroy_process_group(*process_group_);
  }
  throw Error(ExitCode::kRunAgain,
              launch_.rank == 0 ? "stopped on request after epoch " + std::to_string(epoch_) +
                                      " with snapshot " + options_.snapshot +
                                      "; a restart by the launcher, or --resume auto, goes on from "
                                      "there"
                                : "");
}

}  // namespace ddp
