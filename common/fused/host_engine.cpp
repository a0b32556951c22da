// common/fused/host_engine.cpp - a replica's step on the CPU, by our own kernels.
#include <algorithm>
#include <utility>

#include "common/fused/engine.hpp"
#include "common/fused/kernels.hpp"
#include "common/parallel/worker_pool.hpp"

namespace ddp::fused {
namespace {

// Note [Layout]
// Activations are kept transposed, (features, samples): then a layer's forward is weights times
// activations, the gradient of its input is the transposed weights times that of its output, and
// the kernels read the weights where they lie (Note [Tiles]). Only the gradient of the weights
// needs activations as (samples, features), so each layer's input is kept that way too.
// Larger batches are computed in parts of 64 samples, whose gradients add up.

constexpr int64_t kPartSamples = kMaxColumns;
/// A task for a further thread should be worth waking it.
constexpr int64_t kMultiplicationsPerThread = 1 << 17;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Rows of activations, one block apart from a multiple of 4 KiB: lines that are a multiple of it
/// apart compete for the same few places in the cache.
int64_t padded_features(int64_t features) {
  return round_up(features, kBlock) + kBlock;
}

/// Row r of (rows, columns) weights, read column by column as gradients of inputs need it, has the
/// problem that padded_features() avoids.
bool lines_compete(int64_t rows, int64_t columns) {
  constexpr int64_t kPage = 4096 / sizeof(float);
  constexpr int64_t kFewRows = 256;
  return columns % kPage == 0 && rows > kFewRows;
}
constexpr int64_t kPackedRows = 8 * kTileRows;  // three lines of 64 bytes
constexpr int64_t kMarks = 2 * kBlock;  // a thread's, with none of another's in its cache lines

struct Layer {
  int64_t in;
  int64_t out;
  const float* weight;
  const float* bias;
  float* weight_gradient;
  float* bias_gradient;
  torch::Tensor input;  // (samples of a part, padded_features(in))
  torch::Tensor transposed_input;  // (in, columns_)
  torch::Tensor output_gradient;  // (out, columns_); of the last layer first the output
};

class HostEngine : public Engine {
 public:
  HostEngine(MlpStorage storage, int64_t max_samples, size_t threads, bool look)
      : storage_(std::move(storage)),
        kernels_(kernels()),
        threads_(threads),
        columns_(round_up(std::clamp<int64_t>(max_samples, 1, kPartSamples), kBlock)),
        marks_(look ? threads * kMarks : 0),
        loss_(torch::zeros({}, torch::kFloat64)) {
    int64_t packed = 0;
    for (const LinearStorage& linear : storage_) {
      if (!layers_.empty() && lines_compete(linear.out(), linear.in())) {
        packed = std::max(packed, kPackedRows * linear.out());
      }
      layers_.push_back({.in = linear.in(),
                         .out = linear.out(),
                         .weight = linear.weight.const_data_ptr<float>(),
                         .bias = linear.bias.const_data_ptr<float>(),
                         .weight_gradient = linear.weight_gradient.mutable_data_ptr<float>(),
                         .bias_gradient = linear.bias_gradient.mutable_data_ptr<float>(),
                         .input = torch::zeros({columns_, padded_features(linear.in())}),
                         .transposed_input = torch::zeros({linear.in(), columns_}),
                         .output_gradient = torch::zeros({linear.out(), columns_})});
    }
    packed_ = torch::zeros({static_cast<int64_t>(threads), packed});
  }

  void compute(const Work& work, const Progress& progress) override {
    double& loss = *loss_.mutable_data_ptr<double>();
    loss = 0;
    finite_ = !marks_.empty();
    std::ranges::fill(marks_, 0.0F);
    int64_t begin = 0;
    do {  // once without samples too: gradients are set to zero, and ready
      const Part part{.begin = work.begin + begin,
                      .samples = std::min(kPartSamples, work.samples - begin),
                      .accumulate = work.accumulate || begin > 0,
                      .last = begin + kPartSamples >= work.samples};
      progress.observer.begin(Phase::kForward);
      forward(part, work.batch);
      loss += differentiate_loss(part, work) / work.batch.step_samples_per_rank;
      progress.observer.begin(Phase::kBackward);
      backward(part, progress);
      begin += kPartSamples;
    } while (begin < work.samples);
  }

