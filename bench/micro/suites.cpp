#include "bench/micro/suites.hpp"

#include <ostream>

#include "bench/micro/bare_products.hpp"
#include "common/data/dataset.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/distributed_sampler.hpp"
#include "common/parallel/gradient_buckets.hpp"
#include "common/training/optimizer.hpp"

namespace ddp::micro {

void add_benchmark(const std::string& name, benchmark::TimeUnit unit, const Ranks& ranks,
                   const std::function<Piece(benchmark::UserCounters& counters)>& make) {
  const auto measure_once = [&ranks, make](benchmark::State& state) {
    const Piece piece = make(state.counters);
    for (auto _ : state) {
      state.SetIterationTime(ranks.measure(piece));
    }
  };
  benchmark::RegisterBenchmark(name.c_str(), measure_once)
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(unit);
}

void run_benchmarks(const Ranks& ranks) {
  std::ostream nowhere(nullptr);
  benchmark::ConsoleReporter silent;
  silent.SetOutputStream(&nowhere);
  silent.SetErrorStream(&nowhere);
  if (benchmark::RunSpecifiedBenchmarks(ranks.rank() == 0 ? nullptr : &silent) == 0) {
    refuse(
        "--benchmark_filter: got one that selects nothing, expected one of the names that "
        "--benchmark_list_tests prints");
  }
}

Piece all_reduce_piece(const ProcessGroup& group, int64_t bytes) {
  constexpr int64_t kSize = 160;  // about a tenth of a millisecond on one core
  const torch::Tensor values =
      group.allocate(bytes / static_cast<int64_t>(sizeof(float)), torch::kFloat32);
  // Small whole numbers that differ between elements and between ranks. Their sum is exact in any
  // order, and different faults give different sums.
  const int64_t ranks = group.world_size();
  const torch::Tensor pattern = torch::arange(values.numel(), values.options()) % 61;
  const torch::Tensor own = pattern + (group.rank() + 1);
  const torch::Tensor sum = pattern * ranks + ranks * (ranks + 1) / 2;
  const torch::Tensor factor = torch::ones({kSize, kSize}, values.options());
  torch::Tensor product = torch::empty_like(factor);
  const auto prepare = [=]() mutable {
    values.copy_(own);
    at::mm_out(product, factor, factor);
  };
  const auto check = [=, &group] {
    const bool right = torch::equal(values, sum);  // false for NaN
    return right ? ""
                 : fmt::format(
                       "all_reduce: got a wrong sum of {} bytes over {}, expected the sum "
                       "of all ranks' values",
                       values.nbytes(), group.backend_name());
  };
  return {.run = [=, &group] { group.all_reduce(values); }, .prepare = prepare, .check = check};
}

void run_all_reduces(const MicroOptions& options, const Ranks& ranks) {
  using benchmark::Counter;
  for (const int64_t bytes : options.bytes) {
    const auto make = [&ranks, bytes](benchmark::UserCounters& counters) {
      const auto size = static_cast<double>(bytes);
      const double n = ranks.size();
      counters["bytes"] = size;
      counters["algorithm_bandwidth"] = Counter(size, Counter::kIsRate);
      // Bytes that each rank must send and receive at least, by any algorithm.
      counters["bus_bandwidth"] = Counter(size * 2 * (n - 1) / n, Counter::kIsRate);
      return all_reduce_piece(ranks.group(), bytes);
    };
    add_benchmark(fmt::format("all_reduce/{}/ranks:{}/bytes:{}", ranks.group().backend_name(),
                              ranks.size(), bytes),
                  benchmark::kMicrosecond, ranks, make);
  }
  run_benchmarks(ranks);
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

/// All-reduce of a step's gradients. @param buckets must outlive the result
Piece gradient_all_reduce(GradientBuckets& buckets, const Ranks& ranks) {
  const auto run = [&buckets] {
    for (size_t i = 0; i < buckets.size(); ++i) {
      buckets.start(i);
    }
    buckets.finish();
  };
  const auto prepare = [&buckets, own = ranks.rank() + 1] {
    for (size_t i = 0; i < buckets.parameters().size(); ++i) {
      const torch::Tensor& parameter = buckets.parameters()[i];
      parameter.mutable_grad() = torch::full_like(parameter, own);
      buckets.collect(i);
    }
  };
  const auto check = [&buckets, mean = (ranks.size() + 1) / 2.0] {
    const bool right = std::ranges::all_of(buckets.parameters(), [mean](const auto& parameter) {
      return parameter.grad().sub(mean).abs().max().template item<double>() < 1e-6;  // not for NaN
    });
    return right ? ""
                 : "all_reduce: got wrong gradients, expected the mean of all ranks' gradients";
  };
  return {.run = run, .prepare = prepare, .check = check};
}

}  // namespace

void run_pieces(const MicroOptions& micro_options, const Ranks& ranks) {
  Options options = micro_options.stage;
  options.dataset_size = 16 * options.batch_size * ranks.size();  // 16 steps, as in bench's epochs
  const Dataset dataset = load_dataset(options);
  DistributedSampler sampler(dataset.train.size(), ranks.rank(), ranks.size(), options.seed);
  DataLoader loader(dataset.train, sampler, options.batch_size, ranks.device());
  DataLoader::Iterator next = loader.begin();
  torch::manual_seed(options.seed);
  Mlp model(dataset.layers);
  model->to(ranks.device());
  std::optional<GradientBuckets> buckets;
  if (ranks.size() > 1) {  // puts gradients in memory that the backend sums without a copy
    buckets.emplace(model->parameters(), ranks.group(), bucket_sizes(options.bucket_mib),
                    CallSite::current());
  }
  const auto optimizer = make_optimizer(model->parameters(), options);
  torch::Tensor loss_of_batch;
  int64_t steps = 0;  // of this epoch

  const auto take_batch = [&] { ++next; };
  const auto begin_epoch_after_last = [&] {
    if (++steps == loader.steps()) {
      next = loader.begin();
      steps = 1;
    }
  };
  const auto forward = [&] {
    const Batch& batch = *next;
    loss_of_batch = loss(model->forward(batch.input), batch.target, batch.weight);
  };
  const auto forward_without_gradients = [&] {
    optimizer->zero_grad();
    forward();
  };
  const auto update = [&] {
    optimizer->step();
    optimizer->zero_grad();
  };
  const auto set_gradients = [&] {
    for (const torch::Tensor& parameter : model->parameters()) {
      parameter.mutable_grad() = torch::full_like(parameter, 1e-3);
    }
  };
  const auto add = [&](const std::string& name, const Piece& piece) {
    add_benchmark(name, benchmark::kMillisecond, ranks, [piece](auto&) { return piece; });
  };
  // First, because --benchmark_format=csv takes its columns from the first benchmark's counters.
  add_benchmark("limit", benchmark::kMillisecond, ranks, [&](benchmark::UserCounters& counters) {
    return limit(dataset.layers, options.batch_size, ranks.device(), counters);
  });
  add("data", {.run = take_batch, .prepare = begin_epoch_after_last});
  add("forward", {.run = forward});
  add("backward", {.run = [&] { loss_of_batch.backward(); }, .prepare = forward_without_gradients});
  add("update", {.run = update, .prepare = set_gradients});
  if (buckets) {
    add("all_reduce", gradient_all_reduce(*buckets, ranks));
  }
  run_benchmarks(ranks);
}

}  // namespace ddp::micro
