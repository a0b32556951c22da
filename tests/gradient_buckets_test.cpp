// How gradients travel: compressed, in buckets of any size, and to the rank that needs them.
#include "common/parallel/gradient_buckets.hpp"

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <limits>

#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/parallel/distributed_data_parallel.hpp"
#include "common/parallel/distributed_sampler.hpp"
#include "common/training/optimizer.hpp"
#include "tests/catch.hpp"
#include "tests/support/count_allocations.hpp"
#include "tests/support/threads_as_ranks.hpp"
#include "tests/support/train_on_ranks.hpp"

namespace {

using ddp::DistributedDataParallelOptions;
using ddp::GradientBuckets;
using ddp::Options;
using ddp::ProcessGroup;
using ddp::test::run_ranks;
using ddp::test::train_on_ranks;
using ddp::test::TrainedRanks;

const std::vector<std::string> kBackends = {"gloo", "shm"};

/// A model whose flat gradients are filled by hand. Sizes that no world size divides.
torch::nn::Sequential make_model() {
  return torch::nn::Sequential(torch::nn::Linear(37, 29), torch::nn::Linear(29, 301),
                               torch::nn::Linear(301, 7));
}

int64_t flat_size() {
  return ddp::flatten_parameters(*make_model()).grad.numel();
}

/// All buckets, as one step does.
void average(GradientBuckets& buckets) {
  for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    buckets.start(bucket);
  }
  buckets.finish();
}

/// Different for every rank and element, over many magnitudes.
torch::Tensor gradients_of(int rank, int64_t elements) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(rank + 1));
  const torch::Tensor magnitudes = torch::randn({elements}, generator).mul_(2).exp_();
  return torch::randn({elements}, generator).mul_(magnitudes).mul_(1e-3);
}

/// What torch's own hooks do, in float32: each rank's share of the mean rounded, summed, rounded.
torch::Tensor compressed_mean(const std::vector<torch::Tensor>& of_ranks, torch::ScalarType type) {
  torch::Tensor sum = torch::zeros_like(of_ranks.front());
  for (const torch::Tensor& gradients : of_ranks) {
    sum += (gradients / static_cast<double>(of_ranks.size())).to(type).to(torch::kFloat32);
  }
  return sum.to(type).to(torch::kFloat32);
}

/// Runs `flat.grad = of_ranks[rank]` through the buckets. @return every rank's result
std::vector<torch::Tensor> reduce(const std::vector<torch::Tensor>& of_ranks,
                                  const std::string& backend,
                                  const DistributedDataParallelOptions& options,
                                  GradientBuckets::Scale scale = GradientBuckets::Scale::kDivide) {
  std::vector<torch::Tensor> results(of_ranks.size());
  run_ranks(
      static_cast<int>(of_ranks.size()),
      [&](ProcessGroup& process_group) {
        const auto rank = static_cast<size_t>(process_group.rank());
        const ddp::FlatParameters flat = ddp::flatten_parameters(*make_model());
        GradientBuckets buckets(flat, process_group, options, scale);
        for (int step = 0; step < 2; ++step) {  // the second counts: nothing may be left over
          flat.grad.copy_(of_ranks[rank]);
          average(buckets);
        }
        results[rank] = flat.grad.clone();
      },
      backend);
  return results;
}

std::vector<torch::Tensor> random_gradients(int world_size) {
  std::vector<torch::Tensor> of_ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    of_ranks.push_back(gradients_of(rank, flat_size()));
  }
  return of_ranks;
}

/// Written so that NaN fails.
bool close(const torch::Tensor& a, const torch::Tensor& b, double relative, double absolute) {
  return a.sizes() == b.sizes() &&
         (a - b).abs().le(b.abs() * relative + absolute).all().item<bool>();
}

struct Format {
  torch::ScalarType type;
  double epsilon;  // from 1 to the next number
  double smallest;  // the distance of numbers near 0
};
const std::vector<Format> kFormats = {{torch::kBFloat16, 0x1p-7, 0x1p-133},
                                      {torch::kHalf, 0x1p-10, 0x1p-24}};

/// Whether gradients are rounded on their way, and to what.
using Compression = std::optional<torch::ScalarType>;

}  // namespace

