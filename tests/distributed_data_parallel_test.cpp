// Our DDP's gradients are those of c10d::Reducer, the engine of Python's DDP, and of one process.
#include "common/parallel/distributed_data_parallel.hpp"

#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <latch>
#include <numeric>
#include <random>

#include "bench/peers/reducer.hpp"
#include "common/base/exit_codes.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/training/optimizer.hpp"
#include "tests/catch.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace {

using ddp::ProcessGroup;
using ddp::test::run_ranks;

/// What is unusual about a random model.
struct Traits {
  bool unused;  ///< layers that no forward uses
  bool frozen;
  bool tied;  ///< parameters, and layers, that have two names and are used twice
  bool optional;  ///< layers that only some forwards use, by rank and micro-batch
};

Traits traits_of(uint64_t seed) {
  const uint64_t bits = std::mt19937_64(seed)() % 16;
  return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0};
}

/// A stack of linear layers of random widths in float64.
struct RandomModelImpl : torch::nn::Module {
  RandomModelImpl(uint64_t seed, const Traits& traits) {
    std::mt19937_64 random(seed);
    torch::manual_seed(seed);
    std::vector<int64_t> widths;
    for (size_t i = 0; i < 2 + random() % 4; ++i) {
      widths.push_back(1 + static_cast<int64_t>(random() % 9));
    }
    in_features = widths.front();
    for (size_t i = 0; i + 1 < widths.size(); ++i) {
      const std::string number = std::to_string(i);
      layers.push_back(register_module(
          "layer" + number,
          torch::nn::Linear(
              torch::nn::LinearOptions(widths[i], widths[i + 1]).bias(random() % 2))));
      tied.emplace_back();
      if (traits.tied && random() % 2) {
        tied.back() = register_parameter("tied" + number, layers.back()->weight);
      }
      if (traits.tied && random() % 2) {
        register_module("again" + number, layers.back());
      }
      optional.emplace_back(nullptr);
      if (traits.optional) {
        optional.back() =
            register_module("optional" + number, torch::nn::Linear(widths[i], widths[i + 1]));
      }
      if (traits.unused && random() % 2) {
        register_module("unused" + number, torch::nn::Linear(3, 2));
      }
      if (traits.frozen && i > 0 && random() % 2) {
        layers.back()->weight.set_requires_grad(false);
      }
    }
    to(torch::kFloat64);
  }
  /// @param options bit i: use the i-th optional layer
  torch::Tensor forward(torch::Tensor activation, uint64_t options) {
    for (size_t i = 0; i < layers.size(); ++i) {
      torch::Tensor next = torch::tanh(layers[i]->forward(activation));
      if (tied[i].defined()) {
        next = next + torch::sin(torch::linear(activation, tied[i]));
      }
      if (!optional[i].is_empty() && (options >> i) % 2 != 0) {
        next = next * torch::cos(optional[i]->forward(activation));
      }
      activation = next;
    }
    return activation;
  }
  int64_t in_features = 0;
  std::vector<torch::nn::Linear> layers;
  std::vector<torch::Tensor> tied;  // undefined: no second name
  std::vector<torch::nn::Linear> optional;
};
TORCH_MODULE(RandomModel);

/// torch::manual_seed() is for the whole process, and ranks are threads.
RandomModel make_model(uint64_t seed) {
  static std::mutex seed_mutex;
  const std::lock_guard<std::mutex> lock(seed_mutex);
  return RandomModel(seed, traits_of(seed));
}

/// Which optional layers a forward uses: not the same on all ranks.
uint64_t options_of(uint64_t seed, int step, int rank, int micro_batch) {
  const auto number = [](int value) { return static_cast<uint64_t>(value); };
  return std::mt19937_64(((seed * 16 + number(step)) * 16 + number(rank)) * 16 +
                         number(micro_batch))();
}

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

