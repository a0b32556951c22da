#include "common/training/optimizer.hpp"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "common/base/exit_codes.hpp"
#include "common/fused/kernels.hpp"

namespace ddp {
namespace {

constexpr double kMomentum = 0.9;
constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.999;
constexpr double kEpsilon = 1e-8;
constexpr double kAdamWWeightDecay = 0.01;

}  // namespace

double resolve_learning_rate(const Options& options) {
  if (options.learning_rate) {
    return *options.learning_rate;
  }
  if (options.optimizer == "sgd") {
    return options.dataset == "fashion-mnist" ? 0.05 : 0.1;
  }
  return options.optimizer == "momentum" ? 0.02 : 0.001;
}

std::string resolve_lr_schedule(const Options& options) {
  if (!options.lr_schedule.empty()) {
    return options.lr_schedule;
  }
  return options.dataset == "fashion-mnist" ? "linear" : "constant";
}

Optimizer::Optimizer(const torch::nn::Module& module, const Options& options,
                     const ProcessGroup* process_group)
    : flat_(flatten_parameters(module)),
      kind_(options.optimizer),
      initial_learning_rate_(resolve_learning_rate(options)),
      learning_rate_(initial_learning_rate_),
      linear_(resolve_lr_schedule(options) == "linear"),
      total_epochs_(options.total_epochs),
      averages_over_(options.inject == "average-weights" ? process_group : nullptr),
      buckets_{{0, flat_.data.numel(), 0, flat_.parameters.size()}} {
  if (options.shard_optimizer && process_group != nullptr && process_group->world_size() > 1) {
    process_group_ = process_group;
    rank_ = process_group->rank();
    world_size_ = process_group->world_size();
    buckets_ = bucket_ranges(flat_, distributed_options(options));
  }
  std::vector<int64_t> sizes;
  for (const BucketRange& bucket : buckets_) {
    weights_.push_back(divide(flat_.data.slice(0, bucket.begin, bucket.end), world_size_));
    part_data_.push_back(part_of(flat_.data.slice(0, bucket.begin, bucket.end)));
    part_grad_.push_back(part_of(flat_.grad.slice(0, bucket.begin, bucket.end)));
    sizes.push_back(part_data_.back().numel());
  }
  const int64_t size = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const auto add_moment = [&](const std::string& name) {
    state_.emplace_back(name, torch::zeros({size}, flat_.data.options()));
    part_state_.push_back(state_.back().second.split_with_sizes(sizes));
  };
  if (kind_ == "momentum") {
    add_moment("momentum_buffer");
  } else if (kind_ == "adam" || kind_ == "adamw") {
    add_moment("exp_avg");
    add_moment("exp_avg_sq");
    state_.emplace_back("step", torch::zeros({}, flat_.data.options().dtype(torch::kFloat32)));
    part_state_.emplace_back(sizes.size(), state_.back().second);
  } else {
    TORCH_CHECK(kind_ == "sgd", "Expected sgd, momentum, adam or adamw, got ", kind_);
  }
}

Optimizer::Optimizer(MirroredReplicas& replicas, const Options& options)
    : Optimizer(replicas.module(0), options, nullptr) {
  expect_uncompressed(options);
  if (options.speedup != "none") {
    throw UsageError(fmt::format(
        "--speedup: got {}, expected none: {} trains with autograd; 02_data_parallel has fused",
        options.speedup, options.program));
  }
  replicas_ = &replicas;
  replicas.pause_all_reduce(options.no_communication);
  for (size_t i = 1; i < replicas.size(); ++i) {
    further_.emplace_back(replicas.module(i), options, nullptr);
  }
}

void Optimizer::for_each_replica(c10::function_ref<void(Optimizer&)> apply) {
  if (replicas_ == nullptr) {
    apply(*this);
  } else {
    replicas_->run([&](size_t i) { apply(i == 0 ? *this : further_[i - 1]); });
  }
}

void Optimizer::expect_mirrored() const {
  if (replicas_ != nullptr) {
    replicas_->expect_mirrored();
  }
}

torch::Tensor Optimizer::part_of(const torch::Tensor& bucket) const {
  const auto [begin, end] = part_range(bucket.numel(), rank_, world_size_);
  return bucket.slice(0, begin, end);
}

NamedTensors Optimizer::state_layout() const {
  NamedTensors layout;
  for (const auto& [name, tensor] : state_) {
    const torch::Tensor& like = tensor.dim() == 0 ? tensor : flat_.data;
    layout.emplace_back(name, torch::empty(like.sizes(), like.options().device(torch::kMeta)));
  }
  return layout;
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : state_) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

NamedTensors Optimizer::state() const {
  NamedTensors whole = state_;
  if (!is_sharded()) {
    return whole;
  }
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < whole.size(); ++i) {
    if (state_[i].second.dim() == 0) {
      continue;
    }
    torch::Tensor& all = whole[i].second;
    if (rank_ == 0) {
      all = torch::zeros_like(flat_.data);
    }
    for (size_t b = 0; b < buckets_.size(); ++b) {
      // A bucket at a time: the other ranks need not have room for all of it.
      const BucketRange& range = buckets_[b];
      const torch::Tensor bucket = torch::empty({range.end - range.begin}, all.options());
      part_of(bucket).copy_(part_state_[i][b]);
      std::vector<DividedTensor> divided{divide(bucket, world_size_)};
      process_group_->gather_parts(divided);
      if (rank_ == 0) {
        all.slice(0, range.begin, range.end).copy_(bucket);
      }
    }
  }
  return whole;
}