TEST_CASE("compressed gradients are the mean, rounded as torch's hooks round it", "[compression]") {
  for (const std::string& backend : kBackends) {
    for (const Format& format : kFormats) {
      for (const int world_size : {2, 3, 4}) {
        const std::vector<torch::Tensor> of_ranks = random_gradients(world_size);
        const std::vector<torch::Tensor> results =
            reduce(of_ranks, backend,
                   {.bucket_bytes = 9000, .first_bucket_bytes = 500, .compression = format.type});
        const torch::Tensor expected = compressed_mean(of_ranks, format.type);
        torch::Tensor magnitude = torch::zeros_like(expected);
        torch::Tensor exact = torch::zeros_like(expected, torch::kFloat64);
        for (const torch::Tensor& gradients : of_ranks) {
          magnitude += gradients.abs() / world_size;
          exact += gradients.to(torch::kFloat64) / world_size;
        }
        INFO(backend << ", " << format.type << ", world size " << world_size);
        const torch::Tensor rounding = world_size * (magnitude * format.epsilon + format.smallest);
        const auto is_near = [&](const torch::Tensor& values) {
          return (results[0] - values).abs().le(rounding).all().item<bool>();
        };
        // It is the mean, as far as the type goes. Two ranks' sum has one order, and shared memory
        // adds in float32 and rounds once; Gloo rounds the sums of more after each addition.
        CHECK(is_near(exact));
        CHECK((world_size == 2 || backend == "shm" ? torch::equal(results[0], expected)
                                                   : is_near(expected)));
        // And not the uncompressed one.
        CHECK_FALSE(close(results[0], exact.to(torch::kFloat32), format.epsilon / 100, 0));
        for (const torch::Tensor& result : results) {
          CHECK(torch::equal(result, results[0]));  // all ranks bit for bit
        }
      }
    }
  }
}

TEST_CASE("gradients that are divided already are not divided again", "[compression]") {
  const std::vector<torch::Tensor> of_ranks = random_gradients(2);
  for (const Compression compression : {Compression(), Compression(torch::kBFloat16)}) {
    std::vector<torch::Tensor> halves;
    for (const torch::Tensor& gradients : of_ranks) {
      halves.push_back(gradients / 2);
    }
    const DistributedDataParallelOptions options{.compression = compression};
    CHECK(torch::equal(reduce(halves, "shm", options, GradientBuckets::Scale::kDivided)[0],
                       reduce(of_ranks, "shm", options)[0]));
  }
}

TEST_CASE("a sum that would overflow float16 does not; what is too large, or NaN, is not hidden",
          "[compression]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (const std::string& backend : kBackends) {
    std::vector<torch::Tensor> of_ranks(4, torch::zeros({flat_size()}));
    for (torch::Tensor& gradients : of_ranks) {
      gradients = gradients.clone();
      gradients[0] = 60000.0F;  // four of them: 240000, float16 ends at 65504
      gradients[1] = 1e6F;  // a quarter of which does not fit
    }
    of_ranks[2][2] = nan;
    of_ranks[3][3] = inf;
    INFO(backend);
    const torch::Tensor half = reduce(of_ranks, backend, {.compression = torch::kHalf})[1];
    CHECK(half[0].item<float>() == 60000.0F);
    CHECK(half[1].item<float>() == inf);
    CHECK(std::isnan(half[2].item<float>()));
    CHECK(half[3].item<float>() == inf);
    CHECK(half[4].item<float>() == 0.0F);
    const torch::Tensor bfloat = reduce(of_ranks, backend, {.compression = torch::kBFloat16})[1];
    CHECK(close(bfloat.narrow(0, 0, 2), torch::tensor({60000.0F, 1e6F}), 0x1p-7, 0));
    CHECK(std::isnan(bfloat[2].item<float>()));
    CHECK(bfloat[3].item<float>() == inf);
  }
}

TEST_CASE("with a sharded optimizer each rank gets the mean of its parts, bit for bit that of all",
          "[shard]") {
  for (const std::string& backend : kBackends) {
    for (const int world_size : {2, 3, 5}) {
      for (const Compression compression : {Compression(), Compression(torch::kBFloat16)}) {
        const std::vector<torch::Tensor> of_ranks = random_gradients(world_size);
        DistributedDataParallelOptions options{
            .bucket_bytes = 9000, .first_bucket_bytes = 500, .compression = compression};
        const std::vector<torch::Tensor> whole = reduce(of_ranks, backend, options);
        options.shard_optimizer = true;
        const std::vector<torch::Tensor> sharded = reduce(of_ranks, backend, options);
        INFO(backend << ", world size " << world_size);
        const ddp::FlatParameters flat = ddp::flatten_parameters(*make_model());
        int64_t covered = 0;
        for (const ddp::BucketRange& range : ddp::bucket_ranges(flat, options)) {
          for (int rank = 0; rank < world_size; ++rank) {
            const auto [begin, end] = ddp::part_range(range.end - range.begin, rank, world_size);
            const auto part = [&](const std::vector<torch::Tensor>& tensors) {
              return tensors[static_cast<size_t>(rank)].narrow(0, range.begin + begin, end - begin);
            };
            CHECK(torch::equal(part(sharded), part(whole)));
            covered += end - begin;
          }
        }
        CHECK(covered == flat.grad.numel());
      }
    }
  }
}

