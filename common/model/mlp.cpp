#include "common/model/mlp.hpp"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

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

void MlpImpl::announce(at::IntArrayRef input_sizes, const torch::Device& device) const {
  if (verbose_) {
    const std::string who =
        rank_ ? c10::str("[", device.is_cpu() ? "CPU" : "GPU", *rank_, "] ") : "";
    // One string, one write: replicas print from several threads.
    std::fputs(c10::str(who, "In model: input ", input_sizes, " on ", device, "\n").c_str(),
               stdout);
  }
}

torch::Tensor MlpImpl::forward(const torch::Tensor& input) {
  announce(input.sizes(), input.device());
  torch::Tensor activation = layers_.front()->forward(input);
  for (size_t i = 1; i < layers_.size(); ++i) {
    activation = layers_[i]->forward(torch::relu(activation));
  }
  return activation;
}

torch::Tensor loss(const torch::Tensor& output, const Batch& batch) {
  check_gathered(batch);
  const bool regression = output.size(1) == 1;
  const auto samples = static_cast<double>(output.size(0));
  // The usual case is one operation; the two forms differ in the last bit, so the choice must not
  // depend on anything but the batch.
  const bool full = samples == batch.step_samples_per_rank;
  const auto reduction = full ? at::Reduction::Mean : at::Reduction::Sum;
  const torch::Tensor reduced =
      regression ? at::mse_loss(output, batch.target, reduction)
                 : at::cross_entropy_loss(output, batch.target, /*weight=*/{}, reduction);
  torch::Tensor share = full ? reduced : reduced / batch.step_samples_per_rank;
  batch.observer->add_loss(share);
  batch.observer->begin(Phase::kBackward);
  return share;
}

Evaluation evaluate(Mlp& model, const Samples& samples, const torch::Device& device) {
  // 4,096 samples of a narrow model; activations of at most 16 MiB each of a wide one.
  constexpr int64_t kChunkElements = int64_t{1} << 22;
  const int64_t chunk_samples = std::clamp<int64_t>(kChunkElements / model->widest(), 1, 4096);
  const torch::NoGradGuard no_grad;
  Evaluation sums;
  for (int64_t begin = 0; begin < samples.size(); begin += chunk_samples) {
    const int64_t end = std::min(begin + chunk_samples, samples.size());
    const Samples chunk = samples.slice(begin, end).read();
    const torch::Tensor chunk_target = chunk.target.to(device);
    const torch::Tensor output = model->forward(chunk.input.to(device)).to(torch::kFloat64);
    const bool regression = output.size(1) == 1;
    const torch::Tensor loss =
        regression
            ? at::mse_loss(output, chunk_target.to(torch::kFloat64), at::Reduction::Sum)
            : at::cross_entropy_loss(output, chunk_target, /*weight=*/{}, at::Reduction::Sum);
    sums.loss_sum += loss.item<double>();
    if (!regression) {
      sums.correct += output.argmax(1).eq(chunk_target).sum().item<double>();
    }
    sums.samples += static_cast<double>(end - begin);
  }
  return sums;
}

}  // namespace ddp