void Optimizer::load_state(const NamedTensors& state, const ProcessGroup* process_group) {
  const torch::NoGradGuard no_grad;
  const bool gives = process_group == nullptr || process_group->rank() == 0;
  TORCH_CHECK(!gives || state.size() == state_.size(), "Expected a state of ", state_.size(),
              " tensors, got ", state.size());
  for (size_t i = 0; i < state_.size(); ++i) {
    const torch::Tensor& own = state_[i].second;
    for (size_t b = 0; b < buckets_.size(); ++b) {
      const bool is_number = own.dim() == 0;
      const BucketRange& range = buckets_[b];
      torch::Tensor values;
      if (gives) {
        const torch::Tensor& whole = state[i].second;
        values = (is_number ? whole : whole.slice(0, range.begin, range.end)).to(own.device());
      } else {
        values = is_number ? torch::empty_like(own)
                           : torch::empty({range.end - range.begin}, own.options());
      }
      if (process_group != nullptr) {
        process_group->broadcast(values);
      }
      part_state_[i][b].copy_(is_number ? values : part_of(values));
    }
  }
  for (Optimizer& replica : further_) {
    replica.load_state(state, nullptr);
  }
  if (replicas_ != nullptr) {
    replicas_->broadcast();
  }
}

void Optimizer::exchange_weights() {
  if (is_sharded()) {
    process_group_->gather_parts(weights_);
  } else if (averages_over_ != nullptr) {
    average_weights();
  }
}

void Optimizer::average_weights() {
  const torch::NoGradGuard no_grad;
  const auto begin = [this](Phase phase) {
    if (observer_ != nullptr) {
      observer_->begin(phase);
    }
  };
  begin(Phase::kBackward);  // which is where the clock of a step takes sums to be waited for
  averages_over_->all_reduce(flat_.data);
  begin(Phase::kOptimizer);
  flat_.data.div_(averages_over_->world_size());
}

void Optimizer::set_epoch(int64_t epoch) {
  if (linear_) {
    learning_rate_ = initial_learning_rate_ *
                     (1.0 - static_cast<double>(epoch) / static_cast<double>(total_epochs_));
  }
  for (Optimizer& replica : further_) {
    replica.set_epoch(epoch);
  }
}

