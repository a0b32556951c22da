// common/fused/aten_engine.cpp - a replica's step on ATen's operators: what runs on GPUs.
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "common/fused/engine.hpp"

namespace ddp::fused {
namespace {

/// What cross entropy ignores if it is told nothing else; no dataset has such a class.
constexpr int64_t kIgnoreIndex = -100;

/// output = relu(input weight^T + bias)
void multiply_and_relu(torch::Tensor& output, const LinearStorage& layer,
                       const torch::Tensor& input, bool in_one_kernel) {
  if (in_one_kernel) {
    at::_addmm_activation_out(output, layer.bias, input, layer.weight.t());
  } else {
    at::addmm_out(output, layer.bias, input, layer.weight.t());
    at::relu_(output);
  }
}

/// Note [ReLU in the product]: cuBLASLt can apply the ReLU before it stores a product. But it may
/// take max(x, 0) for that, which makes a NaN a 0, and a run that diverges must be seen to; and it
/// may add in another order. Which it does is known only for the GPU, the library and the shape at
/// hand, so it is tried, on samples of all kinds and one with a NaN. There, and without more memory
/// than the layer takes in a step: input, output and its gradient.
/// @return whether one kernel gives the bits of two
bool can_fuse_relu(const LinearStorage& layer, int64_t samples) {
  const auto numbers = [&](int64_t count, double step) {
    return torch::arange(count, torch::kFloat32).mul_(step).to(layer.weight.device());
  };
  const torch::Tensor input =
      numbers(samples, 0.7).unsqueeze(1).add(numbers(layer.in(), 0.11)).sin_();
  input.select(0, 0).select(0, 0).fill_(std::numeric_limits<double>::quiet_NaN());
  const auto result = [&](bool in_one_kernel) {
    torch::Tensor output = torch::empty({samples, layer.out()}, input.options());
    multiply_and_relu(output, layer, input, in_one_kernel);
    constexpr double kNoOutput = -1;
    return output.nan_to_num_(kNoOutput);
  };
  return !result(true).ne_(result(false)).any().item<bool>();
}

class AtenEngine : public Engine {
 public:
  AtenEngine(MlpStorage storage, int64_t max_samples)
      : storage_(std::move(storage)),
        regression_(storage_.back().out() == 1),
        max_samples_(max_samples) {
    const torch::NoGradGuard no_grad;
    // First of all: what it takes is free again for what a step takes.
    fuses_relu_ =
        std::all_of(storage_.begin(), storage_.end() - 1,
                    [&](const LinearStorage& layer) { return can_fuse_relu(layer, max_samples); });
    const torch::TensorOptions options = storage_.front().weight.options().requires_grad(false);
    activations_.push_back(torch::zeros({max_samples, storage_.front().in()}, options));
    // The input has no gradient; that of the outputs has two stages, see differentiate_loss().
    for (const LinearStorage& layer : storage_) {
      activations_.push_back(torch::zeros({max_samples, layer.out()}, options));
      gradients_.push_back(torch::zeros({max_samples, layer.out()}, options));
    }
    log_probabilities_ = torch::zeros_like(gradients_.back());
    log_probability_gradients_ = torch::zeros_like(gradients_.back());
    for (torch::Tensor* const scalar : {&loss_, &loss_gradient_, &loss_divisor_, &total_weight_}) {
      *scalar = torch::zeros({}, options);
    }
    targets_ = regression_ ? torch::zeros({max_samples, 1}, options)
                           : torch::zeros({max_samples}, options.dtype(torch::kInt64));
    squares_ = torch::zeros({regression_ ? max_samples : 0, 1}, options);
  }

  void load(const Work& work) override {
    const torch::NoGradGuard no_grad;
    if (!work.batch.rows.defined()) {
      first(activations_.front(), work.samples)
          .copy_(work.batch.input.narrow(0, work.begin, work.samples), /*non_blocking=*/true);
      first(targets_, work.samples)
          .copy_(work.batch.target.narrow(0, work.begin, work.samples), /*non_blocking=*/true);
    }
    // Written only when they change: two launches less in nearly every step.
    const std::array<double, 2> scales = {work.gradient_scale, work.batch.step_samples_per_rank};
    if (scales != scales_) {
      loss_gradient_.fill_(work.gradient_scale);
      loss_divisor_.fill_(work.batch.step_samples_per_rank);
      scales_ = scales;
    }
  }

  /// Of `work` only what a graph may repeat.
  void compute(const Work& work, const Progress& progress) override {
    const torch::NoGradGuard no_grad;
    progress.observer.begin(Phase::kForward);
    if (work.batch.rows.defined()) {
      gather(work);
    }
    forward(work.samples);
    differentiate_loss(work.samples);
    progress.observer.begin(Phase::kBackward);
    backward(work.samples, work.accumulate, progress);
  }