  bool gradients_are_finite() const override { return finite_; }
  const torch::Tensor& loss() const override { return loss_; }

 private:
  struct Part {
    int64_t begin;
    int64_t samples;
    bool accumulate;
    bool last;
    int64_t columns() const { return round_up(samples, kBlock); }
  };

  /// Calls `task(thread, begin, end)` for parts of [0, size), on one thread if there is too little
  /// to do. How it is divided changes no bit of the result.
  template <typename Task>
  void divide(int64_t size, int64_t multiplications, const Task& task) {
    const auto threads = static_cast<int64_t>(threads_.size());
    if (threads == 1 || multiplications < threads * kMultiplicationsPerThread) {
      task(0, 0, size);
      return;
    }
    threads_.run([&](size_t thread) {
      const auto t = static_cast<int64_t>(thread);
      task(t, size * t / threads, size * (t + 1) / threads);
    });
  }

  void multiply(const Product& product) {
    const int64_t tiles = (product.rows + kTileRows - 1) / kTileRows;
    divide(tiles, product.rows * product.columns * product.depth,
           [&](int64_t thread, int64_t begin, int64_t end) {
             Product part = product;
             if (part.marks != nullptr) {
               part.marks += thread * kMarks;
             }
             kernels_.multiply(part, begin * kTileRows, std::min(end * kTileRows, product.rows));
           });
  }

  void forward(const Part& part, const Batch& batch) {
    const float* const samples =
        batch.input.const_data_ptr<float>() + part.begin * layers_.front().in;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      float* const input = layer.input.mutable_data_ptr<float>();
      float* const transposed = layer.transposed_input.mutable_data_ptr<float>();
      const int64_t row = padded_features(layer.in);
      if (i == 0) {
        for (int64_t s = 0; s < part.samples; ++s) {
          std::copy_n(samples + s * layer.in, layer.in, input + s * row);
        }
        kernels_.transpose(input, row, part.samples, layer.in, transposed, columns_);
      } else {
        kernels_.transpose(transposed, columns_, layer.in, part.samples, input, row);
      }
      const bool last = i + 1 == layers_.size();
      const torch::Tensor& output = last ? layer.output_gradient : layers_[i + 1].transposed_input;
      multiply({.rows = layer.out,
                .columns = part.columns(),
                .depth = layer.in,
                .a = layer.weight,
                .a_row = layer.in,
                .a_depth = 1,
                .b = transposed,
                .b_row = columns_,
                .c = output.mutable_data_ptr<float>(),
                .c_row = columns_,
                .bias = layer.bias,
                .after = last ? After::kNothing : After::kRelu});
    }
  }

  /// Replaces the outputs by the gradient of the loss with respect to them.
  /// @return the sum of the samples' losses
  double differentiate_loss(const Part& part, const Work& work) {
    float* const output = layers_.back().output_gradient.mutable_data_ptr<float>();
    const int64_t classes = layers_.back().out;
    if (classes > 1) {
      const int64_t* const targets = work.batch.target.const_data_ptr<int64_t>() + part.begin;
      for (int64_t s = 0; s < part.samples; ++s) {
        TORCH_CHECK(targets[s] >= 0 && targets[s] < classes, "Expected a target in [0, ", classes,
                    "), got ", targets[s]);
      }
      return kernels_.cross_entropy({.classes = classes,
                                     .samples = part.samples,
                                     .columns = part.columns(),
                                     .logits = output,
                                     .logits_row = columns_,
                                     .targets = targets,
                                     .gradient_scale = static_cast<float>(work.gradient_scale)});
    }
    const float* const targets = work.batch.target.const_data_ptr<float>() + part.begin;
    double loss = 0;
    for (int64_t s = 0; s < part.samples; ++s) {
      const float difference = output[s] - targets[s];
      loss += static_cast<double>(difference * difference);
      output[s] = static_cast<float>(2 * work.gradient_scale) * difference;
    }
    std::fill(output + part.samples, output + part.columns(), 0.0F);
    return loss;
  }

