#include "common/model/mlp.hpp"

#include <cstdio>

namespace ddp {

MlpImpl::MlpImpl(std::vector<int64_t> widths, bool verbose)
    : widths_(std::move(widths)), verbose_(verbose) {
  TORCH_CHECK(widths_.size() >= 2, "Expected at least 2 layer widths, got ", widths_.size());
  reset();
}

void MlpImpl::reset() {
  layers_.clear();
  for (size_t i = 0; i + 1 < widths_.size(); ++i) {
    layers_.push_back(register_module("layer" + std::to_string(i),
                                      torch::nn::Linear(widths_[i], widths_[i + 1])));
  }
}

torch::Tensor MlpImpl::forward(const torch::Tensor& input) {
  if (verbose_ && printed_sizes_.insert(input.sizes().vec()).second) {
    // A single write, because replicas print from several threads.
    std::fputs(c10::str("In model: input ", input.sizes(), " on ", input.device(), "\n").c_str(),
               stdout);
  }
  torch::Tensor activation = layers_.front()->forward(input);
  for (size_t i = 1; i < layers_.size(); ++i) {
    activation = layers_[i]->forward(torch::relu(activation));
  }
  return activation;
}

torch::Tensor loss(const torch::Tensor& output, const torch::Tensor& target, double weight) {
  if (output.size(0) == 0) {
    return output.sum();  // a mean over no samples would be NaN
  }
  const bool regression = output.size(1) == 1;
  TORCH_CHECK(!regression || target.sizes() == output.sizes(), "Expected a target of shape ",
              output.sizes(), " as the output, got ", target.sizes());
  const torch::Tensor mean =
      regression ? torch::mse_loss(output, target) : torch::cross_entropy_loss(output, target);
  return weight == 1 ? mean : mean * weight;
}

Scored score(const torch::Tensor& output, const torch::Tensor& target) {
  const torch::Tensor exact = output.to(torch::kFloat64);
  return {.loss = loss(exact, target.is_floating_point() ? target.to(torch::kFloat64) : target),
          .output = exact};
}

Evaluation evaluate_samples(
    c10::function_ref<Scored(const torch::Tensor& input, const torch::Tensor& target)> scored,
    const std::vector<torch::Tensor>& parameters, const Samples& samples) {
  // 4,096 samples of a narrow model; activations of at most 16 MiB each of a wide one.
  constexpr int64_t kChunkElements = int64_t{1} << 22;
  const torch::Device device = parameters.empty() ? torch::kCPU : parameters.front().device();
  int64_t widest = samples.in_features();
  for (const torch::Tensor& parameter : parameters) {
    for (const int64_t extent : parameter.sizes()) {
      widest = std::max(widest, extent);
    }
  }
  const int64_t chunk_samples = std::clamp<int64_t>(kChunkElements / widest, 1, 4096);
  const torch::NoGradGuard no_grad;
  double loss_sum = 0;
  double correct = 0;
  for (int64_t begin = 0; begin < samples.size(); begin += chunk_samples) {
    const int64_t end = std::min(begin + chunk_samples, samples.size());
    const Samples chunk = samples.slice(begin, end).read();
    const torch::Tensor target = chunk.target.to(device);
    const Scored chunk_score = scored(chunk.input.to(device), target);
    loss_sum += chunk_score.loss.item<double>() * static_cast<double>(end - begin);
    const torch::Tensor& output = chunk_score.output;
    const bool has_classes =
        output.dim() == 2 && output.size(1) > 1 && target.dim() == 1 && !target.is_floating_point();
    correct += has_classes ? output.argmax(1).eq(target).sum().item<double>()
                           : std::numeric_limits<double>::quiet_NaN();
  }
  const auto size = static_cast<double>(samples.size());
  return {.loss = loss_sum / size, .accuracy = correct / size};
}

}  // namespace ddp