TEST_CASE("parts cover a tensor once, in order, whatever its size", "[shard]") {
  for (const int world_size : {1, 2, 3, 8, 64}) {
    for (const int64_t elements : {0, 1, 31, 32, 33, 100, 4096, 100001}) {
      int64_t expected = 0;
      for (int rank = 0; rank < world_size; ++rank) {
        const auto [begin, end] = ddp::part_range(elements, rank, world_size);
        CHECK(begin == expected);
        CHECK(end >= begin);
        CHECK(end - begin <= elements / world_size + 64);
        expected = end;
      }
      CHECK(expected == elements);
    }
  }
}

TEST_CASE("rounding allocates nothing, step after step", "[compression][allocations]") {
  const auto allocations_of = [](Compression compression) {
    uint64_t counted = 0;
    run_ranks(
        2,
        [&](ProcessGroup& process_group) {
          const ddp::FlatParameters flat = ddp::flatten_parameters(*make_model());
          GradientBuckets buckets(flat, process_group,
                                  {.bucket_bytes = 9000, .compression = compression},
                                  GradientBuckets::Scale::kDivided);
          const auto steps = [&](int count) {
            for (int step = 0; step < count; ++step) {
              average(buckets);
            }
            process_group.barrier();
          };
          steps(5);
          const uint64_t before = ddp::test::allocations();
          steps(100);
          if (process_group.rank() == 0) {
            counted = ddp::test::allocations() - before;
          }
        },
        "shm");
    return static_cast<double>(counted) / 100;
  };
  const double plain = allocations_of(std::nullopt);
  CHECK(plain < 0.5);  // those of the barrier at the end, once in 100 steps
  CHECK(allocations_of(torch::kBFloat16) <= plain + 0.5);  // the threads are not quite in step
  CHECK(allocations_of(torch::kHalf) <= plain + 0.5);
}

namespace {

Options options_of(const std::string& optimizer, const std::string& speedup) {
  Options options;
  options.program = "gradient_buckets_test";
  options.layers = {9, 300, 1000, 3};
  options.dataset_size = 46;  // the last step is smaller
  options.batch_per_rank = 2;
  options.accumulate = 2;
  options.total_epochs = 2;
  options.quiet = true;
  options.optimizer = optimizer;
  options.speedup = speedup;
  return options;
}

}  // namespace

TEST_CASE("a sharded optimizer ends on the same bits and keeps 1/n of the state", "[shard]") {
  for (const std::string speedup : {"none", "fused"}) {
    for (const std::string optimizer : {"sgd", "momentum", "adam", "adamw"}) {
      for (const int world_size : {1, 2, 3, 4, 8}) {
        Options options = options_of(optimizer, speedup);
        const std::string backend =
            (world_size + static_cast<int>(optimizer.size())) % 2 == 0 ? "shm" : "gloo";
        const TrainedRanks whole = train_on_ranks(options, world_size, backend);
        options.shard_optimizer = true;
        options.bucket_mib = 0.05;
        const TrainedRanks sharded = train_on_ranks(options, world_size, backend);
        INFO(speedup << ", " << optimizer << ", world size " << world_size);
        CHECK(torch::equal(sharded.weights, whole.weights));
        CHECK(sharded.all_reduce_bytes == whole.all_reduce_bytes);
        CHECK(whole.gather_bytes == 0);
        CHECK(sharded.gather_bytes == whole.all_reduce_bytes);
        int64_t sum = 0;
        for (const int64_t bytes : sharded.state_bytes) {
          sum += bytes;
          // A part is at most 32 elements longer than 1/n of its bucket, of which there are few.
          CHECK(bytes <= whole.state_bytes[0] / world_size + 6 * 2 * 32 * 4 + 4);
        }
        // Nothing is kept twice but the number of steps, a float.
        const bool counts_steps = optimizer == "adam" || optimizer == "adamw";
        CHECK(sum == whole.state_bytes[0] + (counts_steps ? 4 * (world_size - 1) : 0));
        CHECK((sum > 0) == (optimizer != "sgd"));
      }
    }
  }
}

TEST_CASE("the size of the buckets changes no bit, only their number", "[buckets]") {
  for (const std::string speedup : {"none", "fused"}) {
    Options options = options_of("adam", speedup);
    const TrainedRanks usual = train_on_ranks(options, 3);
    size_t fewest = 0;
    for (const double mib : {1e-6, 0.01, 0.5, 4.0, 1000.0}) {
      options.bucket_mib = mib;
      const TrainedRanks other = train_on_ranks(options, 3);
      INFO(speedup << ", " << mib << " MiB");
      CHECK(torch::equal(other.weights, usual.weights));
      CHECK(other.all_reduce_bytes == usual.all_reduce_bytes);
      if (fewest == 0) {
        CHECK(other.all_reduces > usual.all_reduces);
      }
      fewest = other.all_reduces;
    }
    CHECK(fewest == usual.all_reduces);
  }
}

