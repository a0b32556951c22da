// Shares of samples: over ranks by DistributedSampler, over the devices of one process by
// DataParallel and Mirrored.
#include "common/parallel/data_parallel.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>

#include "common/model/mlp.hpp"
#include "common/parallel/distributed_sampler.hpp"
#include "common/parallel/mirrored.hpp"
#include "tests/support/catch.hpp"

namespace {

std::vector<torch::Device> cpus(size_t count) {
  return std::vector<torch::Device>(count, torch::kCPU);
}

/// Model with all parts that replicas must follow; its weight has two names and is used twice.
struct NormalizedImpl : torch::nn::Cloneable<NormalizedImpl> {
  explicit NormalizedImpl(bool its_ties = true) : ties(its_ties) { reset(); }
  void reset() override {
    linear = register_module("linear", torch::nn::Linear(4, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    again = register_parameter("again", ties ? linear->weight : torch::ones({4, 4}));
    if (ties) {
      register_parameter("tied", again);  // stays so in a clone
    }
  }
  torch::Tensor forward(const torch::Tensor& input) {
    return norm->forward(torch::tanh(torch::linear(linear->forward(input), again)));
  }
  bool ties;
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor again;
};
TORCH_MODULE(Normalized);

torch::Tensor random_state() {
  return at::detail::getDefaultCPUGenerator().get_state();
}

/// Always with the same weights.
ddp::Mlp make_model() {
  torch::manual_seed(3);
  return ddp::Mlp(std::vector<int64_t>{4, 6, 2});
}

/// True if all elements are close; false for NaN.
bool close(const torch::Tensor& a, const torch::Tensor& b) {
  return a.sizes() == b.sizes() && (a - b).abs().le(1e-6 + 1e-5 * b.abs()).all().item<bool>();
}

template <typename ModuleHolder>
bool same_gradients(const ModuleHolder& ours, const ModuleHolder& theirs) {
  return std::ranges::equal(ours->parameters(), theirs->parameters(),
                            [](const auto& a, const auto& b) { return close(a.grad(), b.grad()); });
}

}  // namespace

TEST_CASE("ranks read every sample once, in the order of one process", "[sampler]") {
  for (const int64_t size : {0, 1, 2, 3, 7, 16, 31, 100, 1437}) {
    for (int world_size = 1; world_size <= 9; ++world_size) {
      for (const int64_t epoch : {0, 3}) {
        INFO("size " << size << ", world size " << world_size << ", epoch " << epoch);
        // Python's torch.randperm(size, generator=torch.Generator().manual_seed(seed + epoch)).
        at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(7 + epoch));
        const torch::Tensor order = torch::randperm(size, generator, torch::kInt64);
        for (int rank = 0; rank < world_size; ++rank) {
          ddp::DistributedSampler sampler(size, rank, world_size, /*seed=*/7);
          sampler.set_epoch(epoch);
          CHECK(sampler.indices().is_contiguous());
          CHECK(torch::equal(sampler.indices(),
                             order.slice(0, std::min<int64_t>(rank, size), size, world_size)));
        }
      }
    }
  }
  const ddp::DistributedSampler sampler(10, 1, 3, 7);
  CHECK(sampler.epoch_samples() == 10);
  CHECK(sampler.num_replicas() == 3);
  CHECK_THROWS_AS(ddp::DistributedSampler(10, 3, 3, 7), c10::Error);
}

TEST_CASE("shuffle=false keeps the dataset's order, shared out", "[sampler]") {
  for (const int rank : {0, 1, 2}) {
    for (const int64_t used : {6, 8}) {
      ddp::DistributedSampler sampler(8, rank, 3, /*seed=*/7, /*shuffle=*/false, used < 8);
      CHECK(sampler.epoch_samples() == used);
      for (const int64_t epoch : {0, 5}) {  // epoch 0 also before set_epoch()
        CHECK(torch::equal(sampler.indices(), torch::arange(rank, used, 3)));
        sampler.set_epoch(epoch);
        CHECK(torch::equal(sampler.indices(), torch::arange(rank, used, 3)));
      }
    }
  }
}

TEST_CASE("DataParallel computes what the module computes, with fewer samples than devices, too",
          "[data_parallel]") {
  for (const size_t devices : {1U, 2U, 3U, 5U}) {
    for (const int64_t batch : {1, 4, 7}) {
      INFO(devices << " devices, " << batch << " samples");
      ddp::Mlp model = make_model();
      ddp::Mlp alone = make_model();
      ddp::DataParallel parallel_model(model, cpus(devices));
      for (int step = 0; step < 2; ++step) {  // gradients accumulate, weights change in between
        const torch::Tensor input = torch::randn({batch, 4});
        const torch::Tensor output = parallel_model.forward(input);
        const torch::Tensor expected = alone->forward(input);
        CHECK(close(output.detach(), expected.detach()));
        output.square().sum().backward();
        expected.square().sum().backward();
        CHECK(same_gradients(model, alone));
        for (const ddp::Mlp& one : {model, alone}) {
          const torch::NoGradGuard no_grad;
          one->parameters()[0].add_(0.1);
        }
      }
      const torch::NoGradGuard no_grad;
      CHECK_FALSE(parallel_model.forward(torch::randn({batch, 4})).requires_grad());
    }
  }
}

TEST_CASE("replicas draw no random numbers and follow their model", "[data_parallel]") {
  Normalized model;
  const torch::Tensor before = random_state();
  ddp::DataParallel parallel_model(model, cpus(2));
  CHECK(torch::equal(random_state(), before));
  const torch::Tensor input = torch::randn({6, 4});
  const auto train_once = [&] {
    model->zero_grad(/*set_to_none=*/false);
    parallel_model.forward(input).square().mul(input).sum().backward();
  };
  train_once();
  {
    // Each half is normalized by itself, and the first replica's statistics are kept.
    Normalized halves;  // not by clone(), which would untie the weights
    for (size_t p = 0; p < halves->parameters().size(); ++p) {
      halves->parameters()[p].detach().copy_(model->parameters()[p].detach());
    }
    const auto first = halves->forward(input.narrow(0, 0, 3)).square().mul(input.narrow(0, 0, 3));
    const torch::Tensor mean = halves->norm->running_mean.clone();
    const auto second = halves->forward(input.narrow(0, 3, 3)).square().mul(input.narrow(0, 3, 3));
    (first.sum() + second.sum()).backward();
    CHECK(same_gradients(model, halves));
    CHECK(close(model->norm->running_mean, mean));
    CHECK(model->norm->num_batches_tracked.item<int64_t>() == 1);
  }
  ddp::flatten_parameters(*model);  // moves the parameters to new memory
  model->norm->weight.set_requires_grad(false);
  model->norm->running_mean.fill_(3);
  train_once();
  CHECK_FALSE(model->norm->weight.grad().ne(0).any().item<bool>());
  CHECK(model->norm->bias.grad().ne(0).any().item<bool>());
  model->norm->running_mean.fill_(3);
  model->eval();
  CHECK(close(parallel_model.forward(input).detach(), model->forward(input).detach()));
}

TEST_CASE("a backward may follow the next forward, once", "[data_parallel]") {
  ddp::Mlp model = make_model();
  ddp::Mlp alone = make_model();
  ddp::DataParallel parallel_model(model, cpus(2));
  const torch::Tensor one = torch::randn({4, 4});
  const torch::Tensor two = torch::randn({4, 4});
  const torch::Tensor product = (parallel_model.forward(one) * parallel_model.forward(two)).sum();
  product.backward({}, /*retain_graph=*/true);
  (alone->forward(one) * alone->forward(two)).sum().backward();
  CHECK(same_gradients(model, alone));
  CHECK_THROWS_WITH(product.backward(), ContainsSubstring("one backward per forward"));
}

TEST_CASE("mirrored replicas begin as their model and are found when they differ", "[mirrored]") {
  Normalized model(/*its_ties=*/false);
  model->to(torch::kFloat64);
  model->linear->bias.set_requires_grad(false);
  const torch::Tensor before = random_state();
  ddp::Mirrored replicas(model, cpus(3));
  CHECK(torch::equal(random_state(), before));
  CHECK_FALSE(replicas[2].linear->bias.requires_grad());
  CHECK_NOTHROW(replicas.expect_same_weights());
  const auto scalar = [](double value) { return torch::scalar_tensor(value); };
  CHECK(replicas.mean({scalar(1), scalar(2), scalar(6)}).item<double>() == 3);
  const torch::NoGradGuard no_grad;
  replicas[1].linear->weight[0][0] += 0x1p-40;
  CHECK_THROWS_WITH(replicas.expect_same_weights(),
                    ContainsSubstring("weights of replica 1 have digest"));
}

TEST_CASE("mirrored gradients of float16 have a mean where their sum is infinite", "[mirrored]") {
  for (const auto dtype : {torch::kHalf, torch::kBFloat16, torch::kFloat32, torch::kFloat64}) {
    Normalized model(/*its_ties=*/false);
    model->to(dtype);
    ddp::Mirrored replicas(model, cpus(3));
    for (size_t i = 0; i < 3; ++i) {
      for (torch::Tensor& parameter : replicas.module(i).parameters()) {
        parameter.mutable_grad() =
            torch::full_like(parameter.detach(), 32768 * (i == 0 ? 0.5 : 1.25));
      }
    }
    replicas.average_gradients();
    for (size_t i = 0; i < 3; ++i) {
      CHECK(replicas[i].linear->weight.grad().eq(32768).all().item<bool>());
    }
  }
}

TEST_CASE("no device, a GPU twice, an input's gradient and mirrored ties are refused",
          "[data_parallel][mirrored]") {
  const auto refused = [](const std::vector<torch::Device>& devices, const char* says) {
    CHECK_THROWS_WITH(ddp::DataParallel(Normalized(), devices), ContainsSubstring(says));
    CHECK_THROWS_WITH(ddp::Mirrored(Normalized(), devices), ContainsSubstring(says));
  };
  const torch::Device gpu(torch::kCUDA, 0);
  refused({}, "Expected at least one device, got none");
  refused({gpu, gpu}, "Expected each device once, got cuda:0 twice");
  CHECK_THROWS_WITH(ddp::Mirrored(Normalized(), cpus(2)),
                    ContainsSubstring("without tied parameters, got 4"));
  ddp::DataParallel parallel_model(Normalized(), cpus(2));
  const torch::Tensor leaf = torch::ones({4, 4}, torch::requires_grad());
  CHECK_THROWS_WITH(parallel_model.forward(leaf), ContainsSubstring("no gradient, got one"));
  const torch::NoGradGuard no_grad;
  CHECK_NOTHROW(parallel_model.forward(leaf));
}