/// A step as one process takes it, up to the gradients.
void backward_alone(RandomModel& model, uint64_t seed, int step, int world_size,
                    int micro_batches) {
  for (int rank = 0; rank < world_size; ++rank) {
    for (int m = 0; m < micro_batches; ++m) {
      const torch::Tensor output =
          model->forward(input_of(rank, m, model->in_features), options_of(seed, step, rank, m));
      (output.square().mean() / world_size).backward();
    }
  }
}

/// The same on one of the ranks.
void backward_on_rank(ddp::DistributedDataParallel<RandomModel>& parallel_model,
                      int64_t in_features, uint64_t seed, int step, int rank, int micro_batches) {
  for (int m = 0; m < micro_batches; ++m) {
    const ddp::NoSync no_sync = parallel_model.no_sync(m + 1 < micro_batches);
    const torch::Tensor output =
        parallel_model.forward(input_of(rank, m, in_features), options_of(seed, step, rank, m));
    output.square().mean().backward();
  }
}

/// LibTorch's own, with settings under which every bit of state counts.
std::unique_ptr<torch::optim::Optimizer> stock_optimizer(const std::string& kind,
                                                         const torch::nn::Module& module) {
  const std::vector<torch::Tensor> parameters = ddp::trainable_parameters(module);
  if (kind == "adam") {
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.01));
  }
  if (kind == "adamw") {
    return std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  }
  return std::make_unique<torch::optim::SGD>(
      parameters,
      torch::optim::SGDOptions(0.1).momentum(kind == "sgd" ? 0.0 : 0.9).weight_decay(0.01));
}

bool close(const torch::Tensor& a, const torch::Tensor& b, double tolerance) {
  // Written so that NaN fails.
  return a.sizes() == b.sizes() && (a - b).abs().le(tolerance).all().item<bool>();
}

}  // namespace

TEST_CASE("our gradients are those of c10d::Reducer and of one process", "[ddp]") {
  at::set_num_threads(1);
  constexpr int kSteps = 3;  // the last counts: no state may leak into it
  for (uint64_t seed = 0; seed < 160; ++seed) {
    const std::string backend = seed % 4 == 0 ? "gloo" : "shm";
    const int world_size = 1 + static_cast<int>(seed / 4 % 4);
    const int micro_batches = 1 + static_cast<int>(seed / 16 % 3);
    const int64_t bucket_bytes = std::vector<int64_t>{1, 64, 256, 1 << 30}[seed / 3 % 4];
    const bool drops_gradients = seed / 2 % 2 != 0;  // as a stock optimizer's zero_grad() does

    std::vector<torch::Tensor> ours(static_cast<size_t>(world_size));
    std::vector<torch::Tensor> theirs(static_cast<size_t>(world_size));
    run_ranks(
        world_size,
        [&](ProcessGroup& process_group) {
          const int rank = process_group.rank();
          RandomModel model = make_model(seed);
          ddp::DistributedDataParallel parallel_model(
              model, process_group,
              {.bucket_bytes = bucket_bytes, .first_bucket_bytes = bucket_bytes});
          for (int step = 0; step < kSteps; ++step) {
            if (drops_gradients) {
              model->zero_grad();
            } else {
              ddp::flatten_parameters(*model).grad.zero_();
            }
            backward_on_rank(parallel_model, model->in_features, seed, step, rank, micro_batches);
          }
          ours[static_cast<size_t>(rank)] = gradients(*model);
        },
        backend);
    run_ranks(
        world_size,
        [&](ProcessGroup& process_group) {
          const int rank = process_group.rank();
          RandomModel model = make_model(seed);
          ddp::ReducerPeer reducer(*model, process_group, /*find_unused_parameters=*/true);
          for (int m = 0; m < micro_batches; ++m) {
            const bool last = m + 1 == micro_batches;
            if (last) {
              reducer.before_forward();
            }
            const torch::Tensor output = model->forward(input_of(rank, m, model->in_features),
                                                        options_of(seed, kSteps - 1, rank, m));
            if (last) {
              reducer.prepare_for_backward({output});
            }
            output.square().mean().backward();
          }
          theirs[static_cast<size_t>(rank)] = gradients(*model);
        },
        backend);
    RandomModel alone = make_model(seed);
    backward_alone(alone, seed, kSteps - 1, world_size, micro_batches);
    const torch::Tensor expected = gradients(*alone);
    INFO(backend << ", seed " << seed << ", world size " << world_size << ", " << micro_batches
                 << " micro-batches, bucket bytes " << bucket_bytes << ", drops gradients "
                 << drops_gradients);
    for (int rank = 0; rank < world_size; ++rank) {
      INFO("rank " << rank);
      const auto r = static_cast<size_t>(rank);
      CHECK(close(ours[r], expected, 1e-12));
      CHECK(close(ours[r], theirs[r], 1e-12));
      CHECK(torch::equal(ours[r], ours[0]));  // all ranks bit for bit
    }
  }
}

