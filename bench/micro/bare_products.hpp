// bench/micro/bare_products.hpp - what a training step cannot do without.
#pragma once

#include <torch/types.h>

#include <vector>

namespace ddp::micro {

/// The matrix products of one training step of an MLP and nothing else: forward X W^T, backward
/// dW = dY^T X of each layer and dX = dY W of all but the first. LibTorch's own out= operations on
/// preallocated tensors: no step that uses this library's products takes less.
class BareProducts {
 public:
  /// @param weights of each layer, (out_features, in_features)
  /// @param input (batch, in_features of the first layer)
  /// @param output_gradient (batch, out_features of the last layer)
  BareProducts(const std::vector<torch::Tensor>& weights, const torch::Tensor& input,
               const torch::Tensor& output_gradient);
  void run();
  double flops() const { return flops_; }  ///< multiplications and additions of one run()
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
