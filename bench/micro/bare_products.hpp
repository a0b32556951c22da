// bench/micro/bare_products.hpp - matrix products of a step: a lower limit for its time.
#pragma once

#include <torch/types.h>

#include <vector>

namespace ddp::micro {

/// Matrix products of a training step of an MLP and nothing else: forward X W^T, backward dW = dY^T
/// X for each layer and dX = dY W for all layers but the first. By LibTorch's own out= operations
/// on preallocated tensors: a step with LibTorch's products cannot take less.
class BareProducts {
 public:
  /// @param weights weight of each layer, (out_features, in_features)
  /// @param input (batch, in_features of the first layer)
  /// @param output_gradient (batch, out_features of the last layer)
  BareProducts(const std::vector<torch::Tensor>& weights, const torch::Tensor& input,
               const torch::Tensor& output_gradient);
  void run();
  double flops() const { return flops_; }  ///< multiplications and additions of a run()
  const torch::Tensor& weight_gradient(size_t layer) const { return layers_[layer].weight_grad; }

 private:
  struct Layer {
    torch::Tensor weight;  // (out, in)
    torch::Tensor weight_t;  // (in, out), a view
    torch::Tensor input;  // (batch, in), the output of the layer before
    torch::Tensor output;  // (batch, out)
    torch::Tensor output_grad;  // (batch, out)
    torch::Tensor output_grad_t;  // (out, batch), a view
    torch::Tensor weight_grad;  // (out, in)
  };
  std::vector<Layer> layers_;
  double flops_ = 0;
};

}  // namespace ddp::micro
