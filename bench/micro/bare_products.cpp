#include "bench/micro/bare_products.hpp"

namespace ddp::micro {

BareProducts::BareProducts(const std::vector<torch::Tensor>& weights, const torch::Tensor& input,
                           const torch::Tensor& output_gradient) {
  for (const torch::Tensor& weight : weights) {
    const bool first = layers_.empty();
    const bool last = layers_.size() + 1 == weights.size();
    Layer layer;
    layer.weight = weight;
    layer.weight_t = weight.t();
    layer.input = first ? input : layers_.back().output;
    layer.output = torch::empty({input.size(0), weight.size(0)}, weight.options());
    layer.output_grad = last ? output_gradient : torch::empty_like(layer.output);
    layer.output_grad_t = layer.output_grad.t();
    layer.weight_grad = torch::empty_like(weight);
    layers_.push_back(layer);
    flops_ += 2.0 * static_cast<double>(input.size(0) * weight.numel()) * (first ? 2 : 3);
  }
}

void BareProducts::run() {
  const torch::NoGradGuard no_grad;
  for (Layer& layer : layers_) {
    at::mm_out(layer.output, layer.input, layer.weight_t);
  }
  for (size_t i = layers_.size(); i-- > 0;) {
    at::mm_out(layers_[i].weight_grad, layers_[i].output_grad_t, layers_[i].input);
    if (i > 0) {
      at::mm_out(layers_[i - 1].output_grad, layers_[i].output_grad, layers_[i].weight);
    }
  }
}

}  // namespace ddp::micro
