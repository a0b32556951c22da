// common/model/mlp.hpp - the model of all stages; loss and evaluation of any model.
#pragma once

#include <c10/util/FunctionRef.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>

#include <set>

#include "common/data/samples.hpp"

namespace ddp {

/// Linear layers with ReLU between them. Cloneable, because stage 02 makes a replica per device.
class MlpImpl : public torch::nn::Cloneable<MlpImpl> {
 public:
  /// @param widths features of the input, each hidden layer and the output: {64, 128, 128, 10}
  /// @param verbose print the input's shape and device, once for each shape
  explicit MlpImpl(std::vector<int64_t> widths, bool verbose = false);
  void reset() override;

  /// @param  input (batch, widths.front()) float32, on the model's device; batch may be 0
  /// @return       (batch, widths.back()) float32; the last layer is linear
  torch::Tensor forward(const torch::Tensor& input);

 private:
  std::vector<int64_t> widths_;
  bool verbose_;
  std::set<std::vector<int64_t>> printed_sizes_;
  std::vector<torch::nn::Linear> layers_;
};
TORCH_MODULE(Mlp);

/// Mean loss of a batch times its weight: mean squared error for one output, else cross entropy.
/// @param output (samples, outputs); without samples the loss and its gradients are zero
/// @param target (samples) int64 classes, or (samples, 1) float32 values
/// @param weight Batch::weight, see Note [Averaging] in data_loader.hpp
/// @throws c10::Error if the shapes do not fit
torch::Tensor loss(const torch::Tensor& output, const torch::Tensor& target, double weight = 1);

struct Evaluation {
  double loss = 0;  ///< mean over the samples
  double accuracy = 0;  ///< share with the target class as largest output; NaN without classes
};

/// Mean loss of some samples, and the model's output for them.
struct Scored {
  torch::Tensor loss;
  torch::Tensor output;
};
/// loss() of an output, computed in float64.
Scored score(const torch::Tensor& output, const torch::Tensor& target);

/// evaluate() of anything that can score samples. @param parameters for the device and the largest
/// extent
Evaluation evaluate_samples(
    c10::function_ref<Scored(const torch::Tensor& input, const torch::Tensor& target)> scored,
    const std::vector<torch::Tensor>& parameters, const Samples& samples);

/// Loss and accuracy of a module over `samples`, summed in float64, without gradients, in chunks
/// that bound the memory. The mode of the module does not change: call eval() first if it has
/// dropout or batch normalization.
/// @param module anything with parameters() and forward(Tensor)
template <typename Module>
Evaluation evaluate(Module& module, const Samples& samples) {
  return evaluate_samples(
      [&module](const torch::Tensor& input, const torch::Tensor& target) {
        return score(module.forward(input), target);
      },
      module.parameters(), samples);
}

}  // namespace ddp
