// Our DDP's gradients are those of c10d::Reducer, the engine of Python's DDP, and of one process.
#include "common/parallel/distributed_data_parallel.hpp"

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <random>

#include "bench/peers/reducer.hpp"
#include "common/base/exit_codes.hpp"
#include "common/model/flat_parameters.hpp"
#include "tests/catch.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace {

using ddp::ProcessGroup;
using ddp::test::run_ranks;

/// A stack of linear layers of random widths in float64, of which some are frozen and some are left
/// out of the forward pass.
struct RandomModelImpl : torch::nn::Module {
  RandomModelImpl(uint64_t seed, bool with_unused, bool with_frozen) {
    std::mt19937_64 random(seed);
    torch::manual_seed(seed);
    std::vector<int64_t> widths;
    for (size_t i = 0; i < 2 + random() % 4; ++i) {
      widths.push_back(1 + static_cast<int64_t>(random() % 9));
    }
    in_features = widths.front();
    for (size_t i = 0; i + 1 < widths.size(); ++i) {
      layers.push_back(register_module(
          "layer" + std::to_string(i),
          torch::nn::Linear(
              torch::nn::LinearOptions(widths[i], widths[i + 1]).bias(random() % 2))));
      if (with_unused && random() % 2) {
        register_module("unused" + std::to_string(i), torch::nn::Linear(3, 2));
      }
      if (with_frozen && i > 0 && random() % 2) {
        layers.back()->weight.set_requires_grad(false);
      }
    }
    to(torch::kFloat64);
  }
  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor activation = input;
    for (torch::nn::Linear& layer : layers) {
      activation = torch::tanh(layer->forward(activation));
    }
    return activation;
  }
  int64_t in_features = 0;
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(RandomModel);

/// Different for every rank, micro-batch and element, so that no mix-up goes unnoticed.
torch::Tensor input_of(int rank, int micro_batch, int64_t in_features) {
  at::Generator generator =
      at::detail::createCPUGenerator(static_cast<uint64_t>(1000 * rank + micro_batch + 1));
  return torch::randn({4, in_features}, generator, torch::kFloat64);
}

/// The gradients in order; a parameter without one counts as zero.
torch::Tensor gradients(const torch::nn::Module& module) {
  std::vector<torch::Tensor> all;
  for (const torch::Tensor& parameter : module.parameters()) {
    all.push_back((parameter.grad().defined() ? parameter.grad().detach().clone()
                                              : torch::zeros_like(parameter))
                      .flatten());
  }
  return torch::cat(all);
}

torch::Tensor single_process_gradients(RandomModel model, int world_size, int micro_batches) {
  for (int rank = 0; rank < world_size; ++rank) {
    for (int m = 0; m < micro_batches; ++m) {
      (model->forward(input_of(rank, m, model->in_features)).square().mean() / world_size)
          .backward();
    }
  }
  return gradients(*model);
}

bool close(const torch::Tensor& a, const torch::Tensor& b, double tolerance) {
  // Written so that NaN fails.
  return a.sizes() == b.sizes() && (a - b).abs().le(tolerance).all().item<bool>();
}

}  // namespace

TEST_CASE("our gradients are those of c10d::Reducer and of one process", "[ddp]") {
  at::set_num_threads(1);
  for (uint64_t seed = 0; seed < 48; ++seed) {
    const std::string backend = seed < 24 ? "gloo" : "shm";
    const int world_size = 1 + static_cast<int>(seed % 4);
    const int micro_batches = 1 + static_cast<int>(seed / 2 % 3);
    const bool with_unused = seed % 3 == 1;
    const bool with_frozen = seed % 3 == 2;
    const int64_t bucket_bytes = std::vector<int64_t>{1, 64, 256, 1 << 30}[seed / 3 % 4];

    std::vector<torch::Tensor> ours(static_cast<size_t>(world_size));
    std::vector<torch::Tensor> theirs(static_cast<size_t>(world_size));
    std::mutex seed_mutex;  // torch::manual_seed() is for the whole process
    const auto make_model = [&] {
      const std::lock_guard<std::mutex> lock(seed_mutex);
      return RandomModel(seed, with_unused, with_frozen);
    };
    run_ranks(
        world_size,
        [&](ProcessGroup& process_group) {
          const int rank = process_group.rank();
          RandomModel model = make_model();
          ddp::DistributedDataParallel parallel_model(
              model, process_group,
              {.bucket_bytes = bucket_bytes, .first_bucket_bytes = bucket_bytes});
          for (int step = 0; step < 3; ++step) {  // the last counts: no state may leak into it
            ddp::flatten_parameters(*model).grad.zero_();
            for (int m = 0; m < micro_batches; ++m) {
              const ddp::NoSync no_sync = parallel_model.no_sync(m + 1 < micro_batches);
              const torch::Tensor input = input_of(rank, m, model->in_features);
              parallel_model.forward(input).square().mean().backward();
            }
          }
          ours[static_cast<size_t>(rank)] = gradients(*model);
        },
        backend);
    run_ranks(
        world_size,
        [&](ProcessGroup& process_group) {
          const int rank = process_group.rank();
          RandomModel model = make_model();
          ddp::ReducerPeer reducer(*model, process_group, with_unused);
          for (int m = 0; m < micro_batches; ++m) {
            const bool last = m + 1 == micro_batches;
            if (last) {
              reducer.before_forward();
            }
            const torch::Tensor output = model->forward(input_of(rank, m, model->in_features));
            if (last) {
              reducer.prepare_for_backward({output});
            }
            output.square().mean().backward();
          }
          theirs[static_cast<size_t>(rank)] = gradients(*model);
        },
        backend);
    const torch::Tensor expected =
        single_process_gradients(make_model(), world_size, micro_batches);
    INFO(backend << ", seed " << seed << ", world size " << world_size << ", bucket bytes "
                 << bucket_bytes);
    for (int rank = 0; rank < world_size; ++rank) {
      INFO("rank " << rank);
      const auto r = static_cast<size_t>(rank);
      CHECK(close(ours[r], expected, 1e-12));
      CHECK(close(ours[r], theirs[r], 1e-12));
      CHECK(torch::equal(ours[r], ours[0]));  // all ranks bit for bit
    }
  }
}

