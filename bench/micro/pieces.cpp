
#include "bench/micro/bare_products.hpp"
#include "bench/micro/suites.hpp"
#include "common/data/dataset.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/distributed_sampler.hpp"
#include "common/parallel/gradient_buckets.hpp"
#include "common/training/optimizer.hpp"

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
namespace {

Piece limit(const std::vector<int64_t>& layers, int64_t batch, const torch::Device& device,
            benchmark::UserCounters& counters) {
  std::vector<torch::Tensor> weights;
  for (size_t i = 1; i < layers.size(); ++i) {
    const auto in = static_cast<double>(layers[i - 1]);
    weights.push_back(torch::randn({layers[i], layers[i - 1]}, device) / std::sqrt(in));
  }
  const auto products =
      std::make_shared<BareProducts>(weights, torch::randn({batch, layers.front()}, device),
                                     torch::randn({batch, layers.back()}, device));
  counters["flops"] = products->flops();
  counters["flops_per_second"] = benchmark::Counter(products->flops(), benchmark::Counter::kIsRate);
  return {.run = [products] { products->run(); }};
}

/// Stage 03's step on a rank, in parts.
class Step {
 public:
  Step(const Options& options, const Ranks& ranks)
      : ranks_(ranks),
        dataset_(load_dataset(options)),
        sampler_(dataset_.train.size(), ranks.rank(), ranks.size(), options.seed),
        loader_(dataset_.train, sampler_, options.batch_size, ranks.device()),
        next_(loader_.begin()) {
    torch::manual_seed(options.seed);
    model_ = Mlp(dataset_.layers);
    model_->to(ranks.device());
    if (ranks.size() > 1) {  // puts gradients in memory that the backend sums without a copy
      buckets_.emplace(model_->parameters(), ranks.group(), bucket_sizes(options.bucket_mib),
                       CallSite::current());
    }
    optimizer_ = make_optimizer(model_->parameters(), options);
  }

  const std::vector<int64_t>& layers() const { return dataset_.layers; }

  Piece data() {
    return {.run = [this] { ++next_; },
            .prepare =
                [this] {
                  if (++steps_ == loader_.steps()) {
                    next_ = loader_.begin();
                    steps_ = 1;
                  }
                }};
  }

  Piece forward() {
    return {.run = [this] { compute_loss(); }};
  }

  Piece backward() {
    return {.run = [this] { loss_.backward(); },
            .prepare =
                [this] {
                  optimizer_->zero_grad();
                  compute_loss();
                }};
  }

  Piece update() {
    return {.run =
                [this] {
                  optimizer_->step();
                  optimizer_->zero_grad();
                },
            .prepare =
                [this] {
                  for (const torch::Tensor& parameter : model_->parameters()) {
                    parameter.mutable_grad() = torch::full_like(parameter, 1e-3);
                  }
                }};
  }

  /// All-reduce of the gradients, with several ranks.
  Piece all_reduce() {
    const auto check_mean = [this] {
      const double mean = (ranks_.size() + 1) / 2.0;
      for (const torch::Tensor& parameter : buckets_->parameters()) {
        // Negated, so that NaN fails.
        if (!(parameter.grad().sub(mean).abs().max().item<double>() < 1e-6)) {
          return "all_reduce: got wrong gradients, expected the mean of all ranks' gradients";
        }
      }
      return "";
    };
    return {.run =
                [this] {
                  for (size_t i = 0; i < buckets_->size(); ++i) {
                    buckets_->start(i);
                  }
                  buckets_->finish();
                },
            .prepare =
                [this] {
                  for (size_t i = 0; i < buckets_->parameters().size(); ++i) {
                    const torch::Tensor& parameter = buckets_->parameters()[i];
                    parameter.mutable_grad() = torch::full_like(parameter, ranks_.rank() + 1);
                    buckets_->collect(i);
                  }
                },
            .check = check_mean};
  }

 private:
  void compute_loss() {
    const Batch& batch = *next_;
    loss_ = loss(model_->forward(batch.input), batch.target, batch.weight);
  }

  const Ranks& ranks_;
  Dataset dataset_;
  DistributedSampler sampler_;
  DataLoader loader_;
  DataLoader::Iterator next_;
  int64_t steps_ = 0;  ///< number of steps of this epoch
  Mlp model_{nullptr};
  std::optional<GradientBuckets> buckets_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  torch::Tensor loss_;
};

}  // namespace

void run_pieces(const MicroOptions& micro_options, const Ranks& ranks) {
  Options options = micro_options.stage;
  options.dataset_size = 16 * options.batch_size * ranks.size();  // 16 steps, as in bench's epochs
  Step step(options, ranks);
  const auto add = [&](const std::string& name, const Piece& piece) {
    add_benchmark(name, benchmark::kMillisecond, ranks, [piece](auto&) { return piece; });
  };
  // First, because --benchmark_format=csv takes its columns from the first benchmark's counters.
  add_benchmark("limit", benchmark::kMillisecond, ranks, [&](benchmark::UserCounters& counters) {
    return limit(step.layers(), options.batch_size, ranks.device(), counters);
  });
  add("data", step.data());
  add("forward", step.forward());
  add("backward", step.backward());
  add("update", step.update());
  if (ranks.size() > 1) {
    add("all_reduce", step.all_reduce());
  }
  run_benchmarks(ranks);
}

}  // namespace ddp::micro
