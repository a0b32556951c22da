#include "common/fused/engine.hpp"

namespace ddp::fused {

MlpStorage mlp_storage(const FlatParameters& flat, const torch::Tensor& data,
                       const torch::Tensor& grad) {
  const torch::NoGradGuard no_grad;
  TORCH_CHECK(flat.data.scalar_type() == torch::kFloat32, "Expected float32 parameters, got ",
              flat.data.dtype());
  TORCH_CHECK(!flat.parameters.empty() && flat.parameters.size() % 2 == 0,
              "Expected a weight and a bias for each layer, got ", flat.parameters.size(),
              " parameters");
  const auto part_of = [&flat](const torch::Tensor& all, size_t index) {
    const torch::Tensor& parameter = flat.parameters[index];
    return all.narrow(0, flat.offsets[index], parameter.numel()).view(parameter.sizes());
  };
  MlpStorage storage;
  for (size_t i = 0; i < flat.parameters.size(); i += 2) {
    const torch::Tensor& weight = flat.parameters[i];
    const torch::Tensor& bias = flat.parameters[i + 1];
    TORCH_CHECK(weight.dim() == 2 && bias.dim() == 1 && bias.size(0) == weight.size(0) &&
                    (i == 0 || weight.size(1) == storage.widths.back()),
                "Expected a chain of linear layers, got a layer ", i / 2, " of ", weight.sizes(),
                " and ", bias.sizes());
    if (i == 0) {
      storage.widths.push_back(weight.size(1));
    }
    storage.widths.push_back(weight.size(0));
    storage.weights.push_back(part_of(data, i));
    storage.biases.push_back(part_of(data, i + 1));
    storage.weight_gradients.push_back(part_of(grad, i));
    storage.bias_gradients.push_back(part_of(grad, i + 1));
  }
  return storage;
}

}  // namespace ddp::fused