TEST_CASE("the gradient check notices NaN and a wrong rank", "[ddp]") {
  const torch::Tensor right = torch::ones({3}, torch::kFloat64);
  torch::Tensor wrong = right.clone();
  CHECK(close(right, wrong, 1e-12));
  wrong[1] = std::nan("");
  CHECK_FALSE(close(right, wrong, 1e-12));
  CHECK_FALSE(close(right, right * 2, 1e-12));
}

TEST_CASE("the number of buckets follows from their size", "[ddp]") {
  for (const int64_t bytes : {1 << 20, 1}) {
    run_ranks(2, [&](ProcessGroup& process_group) {
      torch::nn::Linear model(3, 3);
      const ddp::DistributedDataParallel parallel_model(
          model, process_group, {.bucket_bytes = bytes, .first_bucket_bytes = bytes});
      const size_t expected = bytes == 1 ? model->parameters().size() : 1;
      TORCH_CHECK(parallel_model.bucket_count() == expected, "Expected ", expected,
                  " buckets, got ", parallel_model.bucket_count());
    });
  }
}

TEST_CASE("a model outlives its DistributedDataParallel, and can be wrapped again", "[ddp]") {
  run_ranks(2, [](ProcessGroup& process_group) {
    torch::nn::Linear model(1, 1);
    process_group.enable_wait_timer();
    const auto gradient = [&](auto&& forward) {
      ddp::flatten_parameters(*model).grad.zero_();
      process_group.take_wait();
      forward(torch::full({1, 1}, process_group.rank() + 1.0)).sum().backward();
      return std::pair(model->weight.grad().item<double>(),
                       process_group.take_wait().all_reduce_bytes.size());
    };
    for (int wrap = 0; wrap < 2; ++wrap) {
      ddp::DistributedDataParallel parallel_model(model, process_group);
      const auto forward = [&](const torch::Tensor& input) {
        return parallel_model.forward(input);
      };
      TORCH_CHECK((gradient(forward) == std::pair(1.5, size_t{1})), "not averaged once");
    }
    const auto forward = [&](const torch::Tensor& input) { return model->forward(input); };
    const std::pair alone(process_group.rank() + 1.0, size_t{0});
    TORCH_CHECK(gradient(forward) == alone, "hooks are left");
  });
}

TEST_CASE("all ranks start from rank 0's parameters and buffers", "[ddp]") {
  std::vector<torch::Tensor> weights(3);
  std::vector<torch::Tensor> means(3);
  run_ranks(3, [&](ProcessGroup& process_group) {
    const auto rank = static_cast<size_t>(process_group.rank());
    torch::nn::Sequential model(torch::nn::Linear(3, 3), torch::nn::BatchNorm1d(3));
    const torch::NoGradGuard no_grad;
    model->parameters()[0].fill_(static_cast<double>(rank) + 1);
    model->buffers()[0].fill_(static_cast<double>(rank) + 10);
    ddp::DistributedDataParallel parallel_model(model, process_group);
    weights[rank] = model->parameters()[0].clone();
    model->buffers()[0].fill_(static_cast<double>(rank) + 20);
    model->eval();
    parallel_model.forward(torch::ones({2, 3}));
    means[rank] = model->buffers()[0].clone();
  });
  for (size_t rank = 0; rank < 3; ++rank) {
    CHECK(torch::equal(weights[rank], torch::ones({3, 3})));
    CHECK(torch::equal(means[rank], torch::full({3}, 20.0)));
  }
}

TEST_CASE("a different model on one rank is refused by name, before any collective", "[ddp]") {
  std::vector<std::string> messages(2);
  run_ranks(2, [&](ProcessGroup& process_group) {
    torch::nn::Linear model(3, process_group.rank() == 0 ? 2 : 5);
    try {
      ddp::DistributedDataParallel parallel_model(model, process_group);
    } catch (const ddp::UsageError& error) {
      messages[static_cast<size_t>(process_group.rank())] = error.what();
    }
  });
  for (const std::string& message : messages) {
    INFO(message);
    CHECK(message.find("weight [5, 3]") != std::string::npos);
    CHECK(message.find("weight [2, 3]") != std::string::npos);
  }
}

TEST_CASE("a stock optimizer's zero_grad does not break the flat gradients", "[ddp]") {
  std::vector<torch::Tensor> results(2);
  run_ranks(2, [&](ProcessGroup& process_group) {
    torch::nn::Linear model(2, 1);
    ddp::DistributedDataParallel parallel_model(model, process_group);
    for (int step = 0; step < 2; ++step) {
      for (torch::Tensor& parameter : model->parameters()) {
        parameter.mutable_grad().reset();
      }
      parallel_model.forward(torch::full({1, 2}, process_group.rank() + 1.0)).sum().backward();
    }
    results[static_cast<size_t>(process_group.rank())] = model->weight.grad().clone();
  });
  CHECK(torch::equal(results[0], torch::full({1, 2}, 1.5)));
  CHECK(torch::equal(results[1], torch::full({1, 2}, 1.5)));
}