void Optimizer::step() {
  updating_ = true;
  step_is_partial_ = accumulating_;
  if (accumulating_) {
    return;
  }
  if (observer_ != nullptr) {
    observer_->begin(Phase::kOptimizer);
  }
  for_each_replica([](Optimizer& replica) {
    replica.flat_.rebind_grads();
    replica.update_by_aten();
  });
  exchange_weights();
}

void Optimizer::zero_grad() {
  if (!step_is_partial_) {
    for_each_replica([](Optimizer& replica) {
      replica.flat_.rebind_grads();
      replica.flat_.grad.zero_();
    });
  }
  // Not if the loop begins with zero_grad().
  if (std::exchange(updating_, false) && observer_ != nullptr) {
    // What is left is to free this batch's graph and fetch the next.
    observer_->begin(Phase::kData);
  }
}

void Optimizer::fused_step() {
  if (flat_.data.is_cpu()) {
    update_by_kernel();
  } else {
    update_by_aten();
  }
  exchange_weights();
}

void Optimizer::update_by_aten() {
  const torch::NoGradGuard no_grad;
  if (kind_ == "sgd") {
    for (size_t i = 0; i < part_data_.size(); ++i) {
      part_data_[i].add_(part_grad_[i], -learning_rate_);
    }
  } else if (kind_ == "momentum") {
    // A buffer of zeros makes the first step's the gradient itself, as in LibTorch's optimizer.
    at::_fused_sgd_(part_data_, part_grad_, part_state_[0], /*weight_decay=*/0.0, kMomentum,
                    learning_rate_, /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false,
                    /*is_first_step=*/false);
  } else {
    state_[2].second.add_(1);
    if (kind_ == "adam") {
      at::_fused_adam_(part_data_, part_grad_, part_state_[0], part_state_[1], {}, part_state_[2],
                       learning_rate_, kBeta1, kBeta2, /*weight_decay=*/0.0, kEpsilon,
                       /*amsgrad=*/false, /*maximize=*/false);
    } else {
      at::_fused_adamw_(part_data_, part_grad_, part_state_[0], part_state_[1], {}, part_state_[2],
                        learning_rate_, kBeta1, kBeta2, kAdamWWeightDecay, kEpsilon,
                        /*amsgrad=*/false, /*maximize=*/false);
    }
  }
}

void Optimizer::update_by_kernel() {
  fused::Update update{.rate = static_cast<float>(learning_rate_)};
  if (kind_ == "momentum") {
    update.rule = fused::Update::Rule::kMomentum;
    update.beta1 = static_cast<float>(kMomentum);
  } else if (kind_ == "adam" || kind_ == "adamw") {
    const auto step = static_cast<double>(*state_[2].second.mutable_data_ptr<float>() += 1);
    update.rule = fused::Update::Rule::kAdam;
    update.rate = static_cast<float>(learning_rate_ / (1 - std::pow(kBeta1, step)));
    update.beta1 = static_cast<float>(kBeta1);
    update.beta2 = static_cast<float>(kBeta2);
    update.one_minus_beta1 = static_cast<float>(1 - kBeta1);
    update.one_minus_beta2 = static_cast<float>(1 - kBeta2);
    update.correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(kBeta2, step)));
    update.epsilon = static_cast<float>(kEpsilon);
    const double decay = kind_ == "adamw" ? kAdamWWeightDecay : 0.0;
    update.shrink = static_cast<float>(1 - learning_rate_ * decay);
  }
  for (size_t i = 0; i < part_data_.size(); ++i) {
    update.size = part_data_[i].numel();
    update.weights = part_data_[i].mutable_data_ptr<float>();
    update.gradients = part_grad_[i].const_data_ptr<float>();
    if (!state_.empty()) {
      update.first_moment = part_state_[0][i].mutable_data_ptr<float>();
    }
    if (state_.size() > 1) {
      update.second_moment = part_state_[1][i].mutable_data_ptr<float>();
    }
    fused::kernels().update(update);
  }
}

}  // namespace ddp