  void backward(const Part& part, const Progress& progress) {
    for (size_t i = layers_.size(); i-- > 0;) {
      const Layer& layer = layers_[i];
      const float* const output_gradient = layer.output_gradient.const_data_ptr<float>();
      multiply({.rows = layer.out,
                .columns = layer.in,
                .depth = part.samples,
                .a = output_gradient,
                .a_row = columns_,
                .a_depth = 1,
                .b = layer.input.const_data_ptr<float>(),
                .b_row = padded_features(layer.in),
                .c = layer.weight_gradient,
                .c_row = layer.in,
                .accumulate = part.accumulate,
                .marks = marks_.empty() ? nullptr : marks_.data()});
      kernels_.sum_rows(output_gradient, columns_, layer.out, part.columns(), layer.bias_gradient,
                        part.accumulate);
      if (!marks_.empty()) {
        finite_ = finite_ && kernels_.all_finite(layer.bias_gradient, layer.out) &&
                  kernels_.all_finite(marks_.data(), static_cast<int64_t>(marks_.size()));
      }
      if (part.last) {
        progress.gradient_ready(i);
      }
      if (i > 0) {  // nobody asks for the gradient of the samples
        differentiate_input(part, layer, layers_[i - 1].output_gradient);
      }
    }
  }

  /// The gradient of a layer's input, which is the output of the layer before.
  void differentiate_input(const Part& part, const Layer& layer, const torch::Tensor& gradient) {
    Product product{.rows = layer.in,
                    .columns = part.columns(),
                    .depth = layer.out,
                    .a = layer.weight,
                    .a_row = 1,
                    .a_depth = layer.in,
                    .b = layer.output_gradient.const_data_ptr<float>(),
                    .b_row = columns_,
                    .c = gradient.mutable_data_ptr<float>(),
                    .c_row = columns_,
                    .after = After::kReluBackward,
                    .activations = layer.transposed_input.const_data_ptr<float>()};
    if (!lines_compete(layer.out, layer.in)) {
      multiply(product);
      return;
    }
    const int64_t groups = (layer.in + kPackedRows - 1) / kPackedRows;
    const int64_t multiplications = product.rows * product.columns * product.depth;
    divide(groups, multiplications, [&](int64_t thread, int64_t begin, int64_t end) {
      float* const packed = packed_.mutable_data_ptr<float>() + thread * packed_.size(1);
      for (int64_t row = begin * kPackedRows; row < std::min(end * kPackedRows, layer.in);
           row += kPackedRows) {
        const int64_t rows = std::min(kPackedRows, layer.in - row);
        for (int64_t k = 0; k < layer.out; ++k) {
          std::copy_n(layer.weight + k * layer.in + row, rows, packed + k * kPackedRows);
        }
        Product group = product;
        group.rows = rows;
        group.a = packed;
        group.a_depth = kPackedRows;
        group.c = product.c + row * columns_;
        group.activations = product.activations + row * columns_;
        kernels_.multiply(group, 0, rows);
      }
    });
  }

  MlpStorage storage_;  // keeps what the layers point to
  const Kernels& kernels_;
  WorkerPool threads_;
  int64_t columns_;  // samples of a part, a multiple of kBlock
  std::vector<Layer> layers_;
  std::vector<float> marks_;  // kMarks per thread, see Product::marks; none if nobody is to look
  bool finite_ = false;
  torch::Tensor packed_;  // (threads, room for kPackedRows columns of weights)
  torch::Tensor loss_;
};

}  // namespace

std::unique_ptr<Engine> make_host_engine(const MlpStorage& storage, int64_t max_samples,
                                         size_t threads, bool look) {
  return std::make_unique<HostEngine>(storage, max_samples, threads, look);
}

}  // namespace ddp::fused