  bool fuses_relu() const override { return fuses_relu_; }
  const torch::Tensor& loss() const override { return loss_; }

 private:
  static torch::Tensor first(const torch::Tensor& tensor, int64_t samples) {
    return tensor.narrow(0, 0, samples);
  }

  /// A graph reads the rows anew each time.
  void gather(const Work& work) {
    const torch::Tensor rows = work.batch.rows.narrow(0, work.begin, work.samples);
    torch::Tensor input = first(activations_.front(), work.samples);
    torch::Tensor targets = first(targets_, work.samples);
    at::index_select_out(input, work.batch.input, 0, rows);
    at::index_select_out(targets, work.batch.target, 0, rows);
  }

  void forward(int64_t samples) {
    for (size_t i = 0; i < storage_.size(); ++i) {
      const torch::Tensor input = first(activations_[i], samples);
      torch::Tensor output = first(activations_[i + 1], samples);
      if (i + 1 < storage_.size()) {
        multiply_and_relu(output, storage_[i], input, fuses_relu_ && samples == max_samples_);
      } else {
        at::addmm_out(output, storage_[i].bias, input, storage_[i].weight.t());
      }
    }
  }

  void differentiate_loss(int64_t samples) {
    const torch::Tensor output = first(activations_.back(), samples);
    const torch::Tensor targets = first(targets_, samples);
    torch::Tensor gradient = first(gradients_.back(), samples);
    if (regression_) {
      torch::Tensor squares = first(squares_, samples);
      at::mse_loss_out(squares, output, targets, at::Reduction::None);
      at::sum_out(loss_, squares, at::IntArrayRef({0, 1}));
      at::mse_loss_backward_out(gradient, loss_gradient_, output, targets, at::Reduction::Sum);
    } else {
      torch::Tensor log_probabilities = first(log_probabilities_, samples);
      torch::Tensor log_probability_gradients = first(log_probability_gradients_, samples);
      at::_log_softmax_out(log_probabilities, output, 1, /*half_to_float=*/false);
      at::nll_loss_forward_out(loss_, total_weight_, log_probabilities, targets, /*weight=*/{},
                               at::Reduction::Sum, kIgnoreIndex);
      at::nll_loss_backward_out(log_probability_gradients, loss_gradient_, log_probabilities,
                                targets, /*weight=*/{}, at::Reduction::Sum, kIgnoreIndex,
                                total_weight_);
      at::_log_softmax_backward_data_out(gradient, log_probability_gradients, log_probabilities, 1,
                                         torch::kFloat32);
    }
    loss_.div_(loss_divisor_);
  }

  void backward(int64_t samples, bool accumulate, const Progress& progress) {
    for (size_t i = storage_.size(); i-- > 0;) {
      const torch::Tensor gradient = first(gradients_[i], samples);
      const torch::Tensor input = first(activations_[i], samples);
      LinearStorage& layer = storage_[i];
      if (accumulate) {
        at::addmm_out(layer.weight_gradient, layer.weight_gradient, gradient.t(), input);
        layer.bias_gradient.add_(gradient.sum(0));
      } else {
        at::mm_out(layer.weight_gradient, gradient.t(), input);
        at::sum_out(layer.bias_gradient, gradient, at::IntArrayRef({0}));
      }
      progress.gradient_ready(i);
      if (i > 0) {
        torch::Tensor input_gradient = first(gradients_[i - 1], samples);
        at::mm_out(input_gradient, gradient, layer.weight);
        at::threshold_backward_out(input_gradient, input_gradient, input, 0);
      }
    }
  }

  MlpStorage storage_;
  bool regression_;
  int64_t max_samples_;
  bool fuses_relu_ = false;  // for so many samples, see Note [ReLU in the product]
  std::vector<torch::Tensor> activations_;  // (samples, width) of every width, the input's too
  std::vector<torch::Tensor> gradients_;  // likewise, of each layer's output
  torch::Tensor targets_;
  torch::Tensor squares_;  // regression only
  torch::Tensor log_probabilities_;
  torch::Tensor log_probability_gradients_;
  torch::Tensor loss_;
  torch::Tensor loss_gradient_;  // Work::gradient_scale, where the operators can read it
  torch::Tensor loss_divisor_;
  torch::Tensor total_weight_;  // of the targets; only nll_loss wants it
  std::array<double, 2> scales_{};
};

}  // namespace

std::unique_ptr<Engine> make_aten_engine(const MlpStorage& storage, int64_t max_samples) {
  return std::make_unique<AtenEngine>(storage, max_samples);
}

}  // namespace ddp::fused
