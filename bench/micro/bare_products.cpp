#include "bench/micro/bare_products.hpp"

namespace ddp::micro {

BareProducts::BareProducts(const std::vector<torch::Tensor>& weights, const torch::Tensor& input,
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

void BareProducts::run() {
  const torch::NoGradGuard no_grad;
  for (Product& product : products_) {
    at::mm_out(product.out, product.left, product.right);
  }
}

double BareProducts::flops() const {
  int64_t count = 0;
  for (const Product& product : products_) {
    count += 2 * product.left.numel() * product.right.size(1);
  }
  return static_cast<double>(count);
}

}  // namespace ddp::micro