TEST_CASE("stock optimizers end on the weights of one process, the same on all ranks", "[ddp]") {
  at::set_num_threads(1);
  constexpr int kSteps = 5;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    const std::string backend = seed % 4 == 0 ? "gloo" : "shm";
    const int world_size = 2 + static_cast<int>(seed / 4 % 3);
    const int micro_batches = 1 + static_cast<int>(seed / 2 % 2);
    const std::string kind =
        std::vector<std::string>{"sgd", "momentum", "adam", "adamw"}[seed / 4 % 4];

    RandomModel alone = make_model(seed);
    const auto optimizer_alone = stock_optimizer(kind, *alone);
    for (const torch::Tensor& parameter : ddp::trainable_parameters(*alone)) {
      parameter.mutable_grad() = torch::zeros_like(parameter);
    }
    for (int step = 0; step < kSteps; ++step) {
      optimizer_alone->zero_grad(/*set_to_none=*/false);  // see Note [Unused parameters]
      backward_alone(alone, seed, step, world_size, micro_batches);
      optimizer_alone->step();
    }
    std::vector<torch::Tensor> weights(static_cast<size_t>(world_size));
    run_ranks(
        world_size,
        [&](ProcessGroup& process_group) {
          const int rank = process_group.rank();
          RandomModel model = make_model(seed);
          ddp::DistributedDataParallel parallel_model(
              model, process_group, {.bucket_bytes = 64, .first_bucket_bytes = 64});
          const auto optimizer = stock_optimizer(kind, *model);
          for (int step = 0; step < kSteps; ++step) {
            optimizer->zero_grad();
            backward_on_rank(parallel_model, model->in_features, seed, step, rank, micro_batches);
            optimizer->step();
          }
          weights[static_cast<size_t>(rank)] = ddp::parameter_vector(*model);
        },
        backend);
    INFO(backend << ", seed " << seed << ", world size " << world_size << ", " << kind);
    for (const torch::Tensor& of_rank : weights) {
      CHECK(close(of_rank, ddp::parameter_vector(*alone), 1e-9));
      CHECK(torch::equal(of_rank, weights[0]));
    }
  }
}

TEST_CASE("tied parameters are laid out once, and again nowhere else", "[ddp]") {
  run_ranks(2, [](ProcessGroup& process_group) {
    for (uint64_t seed = 0, tied = 0; tied < 10; ++seed) {
      RandomModel model = make_model(seed);
      if (ddp::trainable_parameters(*model).size() == model->parameters().size()) {
        continue;
      }
      ++tied;
      ddp::DistributedDataParallel parallel_model(model, process_group);
      const ddp::FlatParameters flat = ddp::flatten_parameters(*model);
      const ddp::FlatParameters again = ddp::flatten_parameters(*model);
      TORCH_CHECK(flat.data.is_alias_of(again.data) && flat.grad.is_alias_of(again.grad),
                  "laid out again");
    }
  });
}

