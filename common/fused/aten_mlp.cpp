
#include "common/fused/fused_mlp.hpp"

namespace ddp::fused {
namespace {

class AtenMlp : public FusedMlp {
 public:
  AtenMlp(const FlatParameters& flat, int64_t batch_size) : FusedMlp(flat) {
    const torch::NoGradGuard no_grad;
    const torch::TensorOptions options = flat_.data.options();
    activations_.push_back(torch::zeros({batch_size, weight(0).size(1)}, options));
    for (size_t i = 0; i < flat_.parameters.size() / 2; ++i) {
      activations_.push_back(torch::zeros({batch_size, weight(i).size(0)}, options));
      gradients_.push_back(torch::zeros_like(activations_.back()));
    }
    const torch::Tensor& output = activations_.back();
    log_probabilities_ = torch::zeros_like(output);
    scratch_ = torch::zeros_like(output);
    targets_ = is_regression() ? torch::zeros_like(output)
                               : torch::zeros({batch_size}, options.dtype(torch::kInt64));
    weight_ = torch::ones({}, options);
    total_weight_ = torch::zeros({}, options);
  }

  /// Copies the batch to fixed addresses, because a CUDA graph repeats the other functions.
  void load(const Batch& batch) override {
    samples_ = batch.size();
    first(activations_.front()).copy_(batch.input, /*non_blocking=*/true);
    first(targets_).copy_(batch.target, /*non_blocking=*/true);
    if (std::exchange(batch_weight_, batch.weight) != batch.weight) {
      weight_.fill_(batch.weight);
    }
  }

  void forward() override {
    const torch::NoGradGuard no_grad;
    torch::Tensor output = first(activations_.front());
    for (size_t i = 0; i < gradients_.size(); ++i) {
      const torch::Tensor input = i == 0 ? output : at::relu_(output);
      output = first(activations_[i + 1]);
      at::addmm_out(output, bias(i), input, weight(i).t());
    }
    if (samples_ == 0) {
      loss_.zero_();  // a mean over no samples would be NaN
    } else if (is_regression()) {
      torch::Tensor squares = first(scratch_);
      at::mse_loss_out(squares, output, first(targets_), at::Reduction::None);
      at::mean_out(loss_, squares, at::IntArrayRef({0, 1}));
    } else {
      torch::Tensor log_probabilities = first(log_probabilities_);
      at::_log_softmax_out(log_probabilities, output, 1, /*half_to_float=*/false);
      at::nll_loss_forward_out(loss_, total_weight_, log_probabilities, first(targets_),
                               /*weight=*/{}, at::Reduction::Mean, /*ignore_index=*/-100);
    }
    loss_.mul_(weight_);
  }

  void backward() override {
    const torch::NoGradGuard no_grad;
    torch::Tensor gradient = first(gradients_.back());
    if (samples_ > 0 && is_regression()) {
      at::mse_loss_backward_out(gradient, weight_, first(activations_.back()), first(targets_),
                                at::Reduction::Mean);
    } else if (samples_ > 0) {
      torch::Tensor of_log = first(scratch_);
      const torch::Tensor log_probabilities = first(log_probabilities_);
      at::nll_loss_backward_out(of_log, weight_, log_probabilities, first(targets_),
                                /*weight=*/{}, at::Reduction::Mean, /*ignore_index=*/-100,
                                total_weight_);
      at::_log_softmax_backward_data_out(gradient, of_log, log_probabilities, 1, torch::kFloat32);
    }
    for (size_t i = gradients_.size(); i-- > 0;) {
      const torch::Tensor input = first(activations_[i]);
      at::mm_out(weight(i).mutable_grad(), gradient.t(), input);
      at::sum_out(bias(i).mutable_grad(), gradient, at::IntArrayRef({0}));
      if (i > 0) {
        torch::Tensor input_gradient = first(gradients_[i - 1]);
        at::mm_out(input_gradient, gradient, weight(i));
        at::threshold_backward_out(input_gradient, input_gradient, input, 0);
        gradient = input_gradient;
      }
    }
  }

  void step(double rate) override { flat_.data.sub_(flat_.grad, rate); }

 private:
  bool is_regression() const { return activations_.back().size(1) == 1; }
  const torch::Tensor& weight(size_t layer) const { return flat_.parameters[2 * layer]; }
  const torch::Tensor& bias(size_t layer) const { return flat_.parameters[2 * layer + 1]; }
  /// Part of a buffer that this batch needs.
  torch::Tensor first(const torch::Tensor& buffer) const { return buffer.narrow(0, 0, samples_); }

  int64_t samples_ = 0;
  double batch_weight_ = 1;
  torch::Tensor weight_;  // (), batch_weight_ on the device: the gradient of the mean loss
  std::vector<torch::Tensor> activations_;  // (batch, width) for each width, the input's too
  std::vector<torch::Tensor> gradients_;  // (batch, out) for each layer
  torch::Tensor log_probabilities_;  // (batch, outputs)
  torch::Tensor scratch_;  // (batch, outputs)
  torch::Tensor targets_;
  torch::Tensor total_weight_;  // (), an output of nll_loss
};

}  // namespace

std::unique_ptr<FusedMlp> make_aten_mlp(const FlatParameters& flat, int64_t batch_size) {
  return std::make_unique<AtenMlp>(flat, batch_size);
}

}  // namespace ddp::fused
