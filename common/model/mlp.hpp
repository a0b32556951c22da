// common/model/mlp.hpp - the one model that all stages train, and its loss.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/data/data_loader.hpp"

namespace ddp {

/// Linear layers with ReLU between them. Cloneable, because stage 02 makes a replica per device.
class MlpImpl : public torch::nn::Cloneable<MlpImpl> {
 public:
  /// @param widths features of the input, each hidden layer, and the output: {64, 128, 128, 10}
  /// @param verbose print the input's shape at every forward, to see who computes what
  explicit MlpImpl(std::vector<int64_t> widths, bool verbose = false);
  void reset() override;

  /// @param  input (batch, widths.front()) float32, on the model's device; batch may be 0
  /// @return       (batch, widths.back()) float32; the last layer is linear
  torch::Tensor forward(const torch::Tensor& input);
  /// Features of the widest layer, the input included.
  int64_t widest() const { return *std::ranges::max_element(widths_); }
  /// Of several processes that compute at the same time, which one this model is in.
  void set_rank(int rank) { rank_ = rank; }
  /// Prints the shape of what is about to be computed on, and the rank if there are several, if
  /// this model is verbose.
  void announce(at::IntArrayRef input_sizes, const torch::Device& device) const;

 private:
  std::vector<int64_t> widths_;
  bool verbose_;
  std::optional<int> rank_;
  std::vector<torch::nn::Linear> layers_;
};
TORCH_MODULE(Mlp);

/// This batch's share of the step's loss: mean squared error for one output, else cross entropy.
///
/// Note [Averaging]: the sum over the samples is divided by the step's samples *per rank*, not by
/// the samples at hand. The two differ only in the last step of an epoch, when the ranks' shares
/// are unequal, and with --accumulate. Dividing so, the mean of the gradients over ranks is exactly
/// the gradient of the mean loss over the global batch, at any world size.
///
/// The batch's observer learns the loss, and that backward begins.
torch::Tensor loss(const torch::Tensor& output, const Batch& batch);

/// Sums over samples, float64 arithmetic: they can be added over ranks.
struct Evaluation {
  double loss_sum = 0;
  double correct = 0;  ///< samples whose largest output is the target class; 0 for regression
  double samples = 0;
};

/// Without gradients, in chunks that bound the memory.
Evaluation evaluate(Mlp& model, const Samples& samples, const torch::Device& device);
/// @param input  (samples, in_features) float32, on the host
/// @param target (samples) int64 or (samples, 1) float32, on the host
inline Evaluation evaluate(Mlp& model, const torch::Tensor& input, const torch::Tensor& target,
                           const torch::Device& device) {
  return evaluate(model, Samples{input, target}, device);
}

}  // namespace ddp
