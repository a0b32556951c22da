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
               const torch::Tensor& output_gradient) {
    std::vector<torch::Tensor> inputs = {input};  // of each layer, (batch, in)
    for (const torch::Tensor& weight : weights) {
      const torch::Tensor output = torch::empty({input.size(0), weight.size(0)}, weight.options());
      products_.push_back({output, inputs.back(), weight.t()});
      inputs.push_back(output);
      weight_gradients_.push_back(torch::empty_like(weight));
    }
    torch::Tensor gradient = output_gradient;  // of a layer's output, (batch, out)
    for (size_t i = weights.size(); i-- > 0;) {
      products_.push_back({weight_gradients_[i], gradient.t(), inputs[i]});
      if (i > 0) {
        const torch::Tensor input_gradient = torch::empty_like(inputs[i]);
        products_.push_back({input_gradient, gradient, weights[i]});
        gradient = input_gradient;
      }
    }
  }
  void run() {
    const torch::NoGradGuard no_grad;
    for (Product& product : products_) {
      at::mm_out(product.out, product.left, product.right);
    }
  }
  /// Multiplications and additions of a run().
  double flops() const {
    int64_t count = 0;
    for (const Product& product : products_) {
      count += 2 * product.left.numel() * product.right.size(1);
    }
    return static_cast<double>(count);
  }
  const torch::Tensor& weight_gradient(size_t layer) const { return weight_gradients_[layer]; }

 private:
  struct Product {
    torch::Tensor out, left, right;  // out = left right; transposed factors are views
  };
  std::vector<Product> products_;  // in the order of a step
  std::vector<torch::Tensor> weight_gradients_;
};

}  // namespace ddp::micro
