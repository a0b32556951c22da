#include "common/optimizer.hpp"

#include <cmath>

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

Optimizer::Optimizer(const torch::nn::Module& module, const Options& options)
    : flat_(flatten_parameters(module)),
      kind_(options.optimizer),
      initial_learning_rate_(resolve_learning_rate(options)),
      learning_rate_(initial_learning_rate_),
      linear_(resolve_lr_schedule(options) == "linear"),
      total_epochs_(options.total_epochs) {
  if (kind_ == "momentum") {
    state_ = {{"momentum_buffer", torch::zeros_like(flat_.data)}};
  } else if (kind_ == "adam" || kind_ == "adamw") {
    state_ = {{"exp_avg", torch::zeros_like(flat_.data)},
              {"exp_avg_sq", torch::zeros_like(flat_.data)},
              {"step", torch::zeros({}, flat_.data.options().dtype(torch::kFloat32))}};
  } else {
    TORCH_CHECK(kind_ == "sgd", "Expected sgd, momentum, adam or adamw, got ", kind_);
  }
}

void Optimizer::set_epoch(int64_t epoch) {
  if (linear_) {
    learning_rate_ = initial_learning_rate_ *
                     (1.0 - static_cast<double>(epoch) / static_cast<double>(total_epochs_));
  }
}

void Optimizer::step() {
  const torch::NoGradGuard no_grad;
  if (kind_ == "sgd") {
    flat_.data.add_(flat_.grad, -learning_rate_);
  } else if (kind_ == "momentum") {
    // A buffer of zeros makes the first step's buffer the gradient itself, as LibTorch's optimizer
    // has it.
    at::_fused_sgd_({flat_.data}, {flat_.grad}, {state_[0].second}, /*weight_decay=*/0.0, kMomentum,
                    learning_rate_, /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false,
                    /*is_first_step=*/false);
  } else {
    const torch::Tensor& step = state_[2].second;
    step.add_(1);
    if (kind_ == "adam") {
      at::_fused_adam_({flat_.data}, {flat_.grad}, {state_[0].second}, {state_[1].second}, {},
                       {step}, learning_rate_, kBeta1, kBeta2, /*weight_decay=*/0.0, kEpsilon,
                       /*amsgrad=*/false, /*maximize=*/false);
    } else {
      at::_fused_adamw_({flat_.data}, {flat_.grad}, {state_[0].second}, {state_[1].second}, {},
                        {step}, learning_rate_, kBeta1, kBeta2, kAdamWWeightDecay, kEpsilon,
                        /*amsgrad=*/false, /*maximize=*/false);
    }
  }
}

void Optimizer::fused_step() {
  fused::Update update{.size = flat_.data.numel(),
                       .weights = flat_.data.mutable_data_ptr<float>(),
                       .gradients = flat_.grad.const_data_ptr<float>(),
                       .rate = static_cast<float>(learning_rate_)};
  if (kind_ == "momentum") {
    update.rule = fused::Update::Rule::kMomentum;
    update.first_moment = state_[0].second.mutable_data_ptr<float>();
    update.beta1 = static_cast<float>(kMomentum);
  } else if (kind_ == "adam" || kind_ == "adamw") {
    const auto step = static_cast<double>(*state_[2].second.mutable_data_ptr<float>() += 1);
    update.rule = fused::Update::Rule::kAdam;
    update.first_moment = state_[0].second.mutable_data_ptr<float>();
    update.second_moment = state_[1].second.mutable_data_ptr<float>();
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
  fused::kernels().update(update, 0, update.size);
}

}  // namespace ddp
