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
  double flops() const;  ///< multiplications and additions of a run()
  const torch::Tensor& weight_gradient(size_t layer) const { return weight_gradients_[layer]; }

 private:
  struct Product {
    torch::Tensor out, left, right;  // out = left right; transposed factors are views
  };
  std::vector<Product> products_;  // in the order of a step
  std::vector<torch::Tensor> weight_gradients_;
};

}  // namespace ddp::micro
