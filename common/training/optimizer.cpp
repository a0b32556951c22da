#include "common/training/optimizer.hpp"

#include <cmath>
#include <utility>

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
      total_epochs_(options.total_epochs) {
  if (options.shard_optimizer && process_group != nullptr && process_group->world_size() > 1) {
    process_group_ = process_group;
  }
  find_parts(options);
  make_state();
}

void Optimizer::find_parts(const Options& options) {
  if (!is_sharded()) {
    parts_ = {{.begin = 0, .size = flat_.data.numel(), .state_begin = 0}};
    return;
  }
  const int world_size = process_group_->world_size();
  int64_t state_begin = 0;
  buckets_ = bucket_ranges(flat_, distributed_options(options));
  for (const BucketRange& bucket : buckets_) {
    const int64_t size = bucket.end - bucket.begin;
    weights_.push_back(divide(flat_.data.narrow(0, bucket.begin, size), world_size));
    const auto [begin, end] = part_range(size, process_group_->rank(), world_size);
    parts_.push_back({bucket.begin + begin, end - begin, state_begin});
    state_begin += end - begin;
  }
}

std::vector<torch::Tensor> Optimizer::parts_of(const torch::Tensor& flat) const {
  std::vector<torch::Tensor> views;
  for (const Part& part : parts_) {
    views.push_back(flat.narrow(0, part.begin, part.size));
  }
  return views;
}

void Optimizer::make_state() {
  const int64_t size = parts_.back().state_begin + parts_.back().size;
  const auto zeros = [&] { return torch::zeros({size}, flat_.data.options()); };
  if (kind_ == "momentum") {
    state_ = {{"momentum_buffer", zeros()}};
  } else if (kind_ == "adam" || kind_ == "adamw") {
    state_ = {{"exp_avg", zeros()},
              {"exp_avg_sq", zeros()},
              {"step", torch::zeros({}, flat_.data.options().dtype(torch::kFloat32))}};
  } else {
    TORCH_CHECK(kind_ == "sgd", "Expected sgd, momentum, adam or adamw, got ", kind_);
  }
  part_data_ = parts_of(flat_.data);
  part_grad_ = parts_of(flat_.grad);
  for (const auto& [name, tensor] : state_) {
    std::vector<torch::Tensor>& views = part_state_.emplace_back();
    for (const Part& part : parts_) {
      views.push_back(tensor.dim() == 0 ? tensor : tensor.narrow(0, part.state_begin, part.size));
    }
  }
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
  if (!is_sharded()) {
    return state_;
  }
  const torch::NoGradGuard no_grad;
  const bool collects = process_group_->rank() == 0;
  NamedTensors whole;
  for (size_t i = 0; i < state_.size(); ++i) {
    const auto& [name, own] = state_[i];
    if (own.dim() == 0) {
      whole.emplace_back(name, own);
      continue;
    }
    const torch::Tensor all = collects ? torch::zeros_like(flat_.data) : own;
    for (size_t b = 0; b < buckets_.size(); ++b) {
      for (int rank = 0; rank < process_group_->world_size(); ++rank) {
        const auto [begin, end] =
            part_range(buckets_[b].end - buckets_[b].begin, rank, process_group_->world_size());
        if (begin == end) {
          continue;
        }
        const bool mine = rank == process_group_->rank();
        const torch::Tensor place =
            collects ? all.narrow(0, buckets_[b].begin + begin, end - begin) : torch::Tensor();
        if (mine && collects) {
          place.copy_(part_state_[i][b]);
        } else if (rank != 0) {
          process_group_->broadcast(mine       ? part_state_[i][b]
                                    : collects ? place
                                               : torch::empty({end - begin}, own.options()),
                                    rank);
        }
      }
    }
    whole.emplace_back(name, all);
  }
  return whole;
}

void Optimizer::load_state(const NamedTensors& state, const ProcessGroup* process_group) {
  const torch::NoGradGuard no_grad;
  const bool gives = process_group == nullptr || process_group->rank() == 0;
  TORCH_CHECK(!gives || state.size() == state_.size(), "Expected a state of ", state_.size(),
              " tensors, got ", state.size());
  /// What rank 0 has at [begin, end) of tensor i.
  const auto received = [&](size_t i, int64_t begin, int64_t end) {
    const torch::Tensor& own = state_[i].second;
    torch::Tensor values;
    if (gives) {
      const torch::Tensor& whole = state[i].second;
      values = (own.dim() == 0 ? whole : whole.narrow(0, begin, end - begin)).to(own.device());
    } else {
      values = own.dim() == 0 ? torch::empty_like(own) : torch::empty({end - begin}, own.options());
    }
    if (process_group != nullptr) {
      process_group->broadcast(values);
    }
    return values;
  };
  for (size_t i = 0; i < state_.size(); ++i) {
    torch::Tensor& own = state_[i].second;
    if (own.dim() == 0 || !is_sharded()) {
      own.copy_(received(i, 0, own.numel()));
      continue;
    }
    for (size_t b = 0; b < buckets_.size(); ++b) {
      const torch::Tensor values = received(i, buckets_[b].begin, buckets_[b].end);
      part_state_[i][b].copy_(
          values.narrow(0, parts_[b].begin - buckets_[b].begin, parts_[b].size));
    }
  }
}

void Optimizer::gather_weights() {
  if (is_sharded()) {
    process_group_->gather_parts(weights_);
  }
}

void Optimizer::set_epoch(int64_t epoch) {
  if (linear_) {
    learning_rate_ = initial_learning_rate_ *
                     (1.0 - static_cast<double>(epoch) / static_cast<double>(total_epochs_));
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
  update_by_aten();
  gather_weights();
}

void Optimizer::zero_grad() {
  if (!step_is_partial_) {
    flat_.grad.zero_();
  }
  // Not if the loop begins with zero_grad().
  if (std::exchange(updating_, false) && observer_ != nullptr) {
    observer_->begin(
        Phase::kData);  // what is left is to free this batch's graph and fetch the next
  }
}

void Optimizer::fused_step() {
  if (flat_.data.is_cpu()) {
    update_by_kernel();
  } else {
    update_by_aten();
  }
  gather_weights();
}

void Optimizer::update_by_aten() {
  const torch::NoGradGuard no_grad;
  if (kind_ == "sgd") {
    for (size_t i = 0; i < parts_.size(); ++i) {
      part_data_[i].add_(part_grad_[i], -learning_rate_);
    }
  } else if (kind_ == "momentum") {
    // A buffer of zeros makes the first step's buffer the gradient itself, as LibTorch's optimizer
    // has it.
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
  for (size_t i = 0; i < parts_.size(); ++i) {
    update.size = parts_[i].size;
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
