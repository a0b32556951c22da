#include <ATen/ceil_div.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/worker_pool.hpp"
#include "common/fused/fused_mlp.hpp"
#include "common/fused/kernels.hpp"

namespace ddp::fused {
namespace {

// Note [Layout]
// Activations are kept by feature, (features, samples): then a layer's output is weights times
// activations, the gradient of its input is the transposed weights times the gradient of its
// output, and the kernels read the weights where they lie (Note [Tiles]). Only the gradient of the
// weights needs activations by sample, (samples, features), so a layer keeps its input both ways.

/// Fewer multiplications are not worth waking a thread.
constexpr int64_t kMultiplicationsPerThread = 1 << 17;

/// Elements from row to row of activations. Not a multiple of 1 KiB: rows that are multiples of
/// 4 KiB apart compete for the same few places in the cache.
int64_t row_of(int64_t columns) {
  constexpr int64_t kKibibyte = 1024 / sizeof(float);
  const int64_t row = at::round_up(columns, kBlock);
  return row % kKibibyte == 0 ? row + kBlock : row;
}

class CpuMlp : public FusedMlp {
 public:
  CpuMlp(const FlatParameters& flat, int64_t batch_size, int threads)
      : FusedMlp(flat),
        batch_size_(batch_size),
        threads_(static_cast<size_t>(threads)),
        row_(row_of(batch_size)),
        largest_(buffer(1, row_)),
        totals_(buffer(1, row_)) {
    for (size_t i = 0; i < flat_.parameters.size(); i += 2) {
      const torch::Tensor& weight = flat_.parameters[i];
      const torch::Tensor& bias = flat_.parameters[i + 1];
      const int64_t in = weight.size(1);
      const int64_t out = weight.size(0);
      layers_.push_back({in, out, weight.const_data_ptr<float>(), bias.const_data_ptr<float>(),
                         weight.grad().mutable_data_ptr<float>(),
                         bias.grad().mutable_data_ptr<float>(), buffer(in, row_),
                         buffer(batch_size, row_of(in)), buffer(out, row_)});
    }
  }

  void load(const Batch& batch) override {
    const Layer& layer = layers_.front();
    TORCH_CHECK(batch.size() <= batch_size_ && batch.input.size(1) == layer.in &&
                    batch.input.is_contiguous() && batch.input.is_cpu(),
                "Expected at most ", batch_size_, " contiguous samples of ", layer.in,
                " features, got ", batch.input.sizes());
    samples_ = batch.size();
    gradient_scale_ =
        static_cast<float>(batch.weight / static_cast<double>(std::max<int64_t>(samples_, 1)));
    targets_ = batch.target;
    const auto* const input = batch.input.const_data_ptr<float>();
    for (int64_t s = 0; s < samples_; ++s) {
      std::copy_n(input + s * layer.in, layer.in, layer.by_sample + s * row_of(layer.in));
    }
    transpose(layer.by_sample, row_of(layer.in), samples_, layer.in, layer.by_feature, row_);
  }

  void forward() override {
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      const bool is_last = i + 1 == layers_.size();
      float* const output = is_last ? layer.output_gradient : layers_[i + 1].by_feature;
      multiply({.rows = layer.out,
                .columns = at::round_up(samples_, kBlock),
                .depth = layer.in,
                .a = {layer.weight, layer.in},
                .b = {layer.by_feature, row_},
                .c = {output, row_},
                .bias = layer.bias,
                .relu = !is_last});
      if (!is_last) {
        transpose(output, row_, layer.out, samples_, layers_[i + 1].by_sample, row_of(layer.out));
      }
    }
    const Layer& last = layers_.back();
    const double sum = last.out == 1 ? mean_squared_error(last.output_gradient)
                                     : cross_entropy(last.output_gradient, last.out);
    *loss_.mutable_data_ptr<float>() = static_cast<float>(sum) * gradient_scale_;
  }

  void backward() override {
    for (size_t i = layers_.size(); i-- > 0;) {
      const Layer& layer = layers_[i];
      multiply({.rows = layer.out,
                .columns = layer.in,
                .depth = samples_,
                .a = {layer.output_gradient, row_},
                .b = {layer.by_sample, row_of(layer.in)},
                .c = {layer.weight_gradient, layer.in}});
      for (int64_t row = 0; row < layer.out; ++row) {
        const float* const gradients = layer.output_gradient + row * row_;
        layer.bias_gradient[row] = std::reduce(gradients, gradients + samples_);
      }
      if (i > 0) {  // nobody needs the gradient of the input samples
        multiply({.rows = layer.in,
                  .columns = at::round_up(samples_, kBlock),
                  .depth = layer.out,
                  .a = {layer.weight, 1, layer.in},
                  .b = {layer.output_gradient, row_},
                  .c = {layers_[i - 1].output_gradient, row_},
                  .activations = layer.by_feature});
      }
    }
  }