namespace {

/// What each of two ranks says when they wrap their `model_of(rank)`; empty if it takes it.
std::vector<std::string> refusals(const std::function<torch::nn::Linear(int rank)>& model_of) {
  std::vector<std::string> messages(2);
  run_ranks(2, [&](ProcessGroup& process_group) {
    torch::nn::Linear model = model_of(process_group.rank());
    try {
      ddp::DistributedDataParallel parallel_model(model, process_group);
    } catch (const ddp::UsageError& error) {
      messages[static_cast<size_t>(process_group.rank())] = error.what();
    }
  });
  return messages;
}

}  // namespace

TEST_CASE("a parameter that is tied on one rank only is refused", "[ddp]") {
  const auto model_of = [](int rank) {
    torch::nn::Linear model(3, 3);
    model->register_parameter(
        "again", rank == 0 ? model->weight : model->weight.detach().clone().requires_grad_());
    return model;
  };
  for (const std::string& message : refusals(model_of)) {
    INFO(message);
    CHECK(message.find("tied to weight") != std::string::npos);
  }
}

TEST_CASE("two models with an optimizer each share a process group: a GAN", "[ddp]") {
  at::set_num_threads(1);
  const auto make_networks = [] {
    static std::mutex seed_mutex;
    const std::lock_guard<std::mutex> lock(seed_mutex);
    torch::manual_seed(5);
    torch::nn::Sequential generator(torch::nn::Linear(3, 5), torch::nn::Tanh(),
                                    torch::nn::Linear(5, 2));
    torch::nn::Sequential discriminator(torch::nn::Linear(2, 6), torch::nn::Tanh(),
                                        torch::nn::Linear(6, 1));
    generator->to(torch::kFloat64);
    discriminator->to(torch::kFloat64);
    return std::pair(generator, discriminator);
  };
  /// @param ranks whose batches are read, @param share of a loss that is theirs
  const auto train = [](const std::vector<int>& ranks, double share, const auto& generate,
                        const auto& judge, auto& generator_optimizer,
                        auto& discriminator_optimizer) {
    for (int step = 0; step < 6; ++step) {
      discriminator_optimizer.zero_grad();
      for (const int rank : ranks) {
        const torch::Tensor fake = generate(input_of(rank, step, 3)).detach();
        const torch::Tensor real = input_of(rank, 100 + step, 2);
        ((judge(real) - 1).square().mean() * share + judge(fake).square().mean() * share)
            .backward();
      }
      discriminator_optimizer.step();
      generator_optimizer.zero_grad();
      for (const int rank : ranks) {  // through both
        const torch::Tensor fake = generate(input_of(rank, 200 + step, 3));
        ((judge(fake) - 1).square().mean() * share).backward();
      }
      generator_optimizer.step();
    }
  };
  const auto weights_of = [](const auto& networks) {
    return torch::cat(
        {ddp::parameter_vector(*networks.first), ddp::parameter_vector(*networks.second)});
  };
  for (const int world_size : {2, 3}) {
    std::vector<int> all_ranks(static_cast<size_t>(world_size));
    std::iota(all_ranks.begin(), all_ranks.end(), 0);
    auto alone = make_networks();
    torch::optim::SGD generator_alone(alone.first->parameters(), 0.1);
    torch::optim::SGD discriminator_alone(alone.second->parameters(), 0.1);
    train(
        all_ranks, 1.0 / world_size,
        [&](const torch::Tensor& input) { return alone.first->forward(input); },
        [&](const torch::Tensor& input) { return alone.second->forward(input); }, generator_alone,
        discriminator_alone);
    for (const std::string backend : {"gloo", "shm"}) {
      for (const bool stock : {false, true}) {
        for (const int64_t bucket_bytes : {int64_t{1}, int64_t{1} << 30}) {
          std::vector<torch::Tensor> weights(static_cast<size_t>(world_size));
          run_ranks(
              world_size,
              [&](ProcessGroup& process_group) {
                auto networks = make_networks();
                const ddp::DistributedDataParallelOptions buckets{
                    .bucket_bytes = bucket_bytes, .first_bucket_bytes = bucket_bytes};
                ddp::DistributedDataParallel generator(networks.first, process_group, buckets);
                ddp::DistributedDataParallel discriminator(networks.second, process_group, buckets);
                const auto generate = [&](const torch::Tensor& input) {
                  return generator.forward(input);
                };
                const auto judge = [&](const torch::Tensor& input) {
                  return discriminator.forward(input);
                };
                const std::vector<int> own{process_group.rank()};
                if (stock) {
                  torch::optim::SGD first(networks.first->parameters(), 0.1);
                  torch::optim::SGD second(networks.second->parameters(), 0.1);
                  train(own, 1.0, generate, judge, first, second);
                } else {
                  ddp::Options options;
                  options.optimizer = "sgd";
                  options.learning_rate = 0.1;
                  ddp::Optimizer first(*networks.first, options, &process_group);
                  ddp::Optimizer second(*networks.second, options, &process_group);
                  train(own, 1.0, generate, judge, first, second);
                }
                weights[static_cast<size_t>(process_group.rank())] = weights_of(networks);
              },
              backend);
          INFO(backend << ", world size " << world_size << ", stock optimizers " << stock
                       << ", bucket bytes " << bucket_bytes);
          for (const torch::Tensor& of_rank : weights) {
            CHECK(close(of_rank, weights_of(alone), 1e-12));
            CHECK(torch::equal(of_rank, weights[0]));
          }
        }
      }
    }
  }
}

