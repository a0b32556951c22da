#include <algorithm>
#include <cmath>
#include <optional>

#include "bench/micro/bare_products.hpp"
#include "bench/micro/suites.hpp"
#include "common/backends/backend.hpp"
#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/distributed_sampler.hpp"
#include "common/parallel/gradient_buckets.hpp"
#include "common/training/optimizer.hpp"

namespace ddp::micro {
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

}  // namespace

void run_pieces(const MicroOptions& micro_options, Ranks& ranks) {
  constexpr int64_t kBatches = 8;  // whole ones in an epoch, at least
  Options options = micro_options.stage;
  options.dataset_size =
      std::max(options.dataset_size, kBatches * options.batch_per_rank * ranks.size());
  ranks.connect(resolve_backend(micro_options.backends.front(), ranks.device()));
  const bool alone = ranks.size() == 1;

  const Dataset dataset = load_dataset(options);
  DistributedSampler sampler(DistributedSamplerOptions{.dataset_size = dataset.train.size(),
                                                       .num_replicas = ranks.size(),
                                                       .rank = ranks.rank(),
                                                       .seed = options.seed});
  DataLoader loader(dataset.train, sampler, options, ranks.device());
  torch::manual_seed(options.seed);
  Mlp model(dataset.layers);
  model->to(ranks.device());
  // Gradients lie where the backend sums them without a copy, as in DistributedDataParallel.
  AllocateFunction allocate;
  std::optional<GradientBuckets> buckets;
  if (!alone) {
    allocate = [&ranks](int64_t numel, torch::ScalarType dtype) {
      return ranks.group().allocate(numel, dtype);
    };
  }
  const FlatParameters flat = flatten_parameters(*model, allocate);
  if (!alone) {
    buckets.emplace(flat, ranks.group(), distributed_options(options),
                    GradientBuckets::Scale::kDivide);
  }
  Optimizer optimizer(*model, options, /*process_group=*/nullptr);

  const int64_t batches = dataset.train.size() / ranks.size() / options.batch_per_rank;
  int64_t batch = 1;
  DataLoader::Iterator next = loader.begin();
  const auto begin_epoch_if_over = [&] {
    if (batch == batches) {
      next = loader.begin();
      batch = 1;
    }
    ++batch;
  };
  torch::Tensor loss;
  const auto forward = [&] { loss = ddp::loss(model->forward((*next).input), *next); };
  const auto zero_grad_and_forward = [&] {
    optimizer.zero_grad();
    forward();
  };
  const auto update = [&] {
    optimizer.step();
    optimizer.zero_grad();
  };
  torch::Tensor weight_before;
  const auto set_gradients = [&] {
    flat.rebind_grads();  // zero_grad() may have taken them away
    flat.grad.fill_(1e-3);
    weight_before = flat.data[0].clone();
  };
  const auto check_moved = [&] {
    return (flat.data[0] - weight_before).abs().item<double>() >
                   0  // false for what is not a number
               ? ""
               : "update: got a weight that did not move, expected another one";
  };
  const auto all_reduce = [&] {
    for (size_t i = 0; i < buckets->size(); ++i) {
      buckets->start(i);
    }
    buckets->finish();
  };
  const auto check_mean = [&] {
    const double mean = (ranks.size() + 1) / 2.0;
    return flat.grad.sub(mean).abs().max().item<double>() < 1e-6
               ? ""
               : "all_reduce: got wrong gradients, expected the mean of all ranks' gradients";
  };

  const auto add = [&](const std::string& name, const Piece& piece) {
    add_benchmark(name, benchmark::kMillisecond, ranks, [piece](auto&) { return piece; });
  };
  // First, because --benchmark_format=csv takes its columns from the first one's counters.
  add_benchmark("limit", benchmark::kMillisecond, ranks, [&](benchmark::UserCounters& counters) {
    return limit(dataset.layers, options.batch_per_rank, ranks.device(), counters);
  });
  add("data", {.run = [&] { ++next; }, .prepare = begin_epoch_if_over});
  add("forward", {.run = forward});
  add("backward", {.run = [&] { loss.backward(); }, .prepare = zero_grad_and_forward});
  add("update", {.run = update, .prepare = set_gradients, .check = check_moved});
  if (!alone) {
    add("all_reduce", {.run = all_reduce,
                       .prepare = [&] { flat.grad.fill_(ranks.rank() + 1); },
                       .check = check_mean});
  }
  run_benchmarks(ranks);
}

}  // namespace ddp::micro