  void step(double rate) override {
    float* const weights = flat_.data.mutable_data_ptr<float>();
    const float* const gradients = flat_.grad.const_data_ptr<float>();
    divide(flat_.data.numel(), flat_.data.numel(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        weights[i] -= static_cast<float>(rate) * gradients[i];
      }
    });
  }

 private:
  struct Layer {
    int64_t in;
    int64_t out;
    const float* weight;
    const float* bias;
    float* weight_gradient;
    float* bias_gradient;
    float* by_feature;  // input, (in, row_)
    float* by_sample;  // input, (batch, row_of(in))
    float* output_gradient;  // (out, row_); the last layer's holds the output first
  };

  /// Allocates `rows` rounded up to a multiple of 4, for transpose().
  float* buffer(int64_t rows, int64_t row) {
    buffers_.push_back(torch::zeros({at::round_up<int64_t>(rows, 4), row}));
    return buffers_.back().mutable_data_ptr<float>();
  }

  /// Calls `task(begin, end)` for parts of [0, size), on one thread if there is little to do.
  template <typename Task>
  void divide(int64_t size, int64_t multiplications, const Task& task) {
    const auto threads = static_cast<int64_t>(threads_.size());
    if (threads == 1 || multiplications < threads * kMultiplicationsPerThread) {
      task(0, size);
      return;
    }
    threads_.run([&](size_t thread) {
      const auto t = static_cast<int64_t>(thread);
      task(size * t / threads, size * (t + 1) / threads);
    });
  }

  void multiply(const Product& product) {
    const int64_t tiles = at::ceil_div(product.rows, kTileRows);
    divide(tiles, product.rows * product.columns * product.depth, [&](int64_t begin, int64_t end) {
      multiply_(product, begin * kTileRows, std::min(end * kTileRows, product.rows));
    });
  }

  /// Replaces the outputs by their gradients. @return the sum of the losses
  double mean_squared_error(float* output) const {
    const float* const targets = targets_.const_data_ptr<float>();
    double sum = 0;
    for (int64_t s = 0; s < samples_; ++s) {
      const float difference = output[s] - targets[s];
      sum += static_cast<double>(difference * difference);
      output[s] = 2 * gradient_scale_ * difference;
    }
    return sum;
  }

  /// Softmax and cross entropy: replaces the logits by their gradients. @return sum of the losses
  double cross_entropy(float* logits, int64_t classes) {
    const int64_t* const targets = targets_.const_data_ptr<int64_t>();
    double sum = 0;
    for (int64_t s = 0; s < samples_; ++s) {
      TORCH_CHECK(targets[s] >= 0 && targets[s] < classes, "Expected a target in [0, ", classes,
                  "), got ", targets[s]);
      sum -= logits[targets[s] * row_ + s];
    }
    const auto each = [&](const auto& visit) {
      for (int64_t c = 0; c < classes; ++c) {
        for (int64_t s = 0; s < samples_; ++s) {
          visit(logits[c * row_ + s], s);
        }
      }
    };
    std::copy_n(logits, samples_, largest_);
    std::fill_n(totals_, samples_, 0.0F);
    each([&](float logit, int64_t s) { largest_[s] = std::max(largest_[s], logit); });
    each([&](float& logit, int64_t s) { logit = std::exp(logit - largest_[s]); });
    each([&](float power, int64_t s) { totals_[s] += power; });
    for (int64_t s = 0; s < samples_; ++s) {
      sum += std::log(totals_[s]) + largest_[s];
      totals_[s] = gradient_scale_ / totals_[s];
    }
    each([&](float& power, int64_t s) { power *= totals_[s]; });
    for (int64_t s = 0; s < samples_; ++s) {
      logits[targets[s] * row_ + s] -= gradient_scale_;
    }
    return sum;
  }

  const Multiply multiply_ = multiply_kernels().back();
  const int64_t batch_size_;
  WorkerPool threads_;
  std::vector<torch::Tensor> buffers_;  // memory behind all pointers here
  const int64_t row_;  // elements from row to row of activations by feature
  float* const largest_;  // (row_), the largest logit of each sample
  float* const totals_;  // (row_), the sum of each sample's powers
  std::vector<Layer> layers_;
  int64_t samples_ = 0;
  float gradient_scale_ = 0;  // weight of a sample in the loss
  torch::Tensor targets_;
};

}  // namespace

std::unique_ptr<FusedMlp> make_cpu_mlp(const FlatParameters& flat, int64_t batch_size,
                                       int threads) {
  return std::make_unique<CpuMlp>(flat, batch_size, threads);
}

}  // namespace ddp::fused