TEST_CASE("texts of an earlier exchange are not taken for this one's", "[ddp]") {
  run_ranks(2, [](ProcessGroup& process_group) {
    for (const std::string text : {"first", "second"}) {
      if (process_group.rank() == 1 && text == "second") {
        // Rank 0 is there first, and only the text of before is in the store.
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      }
      process_group.verify_same("model", text);
      TORCH_CHECK(process_group.share("outcome", text) == text, "shared another text");
    }
  });
}

TEST_CASE("a backward that outlives its DistributedDataParallel leaves it alone", "[ddp]") {
  std::vector<size_t> all_reduces(2);
  std::vector<double> gradients(2);
  run_ranks(2, [&](ProcessGroup& process_group) {
    const auto rank = static_cast<size_t>(process_group.rank());
    torch::nn::Linear first(1, 1);
    torch::nn::Linear second(1, 1);
    torch::nn::Sequential model(first, second);
    auto parallel_model =
        std::make_unique<ddp::DistributedDataParallel<torch::nn::Sequential>>(model, process_group);
    process_group.enable_wait_timer();
    std::latch reached(1);
    std::latch go_on(1);
    const torch::Tensor middle = first->forward(torch::ones({1, 1}));
    middle.register_hook([&](const torch::Tensor& gradient) {
      reached.count_down();
      go_on.wait();
      return gradient;
    });
    const torch::Tensor output = second->forward(middle);
    std::thread backward([&] { output.sum().backward(); });
    reached.wait();  // the hooks of `second` have run
    parallel_model.reset();
    process_group.take_wait();
    go_on.count_down();
    backward.join();
    all_reduces[rank] = process_group.take_wait().all_reduce_bytes.size();
    gradients[rank] = second->bias.grad().item<double>();
  });
  CHECK(all_reduces == std::vector<size_t>{0, 0});
  CHECK(gradients == std::vector<double>{1, 1});
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

TEST_CASE("buckets are those of torch: 1 MiB first, then 25", "[ddp]") {
  const ddp::DistributedDataParallelOptions defaults;
  CHECK(defaults.first_bucket_bytes == 1 << 20);
  CHECK(defaults.bucket_bytes == 25 << 20);
  for (uint64_t seed = 0; seed < 5; ++seed) {
    std::mt19937_64 random(seed);
    torch::nn::Module module;
    std::vector<torch::Tensor> backwards;
    for (int i = 0; i < 60; ++i) {
      // Up to 4 MiB, and a multiple of 64 bytes, so that there is nothing between them.
      const auto numel = static_cast<int64_t>(16 * (1 + random() % (1 << 16)));
      backwards.insert(backwards.begin(),
                       module.register_parameter(fmt::format("p{}", i), torch::empty({numel})));
    }
    std::vector<size_t> sizes;
    for (const ddp::BucketRange& range :
         ddp::bucket_ranges(ddp::flatten_parameters(module), defaults)) {
      sizes.push_back(range.parameters);
    }
    const auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
        backwards, {static_cast<size_t>(1) << 20, static_cast<size_t>(25) << 20}));
    std::vector<size_t> expected;
    for (const std::vector<size_t>& bucket : buckets) {
      expected.push_back(bucket.size());
    }
    INFO("seed " << seed);
    CHECK(expected.size() > 2);
    CHECK(sizes == expected);
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
  using torch::nn::Linear;
  const auto changed = [](const auto& change) {
    Linear model(3, 2);
    change(*model);
    return model;
  };
  const auto with_parameters = [&](std::initializer_list<const char*> names) {
    return changed([&](torch::nn::LinearImpl& model) {
      for (const char* const name : names) {
        model.register_parameter(name, torch::ones({4}));
      }
    });
  };
  const auto with_buffer = [&](const torch::Tensor& buffer) {
    return changed([&](torch::nn::LinearImpl& model) { model.register_buffer("mean", buffer); });
  };
  struct Case {
    Linear first;  // rank 0's
    Linear second;
    const char* says;
  };
  const std::vector<Case> cases = {
      {Linear(3, 2), Linear(3, 5),
       R"(rank 1 has "weight [5, 3] float", rank 0 has "weight [2, 3] float")"},
      {Linear(3, 2), Linear(2, 3),
       R"(rank 1 has "weight [3, 2] float", rank 0 has "weight [2, 3] float")"},
      {Linear(3, 2), changed([](auto& model) { model.to(torch::kFloat64); }),
       R"(rank 1 has "weight [2, 3] double", rank 0 has "weight [2, 3] float")"},
      {Linear(3, 2), changed([](auto& model) { model.bias.set_data(model.bias.to(torch::kHalf)); }),
       R"(rank 1 has "bias [2] c10::Half", rank 0 has "bias [2] float")"},
      {Linear(3, 2), Linear(torch::nn::LinearOptions(3, 2).bias(false)),
       R"(rank 1 has "", rank 0 has "bias [2] float")"},
      {Linear(3, 2), with_parameters({"a"}), R"(rank 1 has "a [4] float", rank 0 has "")"},
      {with_parameters({"b"}), with_parameters({"a"}),
       R"(rank 1 has "a [4] float", rank 0 has "b [4] float")"},
      {with_parameters({"a", "b"}), with_parameters({"b", "a"}),
       R"(rank 1 has "b [4] float", rank 0 has "a [4] float")"},
      {Linear(3, 2), changed([](auto& model) { model.weight.set_requires_grad(false); }),
       R"(rank 1 has "weight [2, 3] float frozen", rank 0 has "weight [2, 3] float")"},
      {Linear(3, 2), with_buffer(torch::ones({4})),
       R"(rank 1 has "mean [4] float buffer", rank 0 has "")"},
      {with_buffer(torch::ones({4})), with_buffer(torch::ones({3})),
       R"(rank 1 has "mean [3] float buffer", rank 0 has "mean [4] float buffer")"},
      {with_buffer(torch::ones({4})), with_buffer(torch::ones({4}, torch::kLong)),
       R"(rank 1 has "mean [4] long int buffer", rank 0 has "mean [4] float buffer")"}};
  for (const auto& [first, second, says] : cases) {
    for (const std::string& message :
         refusals([&](int rank) { return rank == 0 ? first : second; })) {
      CHECK(message == fmt::format("model: {}, expected the same", says));
    }
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