TEST_CASE("compression halves the bytes, and trains to about the same weights", "[compression]") {
  for (const std::string speedup : {"none", "fused"}) {
    for (const bool shard : {false, true}) {
      Options options = options_of("momentum", speedup);
      options.shard_optimizer = shard;
      const TrainedRanks plain = train_on_ranks(options, 3);
      for (const std::string compression : {"bf16", "fp16"}) {
        options.gradient_compression = compression;
        const TrainedRanks compressed = train_on_ranks(options, 3);
        INFO(speedup << ", " << compression << ", sharded " << shard);
        CHECK(compressed.all_reduce_bytes * 2 == plain.all_reduce_bytes);
        CHECK(compressed.gather_bytes == plain.gather_bytes);  // weights are never rounded
        CHECK_FALSE(torch::equal(compressed.weights, plain.weights));
        CHECK(close(compressed.weights, plain.weights, 0, 1e-3));
      }
      options.gradient_compression = "none";
    }
  }
}

TEST_CASE("alone, nothing is compressed or sharded", "[compression][shard]") {
  for (const std::string speedup : {"none", "fused"}) {
    Options options = options_of("adam", speedup);
    const TrainedRanks plain = train_on_ranks(options, 1);
    options.gradient_compression = "bf16";
    options.shard_optimizer = true;
    const TrainedRanks other = train_on_ranks(options, 1);
    CHECK(torch::equal(other.weights, plain.weights));
    CHECK(other.state_bytes == plain.state_bytes);
    CHECK(other.all_reduce_bytes == 0);
  }
}

TEST_CASE("a sharded optimizer's state is gathered whole, and goes to any other number of ranks",
          "[shard]") {
  const int64_t elements = flat_size();
  const torch::Tensor values = torch::arange(2 * elements, torch::kFloat32);
  for (const std::string& backend : kBackends) {
    for (const int world_size : {1, 2, 3, 5}) {
      std::string problem;
      run_ranks(
          world_size,
          [&](ProcessGroup& process_group) {
            Options options = options_of("adam", "none");
            options.shard_optimizer = true;
            options.bucket_mib = 0.01;
            const torch::nn::Sequential model = make_model();
            ddp::Optimizer optimizer(*model, options, &process_group);
            ddp::NamedTensors given;
            if (process_group.rank() == 0) {
              given = {{"exp_avg", values.narrow(0, 0, elements)},
                       {"exp_avg_sq", values.narrow(0, elements, elements)},
                       {"step", torch::tensor(7.0F)}};
            }
            optimizer.load_state(given, &process_group);
            const ddp::NamedTensors layout = optimizer.state_layout();
            const ddp::NamedTensors state = optimizer.state();
            if (process_group.rank() == 0) {
              for (size_t i = 0; i < given.size(); ++i) {
                if (state[i].first != given[i].first || layout[i].first != given[i].first ||
                    !torch::equal(state[i].second, given[i].second) ||
                    layout[i].second.sizes() != given[i].second.sizes()) {
                  problem = given[i].first;
                }
              }
            } else if (state.back().second.item<float>() != 7.0F) {
              problem = "steps of another rank";
            }
          },
          backend);
      INFO(backend << ", world size " << world_size);
      CHECK(problem == "");
    }
  }
}

TEST_CASE("options become sizes and types", "[buckets]") {
  Options options;
  const DistributedDataParallelOptions defaults;
  DistributedDataParallelOptions result = ddp::distributed_options(options);
  CHECK(result.bucket_bytes == defaults.bucket_bytes);
  CHECK(result.first_bucket_bytes == defaults.first_bucket_bytes);
  CHECK_FALSE(result.compression.has_value());
  CHECK_FALSE(result.shard_optimizer);
  options.bucket_mib = 0.25;
  options.gradient_compression = "fp16";
  options.shard_optimizer = true;
  result = ddp::distributed_options(options);
  CHECK(result.bucket_bytes == 262144);
  CHECK(result.first_bucket_bytes == 262144);
  CHECK(result.compression == torch::kHalf);
  CHECK(result.shard_optimizer);
  options.gradient_compression = "bf16";
  options.bucket_mib = 1e-9;
  result = ddp::distributed_options(options);
  CHECK(result.compression == torch::kBFloat16);
  CHECK(result.bucket_bytes == 1);
}
