// The wrapper: its gradients equal the gradients of c10d::Reducer, the engine of Python's DDP, and
// of a single process, for any model, bucket size and backend.
#include "common/parallel/distributed_data_parallel.hpp"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <atomic>
#include <random>
#include <sstream>

#include "common/base/exit_codes.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/parallel/sync_batch_norm.hpp"
#include "common/training/optimizer.hpp"
#include "docs/your_model/power_sgd.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/count_allocations.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace {

using ddp::BucketSizes;
using ddp::DistributedDataParallel;
using ddp::ProcessGroup;
using torch::nn::Linear;
using torch::nn::Sequential;

/// Runs a layer's forward again in backward, like torch.utils.checkpoint.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, Linear layer,
                               const torch::Tensor& input, const torch::Tensor& /*leaf*/) {
    context->saved_data["input"] = input.detach();
    context->saved_data["layer"] = reinterpret_cast<int64_t>(layer.get());
    const torch::NoGradGuard no_grad;
    return layer->forward(input);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto& layer = *reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    const torch::AutoGradMode with_grad(true);
    const torch::Tensor input = context->saved_data["input"].toTensor().requires_grad_();
    layer.forward(input).backward(gradients[0]);
    return {torch::Tensor(), input.grad(), torch::Tensor()};
  }
};

/// Stack of linear layers of random widths in float64. The seed's bits add layers that no forward
/// uses (1), frozen layers (2), parameters and layers with two names that are used twice (4),
/// layers that only some forwards use (8), layers of float32, bfloat16 or float16 (16), batch norms
/// with their buffers (32), layers that are computed again in backward (64), the first of them with
/// a leaf that makes it need a gradient (128), gradients that are lazily negated (256), and complex
/// parameters with gradients that are lazily conjugated (512).
struct RandomModelImpl : torch::nn::Module {
  explicit RandomModelImpl(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto has = [bits = std::mt19937_64(~seed)(), &random](uint64_t bit) {
      return (bits & bit) != 0 && random() % 2 != 0;
    };
    std::vector<int64_t> widths(2 + random() % 4);
    std::ranges::generate(widths, [&] { return 1 + static_cast<int64_t>(random() % 9); });
    in_features = widths.front();
    for (size_t i = 0; i + 1 < widths.size(); ++i) {
      const std::string number = std::to_string(i);
      const auto layer = torch::nn::LinearOptions(widths[i], widths[i + 1]).bias(random() % 2);
      layers.push_back(register_module("layer" + number, Linear(layer)));
      tied.push_back(has(4) ? register_parameter("tied" + number, layers.back()->weight)
                            : torch::Tensor());
      if (has(4)) {
        register_module("again" + number, layers.back());
      }
      optional.push_back(has(8) ? register_module("optional" + number, Linear(layer))
                                : Linear(nullptr));
      if (has(1)) {
        register_module("unused" + number, Linear(3, 2));
      }
      if (i > 0 && has(2)) {
        layers.back()->weight.set_requires_grad(false);
      }
      norms.push_back(
          has(32) ? register_module("norm" + number, torch::nn::BatchNorm1d(layer.in_features()))
                  : torch::nn::BatchNorm1d(nullptr));
      is_again.push_back(!tied.back().defined() && has(i > 0 ? 64 : 128));
      recomputes = recomputes || is_again.back();
      negated.push_back(has(256) ? register_parameter("negated" + number, torch::tensor(0.5))
                                 : torch::Tensor());
      if (negated.back().defined()) {
        negated.back().register_hook([](const torch::Tensor& of) { return _neg_view(of); });
      }
    }
    to(torch::kFloat64);
    if (has(512)) {
      phase = register_parameter("phase", torch::randn({widths.back()}, torch::kComplexDouble));
      phase.register_hook([](const torch::Tensor& gradient) { return gradient.conj(); });
    }
    for (Linear& layer : layers) {
      if (has(16)) {
        const auto types = {torch::kFloat32, torch::kBFloat16, torch::kHalf};
        layer->to(types.begin()[random() % types.size()]);
        is_rounded = true;
      }
    }
  }
  /// @param options bit i: use the i-th optional layer
  torch::Tensor forward(torch::Tensor activation, uint64_t options) {
    for (size_t i = 0; i < layers.size(); ++i) {
      if (!norms[i].is_empty()) {
        activation = norms[i]->forward(activation);
      }
      const torch::Tensor input = activation.to(layers[i]->weight.dtype());
      torch::Tensor next = torch::tanh(is_again[i] ? Checkpoint::apply(layers[i], input, leaf)
                                                   : layers[i]->forward(input))
                               .to(torch::kFloat64);
      if (tied[i].defined()) {
        next = next + torch::sin(torch::linear(input, tied[i]));
      }
      if (!optional[i].is_empty() && (options >> i) % 2 != 0) {
        next = next * torch::cos(optional[i]->forward(activation));
      }
      activation = negated[i].defined() ? next + negated[i] : next;
    }
    return phase.defined() ? torch::real((activation * phase).conj() * phase[0]) : activation;
  }
  int64_t in_features = 0;
  std::vector<Linear> layers;
  std::vector<torch::Tensor> tied;  // undefined: no second name
  std::vector<Linear> optional;
  std::vector<torch::nn::BatchNorm1d> norms;
  std::vector<bool> is_again;
  std::vector<torch::Tensor> negated;
  torch::Tensor phase;
  torch::Tensor leaf = torch::zeros({}, torch::requires_grad());
  bool recomputes = false;
  bool is_rounded = false;
};
TORCH_MODULE(RandomModel);

RandomModel make_model(uint64_t seed) {
  static std::mutex mutex;  // ranks are threads with the same generator
  const std::lock_guard<std::mutex> lock(mutex);
  torch::manual_seed(seed);
  return RandomModel(seed);
}

/// Input that is different for every rank, micro-batch and element, so that mix-ups are noticed.
torch::Tensor input_of(int rank, int micro_batch, int64_t in_features) {
  at::Generator generator =
      at::detail::createCPUGenerator(static_cast<uint64_t>(1000 * rank + micro_batch + 1));
  return torch::randn({4, in_features}, generator, torch::kFloat64);
}

/// Loss of a rank's micro-batch. The used optional layers differ between ranks, too.
torch::Tensor loss_of(auto& model_or_wrap, int64_t in_features, int step, int rank,
                      int micro_batch) {
  const auto random = std::mt19937(static_cast<uint32_t>((step * 16 + rank) * 16 + micro_batch))();
  return model_or_wrap.forward(input_of(rank, micro_batch, in_features), random).square().mean();
}

/// Gradients in order, with zeros for parameters without a gradient.
torch::Tensor gradients(const torch::nn::Module& module) {
  std::vector<torch::Tensor> all;
  for (const torch::Tensor& parameter : module.parameters()) {
    const torch::Tensor& gradient = parameter.grad();
    TORCH_CHECK(!gradient.defined() || gradient.dtype() == parameter.dtype(), gradient.dtype());
    const torch::Tensor value =
        gradient.defined() ? gradient.detach() : torch::zeros_like(parameter);
    all.push_back((value.is_complex() ? torch::view_as_real(value.resolve_conj()) : value)
                      .flatten()
                      .to(torch::kFloat64));
  }
  return torch::cat(all);
}

/// False for NaN.
bool close(const torch::Tensor& a, const torch::Tensor& b, double tolerance) {
  return torch::allclose(a, b, /*rtol=*/0, tolerance);
}

/// c10d::Reducer as torch.nn.parallel.DistributedDataParallel makes it, with unused parameters.
std::unique_ptr<c10d::Reducer> make_reducer(const torch::nn::Module& module,
                                            const ProcessGroup& group) {
  constexpr int64_t kFirstBucketBytes = 1 << 20, kBucketBytes = 25 << 20;
  std::vector<torch::Tensor> parameters = ddp::trainable_parameters(module);
  auto buckets = std::get<0>(
      c10d::compute_bucket_assignment_by_size(parameters, {kFirstBucketBytes, kBucketBytes}));
  std::ranges::reverse(buckets);  // backward produces the last gradients first
  std::vector<bool> sparse(parameters.size(), false);
  return std::make_unique<c10d::Reducer>(
      std::move(parameters), std::move(buckets), group.c10d_group(), std::move(sparse),
      kBucketBytes, /*find_unused_parameters=*/true, /*gradient_as_bucket_view=*/true,
      /*param_names=*/std::unordered_map<size_t, std::string>{}, kFirstBucketBytes,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
}

/// Runs `body` on ranks. @return the tensor of each rank
std::vector<torch::Tensor> of_ranks(int world_size, const std::string& backend, const auto& body) {
  std::vector<torch::Tensor> results(static_cast<size_t>(world_size));
  const auto on_rank = [&](ProcessGroup& group) {
    results[static_cast<size_t>(group.rank())] = body(group).clone();
  };
  run_ranks(world_size, on_rank, backend);
  return results;
}

/// Checks that all ranks have the same bits, close to the expected values.
void check_all(const std::vector<torch::Tensor>& of_ranks, const torch::Tensor& expected,
               double tolerance) {
  for (const torch::Tensor& of_rank : of_ranks) {
    CHECK(close(of_rank, expected, tolerance));
    CHECK(torch::equal(of_rank, of_ranks[0]));
  }
}

}  // namespace

TEST_CASE("gradients are those of c10d::Reducer, gradients and weights those of one process",
          "[ddp]") {
  at::set_num_threads(1);
  for (uint64_t seed = 0; seed < 256; ++seed) {
    const std::string backend = seed % 4 == 0 ? "gloo" : "shm";
    const int world_size = 1 + static_cast<int>(seed / 4 % 4);
    const int micro_batches = 1 + static_cast<int>(seed / 16 % 3);
    const int64_t bucket_bytes = std::vector<int64_t>{1, 64, 256, 1 << 30}[seed / 3 % 4];
    const bool to_none = world_size > 1 && seed / 2 % 2 != 0;
    const bool no_sync = seed / 5 % 2 != 0;  // false: every micro-batch's backward communicates
    const bool loads = seed / 7 % 2 != 0;  // after the wrap, between steps
    /// Makes four steps. @return the first step's gradients and the last step's weights
    const auto train = [&](RandomModel& model, bool sets_to_none, const auto& backward) {
      ddp::Options options;
      options.optimizer = std::vector{"sgd", "momentum", "adam", "adamw"}[seed / 4 % 4];
      const auto optimizer = ddp::make_optimizer(ddp::trainable_parameters(*model), options);
      torch::Tensor first;
      for (int step = 0; step < 4; ++step) {
        optimizer->zero_grad(sets_to_none);
        backward(step);
        first = step == 0 ? gradients(*model) : first;
        optimizer->step();
      }
      // Optimizers enlarge rounding so much that weights cannot be compared. They have no complex
      // numbers.
      return model->is_rounded || model->phase.defined()
                 ? first
                 : torch::cat({first, ddp::parameter_vector(*model)});
    };
    INFO(backend << ", seed " << seed << ", world size " << world_size << ", " << micro_batches
                 << " micro-batches, bucket bytes " << bucket_bytes << ", gradients to none "
                 << to_none << ", no_sync " << no_sync);

    RandomModel alone = make_model(seed);
    for (const torch::Tensor& parameter : ddp::trainable_parameters(*alone)) {
      if (world_size > 1) {  // see Note [Unused parameters]
        parameter.mutable_grad() = torch::zeros_like(parameter);
      }
    }
    const torch::Tensor expected = train(alone, /*sets_to_none=*/false, [&](int step) {
      for (int rank = 0; rank < world_size; ++rank) {
        for (int m = 0; m < micro_batches; ++m) {
          (loss_of(*alone, alone->in_features, step, rank, m) / world_size).backward();
        }
      }
    });
    const auto ours = of_ranks(world_size, backend, [&](ProcessGroup& group) {
      RandomModel model = make_model(seed);
      DistributedDataParallel wrap(model, group, {.buckets = {bucket_bytes, bucket_bytes}});
      return train(model, to_none, [&](int step) {
        if (loads && step == 1) {
          std::stringstream file;
          torch::save(model, file);
          torch::load(model, file);
        }
        for (int m = 0; m < micro_batches; ++m) {
          const ddp::NoSync scope = wrap.no_sync(no_sync && m + 1 < micro_batches);
          loss_of(wrap, model->in_features, step, group.rank(), m).backward();
        }
      });
    });
    const double rounding =
        alone->is_rounded ? 0x1p-6 * (1 + expected.abs().max().item<double>()) : 1e-12;
    check_all(ours, expected, alone->is_rounded ? rounding : 1e-9);
    if (alone->recomputes) {
      continue;  // the Reducer finds no parameters within a backward
    }
    const auto theirs = of_ranks(world_size, backend, [&](ProcessGroup& group) {
      RandomModel model = make_model(seed);
      const auto reducer = make_reducer(*model, group);
      for (int m = 0; m < micro_batches; ++m) {
        const torch::Tensor loss = loss_of(*model, model->in_features, /*step=*/0, group.rank(), m);
        if (m + 1 == micro_batches) {
          reducer->prepare_for_backward({loss});
        }
        loss.backward();
      }
      return gradients(*model);
    });
    check_all(theirs, ours[0].narrow(0, 0, theirs[0].numel()), rounding);
  }
}

TEST_CASE("two wraps share a process group and a backward, as in a GAN", "[ddp]") {
  const int64_t bytes = GENERATE(1, 1 << 30);
  on_any_ranks([bytes](ProcessGroup& group) {
    DistributedDataParallel generator(Linear(1, 1), group, {.buckets = {bytes, bytes}});
    DistributedDataParallel discriminator(Linear(1, 1), group, {.buckets = {bytes, bytes}});
    const torch::Tensor mean_input = torch::full({1, 1}, (group.world_size() + 1) / 2.0);
    for (int step = 0; step < 3; ++step) {
      for (const bool generator_learns : {false, true}) {
        generator->zero_grad();
        discriminator->zero_grad();
        const torch::Tensor fake = generator.forward(torch::full({1, 1}, group.rank() + 1.0));
        discriminator.forward(generator_learns ? fake : fake.detach()).backward();
        const torch::Tensor mean_fake = generator->forward(mean_input);
        TORCH_CHECK(close(discriminator->weight.grad(), mean_fake, 1e-5), "got ",
                    discriminator->weight.grad(), ", expected ", mean_fake);
        TORCH_CHECK(generator->weight.grad().defined() == generator_learns);
        TORCH_CHECK(!generator_learns ||
                    close(generator->weight.grad(), discriminator->weight * mean_input, 1e-5));
      }
    }
  });
}

TEST_CASE("a hook takes the place of each bucket's all-reduce", "[hook]") {
  const std::string backend = GENERATE("gloo", "shm");
  const int64_t bytes = GENERATE(1, 1 << 30);
  const size_t buckets = bytes == 1 ? 2 : 1;
  std::atomic<size_t> calls = 0;
  const auto results = of_ranks(3, backend, [&](ProcessGroup& group) {
    Linear model(5, 4);
    DistributedDataParallel wrap(model, group, {.buckets = {bytes, bytes}});
    size_t index = 0;
    wrap.register_comm_hook([&](const ProcessGroup& of_hook, const ddp::GradBucket& bucket) {
      ++calls;
      TORCH_CHECK(bucket.index == index, "got bucket ", bucket.index);
      index = bucket.is_last ? 0 : index + 1;
      TORCH_CHECK(bucket.is_last == (bucket.index + 1 == buckets));
      TORCH_CHECK(bucket.gradients.size() == 2 / buckets);
      for (size_t i = 0; i < bucket.gradients.size(); ++i) {
        TORCH_CHECK(bucket.gradients[i].is_same(bucket.parameters[i].grad()) &&
                    bucket.gradients[i].is_alias_of(bucket.buffer));
      }
      return [&of_hook, bucket] { of_hook.broadcast(bucket.buffer, /*root=*/2); };
    });
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      wrap.forward(input_of(group.rank(), step, 5).to(torch::kFloat32)).sum().backward();
    }
    return gradients(*model);
  });
  CHECK(calls == 3 * 2 * buckets);
  Linear alone(5, 4);
  alone->forward(input_of(2, 1, 5).to(torch::kFloat32)).sum().backward();
  check_all(results, gradients(*alone), 0);
}

TEST_CASE("bf16_compress_hook() gives the mean to bfloat16's precision", "[hook]") {
  const std::string backend = GENERATE("gloo", "shm");
  const int world_size = GENERATE(2, 3, 4);
  const auto results = of_ranks(world_size, backend, [](ProcessGroup& group) {
    Linear model(torch::nn::LinearOptions(6, 7).bias(false));
    DistributedDataParallel wrap(model, group);
    wrap.register_comm_hook(ddp::bf16_compress_hook);
    wrap.forward(torch::arange(6).view({1, 6}) / 5 + group.rank() + 1.01).sum().backward();
    return gradients(*model);
  });
  const double mean = (world_size - 1) / 2.0 + 1.01;
  const torch::Tensor exact = (torch::arange(6, torch::kFloat64) / 5 + mean).repeat({7});
  CHECK_FALSE(close(results[0], exact, 1e-6));
  check_all(results, results[0], 0);
  // Each rank's part is rounded once, and the sum after each addition.
  check_all(results, exact, (mean + 1) * 2 * world_size * 0x1p-8);
}

TEST_CASE("--bucket-mib: the first bucket has 1 MiB, or less", "[buckets]") {
  CHECK(ddp::bucket_sizes(3).first_bytes == 1 << 20);
  CHECK(ddp::bucket_sizes(0.25).first_bytes == 262144);
  CHECK(ddp::bucket_sizes(1e-9).bytes == 1);
}

TEST_CASE("shm's mean is the sum in the order of the ranks, divided, to the bit", "[buckets]") {
  run_ranks(
      3,
      [](ProcessGroup& group) {
        const auto of_rank = [](int rank) {
          return torch::arange(1, 65).div(10 + rank).view({1, 64});
        };
        Linear model(torch::nn::LinearOptions(64, 1).bias(false));
        DistributedDataParallel wrap(model, group);
        wrap.forward(of_rank(group.rank())).sum().backward();
        const torch::Tensor expected = (of_rank(0) + of_rank(1) + of_rank(2)) / 3;
        TORCH_CHECK(model->weight.grad().equal(expected), model->weight.grad() - expected);
      },
      "shm");
}

TEST_CASE("of two types' buckets the one that is full first goes first", "[buckets]") {
  run_ranks(2, [](ProcessGroup& group) {
    std::vector<torch::Tensor> parameters;
    for (const auto dtype : {torch::kFloat64, torch::kFloat32, torch::kFloat32, torch::kFloat64}) {
      parameters.push_back(torch::ones({2}, dtype).requires_grad_());
    }
    const ddp::GradientBuckets buckets(parameters, group, BucketSizes{1 << 20, 1 << 20}, {});
    TORCH_CHECK(buckets.parameters_of(0) == std::vector<size_t>({2, 1}));
    TORCH_CHECK(buckets.parameters_of(1) == std::vector<size_t>({3, 0}));
  });
}

TEST_CASE("a step's communication allocates nothing over shm", "[buckets][allocations]") {
  std::atomic<uint64_t> counted = 0;
  const auto on_rank = [&](ProcessGroup& group) {
    Linear model(300, 100);
    ddp::GradientBuckets buckets(model->parameters(), group, BucketSizes{9000, 9000}, {});
    const auto run = [&](int steps) {
      for (int step = 0; step < steps; ++step) {
        for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
          buckets.start(bucket);
        }
        buckets.finish();
      }
      group.barrier();
    };
    run(5);
    const uint64_t before = allocations();
    run(100);
    if (group.rank() == 0) {
      counted = allocations() - before;
    }
  };
  run_ranks(2, on_rank, "shm");
  CHECK(counted < 50);  // in 100 steps: only the barrier allocates
}

TEST_CASE("a different model or option on one rank is refused by name, before any collective",
          "[ddp]") {
  const auto changed = [](const std::function<void(torch::nn::LinearImpl&)>& change) {
    Linear model(3, 2);
    change(*model);
    return model;
  };
  const auto with_buffer = [&](const torch::Tensor& buffer) {
    return changed([&](auto& model) { model.register_buffer("mean", buffer); });
  };
  const auto with_name = [&](const char* name, bool tied) {
    return changed([&](auto& model) {
      model.register_parameter(name, tied ? model.weight : torch::ones({2, 3}));
    });
  };
  struct Case {
    const char* says;
    Linear of_rank_1 = Linear(3, 2);
    Linear of_rank_0 = Linear(3, 2);
    ddp::DistributedDataParallelOptions options = {};  // of rank 1
  };
  const std::vector<Case> cases = {
      {R"("weight [3, 2] float", rank 0 has "weight [2, 3] float")", Linear(2, 3)},
      {R"("weight [2, 3] double", rank 0 has "weight [2, 3] float")",
       changed([](auto& model) { model.to(torch::kFloat64); })},
      {R"("", rank 0 has "bias [2] float")", Linear(torch::nn::LinearOptions(3, 2).bias(false))},
      {R"("a [2, 3] float", rank 0 has "b [2, 3] float")", with_name("a", false),
       with_name("b", false)},
      {R"("a [2, 3] float", rank 0 has "a [2, 3] float tied to weight")", with_name("a", false),
       with_name("a", true)},
      {R"("weight [2, 3] float frozen", rank 0 has "weight [2, 3] float")",
       changed([](auto& model) { model.weight.set_requires_grad(false); })},
      {R"("weight [2, 3] float strides [1, 2]", rank 0 has "weight [2, 3] float")",
       changed([](auto& model) {
         model.weight.set_data(torch::ones({3, 2}).t());
       })},
      {R"("mean [4] long int buffer", rank 0 has "mean [4] float buffer")",
       with_buffer(torch::ones({4}, torch::kLong)), with_buffer(torch::ones({4}))},
      {.says = R"("bucket bytes 1048576 and 7", rank 0 has "bucket bytes 1048576 and 26214400")",
       .options = {.buckets = {.bytes = 7}}},
      {.says = R"("broadcast_buffers 0", rank 0 has "broadcast_buffers 1")",
       .options = {.broadcast_buffers = false}}};
  for (const Case& one : cases) {
    std::vector<std::string> messages(2);
    run_ranks(2, [&](ProcessGroup& group) {
      messages[static_cast<size_t>(group.rank())] = message_of<ddp::UsageError>([&] {
        group.rank() == 0 ? DistributedDataParallel(one.of_rank_0, group)
                          : DistributedDataParallel(one.of_rank_1, group, one.options);
      });
    });
    const std::string expected = fmt::format("model: rank 1 has {}, expected the same", one.says);
    CHECK(messages == std::vector<std::string>{expected, expected});
  }
}

TEST_CASE("no_sync() nests; a model outlives its wrap, and can be wrapped again", "[ddp]") {
  run_ranks(2, [](ProcessGroup& group) {
    Linear model(1, 1);
    const torch::Tensor buffer = model->register_buffer("own", torch::zeros({1}));
    const double own = group.rank() + 1;
    const auto expect = [&](double expected, auto&& forward) {
      model->zero_grad();
      forward.forward(torch::full({1, 1}, own)).sum().backward();
      const double gradient = model->weight.grad().item<double>();
      TORCH_CHECK(gradient == expected, "Expected ", expected, ", got ", gradient);
    };
    for (int round = 0; round < 2; ++round) {
      DistributedDataParallel wrap(model, group);
      expect(1.5, wrap);
      buffer.fill_(group.rank());
      const ddp::NoSync outer = wrap.no_sync();
      for (const bool active : {true, false}) {
        const ddp::NoSync inner = wrap.no_sync(active);
        expect(own, wrap);
        TORCH_CHECK(buffer.item<int>() == group.rank(), "the buffer was sent");
      }
    }
    expect(own, *model);
  });
}

namespace {

Linear one_weight() {
  return Linear(torch::nn::LinearOptions(1, 1).bias(false));
}

/// Hook that computes the mean, as without a hook, and counts.
struct MeanHook {
  int started = 0;
  int finished = 0;
  std::function<void()> operator()(const ProcessGroup& group, const torch::Tensor& bucket) {
    ++started;
    group.all_reduce(bucket, c10d::ReduceOp::AVG);
    return [this] { ++finished; };
  }
};

}  // namespace

TEST_CASE(
    "the mean of float16, where the sum is infinite, of sparse and of channels_last gradients",
    "[models]") {
  on_any_ranks([](ProcessGroup& group) {
    const int world_size = group.world_size();
    const auto expect_mean = [&](auto model, double rtol, const auto& input_of_rank) {
      const auto format = model->weight.suggest_memory_format();
      DistributedDataParallel wrap(model, group);
      const torch::Tensor weight = model->weight;
      torch::Tensor mean = torch::zeros_like(weight, torch::kFloat64);
      for (int rank = 0; rank < world_size; ++rank) {
        const torch::Tensor loss = model->forward(input_of_rank(rank)).sum();
        const torch::Tensor gradient = torch::autograd::grad({loss}, {weight})[0].to_dense();
        mean += gradient.to(torch::kFloat64) / world_size;
      }
      for (int step = 0; step < 3; ++step) {
        model->zero_grad();
        wrap.forward(input_of_rank(group.rank())).sum().backward();
        const torch::Tensor got = weight.grad().to_dense();  // a single rank's stays sparse
        TORCH_CHECK(torch::allclose(got.to(torch::kFloat64), mean, rtol), "got ", got);
        TORCH_CHECK(weight.is_contiguous(format) && got.is_contiguous(format), got.strides());
      }
    };
    Linear half = one_weight();
    half->to(torch::kHalf);
    expect_mean(half, 2e-3, [](int rank) {
      return torch::full({1, 1}, 40000.0 - 4000 * rank, torch::kHalf);
    });
    torch::nn::Embedding sparse(torch::nn::EmbeddingOptions(5, 2).sparse(true));
    expect_mean(sparse, 1e-5, [](int rank) { return torch::tensor({rank, 1, 1}, torch::kLong); });
    torch::nn::Conv2d conv(torch::nn::Conv2dOptions(4, 3, 2));
    conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    expect_mean(conv, 1e-5, [](int rank) {
      return torch::arange(100.0).view({1, 4, 5, 5}) * (rank + 1);
    });
  });
}

TEST_CASE("a layer that is frozen in mid-training stays where it is, is loaded, and learns again",
          "[models]") {
  on_any_ranks([](ProcessGroup& group) {
    Sequential model(Linear(3, 4), torch::nn::Tanh(), Linear(4, 2));
    const auto first = model[0]->parameters();
    DistributedDataParallel wrap(model, group);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.1));
    const auto step = [&](bool frozen) {
      for (const torch::Tensor& parameter : first) {
        parameter.set_requires_grad(!frozen);
      }
      model->to(torch::kFloat64);  // as torch::load: new accumulators
      model->to(torch::kFloat32);
      optimizer.zero_grad();
      wrap.forward(input_of(group.rank(), 0, 3).to(torch::kFloat32)).square().sum().backward();
      TORCH_CHECK(first[0].grad().defined() != frozen);
      for (const torch::Tensor& parameter : ddp::trainable_parameters(*model)) {
        const torch::Tensor means = group.all_gather(parameter.grad());
        TORCH_CHECK(means.eq(means[0]).all().item<bool>(), "got ", means);
      }
      optimizer.step();
      return ddp::parameter_vector(*model);
    };
    const torch::Tensor before = step(false);
    step(true);
    const torch::Tensor after = step(true);
    TORCH_CHECK(torch::equal(after.narrow(0, 0, 16), before.narrow(0, 0, 16)), "moved");
    TORCH_CHECK(after.narrow(0, 16, 10).ne(before.narrow(0, 16, 10)).all().item<bool>(), "stays");
    TORCH_CHECK(step(false).ne(after).all().item<bool>(), "stays");
    const torch::Tensor kept = model[2]->parameters()[0].set_requires_grad(false).grad();
    const torch::Tensor gradient = kept.clone();
    wrap.forward(torch::ones({4, 3})).square().sum().backward();
    TORCH_CHECK(torch::allclose(kept, gradient), "a gradient that is there stays as it is");
    Sequential other(Linear(3, 4), Linear(4, 2));
    DistributedDataParallel of_other(other, group);
    for (const torch::Tensor& parameter : other[1]->parameters()) {  // now last in the buckets
      parameter.set_requires_grad(false);
    }
    of_other.forward(torch::ones({4, 3})).sum().backward();
    TORCH_CHECK(!other[1]->parameters()[0].grad().defined(), "none, also in new buckets");
  });
}

TEST_CASE("parameters are rank 0's at first, buffers in every forward, two before a backward",
          "[models]") {
  const bool broadcast_buffers = GENERATE(true, false);
  on_any_ranks([&](ProcessGroup& group) {
    /// The parameters, one of them frozen, and the buffers of a rank.
    const auto of_rank = [](int rank) {
      const auto norm = [] { return torch::nn::BatchNorm1d(3); };
      Sequential model(norm(), norm());
      model->to(torch::kFloat64);
      model->parameters()[1].set_requires_grad(false);
      for (const auto& tensors : {model->parameters(), model->buffers()}) {
        for (const torch::Tensor& tensor : tensors) {
          tensor.detach().add_(rank);
        }
      }
      return model;
    };
    Sequential model = of_rank(group.rank());
    DistributedDataParallel wrap(model, group, {.broadcast_buffers = broadcast_buffers});
    const auto input = [](int rank, int step) { return input_of(rank, step, 3); };
    const torch::Tensor first = wrap.forward(input(group.rank(), 0));
    const torch::Tensor second = wrap.forward(input(group.rank(), 1));
    (first + second).square().sum().backward();
    model->eval();
    wrap.forward(input(group.rank(), 2));
    Sequential expected = of_rank(0);
    for (const int step : {0, 1}) {
      expected->forward(input(broadcast_buffers ? 0 : group.rank(), step));
    }
    for (size_t i = 0; i < expected->buffers().size(); ++i) {
      TORCH_CHECK(torch::allclose(model->buffers()[i], expected->buffers()[i]), "buffer ", i);
    }
    TORCH_CHECK(torch::equal(ddp::parameter_vector(*model), ddp::parameter_vector(*expected)));
  });
}

TEST_CASE("what would not be averaged is refused by name", "[models]") {
  on_any_ranks([](ProcessGroup& group) {  // a program fails alike, and not only on a cluster
    const auto forward_after = [&](const auto& change) {
      Linear model(2, 1);
      model->bias.set_requires_grad(false);
      DistributedDataParallel wrap(model, group);
      change(*model);
      return message_of<ddp::UsageError>([&] {
        wrap.forward(torch::ones({1, 2}, model->weight.options()));
      });
    };
    const auto ignoring = [&](const std::vector<std::string>& names) {
      return message_of<ddp::UsageError>(
          [&] { DistributedDataParallel(Linear(2, 1), group, {.ignored = names}); });
    };
    enum Role { kTrained, kFrozen, kBuffer };
    const auto with_new = [&](Role role, const torch::Tensor& tensor) {
      return message_of([&] {
        Linear model(2, 1);
        role == kBuffer ? model->register_buffer("new", tensor)
                        : model->register_parameter("new", tensor, role == kTrained);
        DistributedDataParallel wrap(model, group);
        wrap.forward(torch::ones({1, 2})).sum().backward();
      });
    };
    const torch::Tensor ones = torch::ones({3, 3});
    const torch::Tensor float8 = ones.to(torch::kFloat8_e4m3fn);
    const std::vector<std::pair<std::string, std::string>> refusals = {
        {"parameter weight was moved to another device, type or",
         forward_after([](auto& model) { model.to(torch::kFloat64); })},
        {"parameter bias was frozen when the model was wrapped",
         forward_after([](auto& model) { model.bias.set_requires_grad(true); })},
        {"parameter weight was moved to another device, type or",
         forward_after([](auto& model) { model.weight.set_data(model.weight.detach().t()); })},
        {"parameter new was added after the model was wrapped",
         forward_after([](auto& model) { model.register_parameter("new", torch::ones({1})); })},
        {"parameter more.weight was added after the model was",
         forward_after([](auto& model) { model.register_module("more", Linear(2, 1)); })},
        {"parameter 0.weight was added after the model was", message_of<ddp::UsageError>([&] {
           Sequential model(Linear(2, 2), Linear(2, 1));
           DistributedDataParallel wrap(model, group);
           model->replace_module("0", Linear(2, 2));  // before one that stays
           wrap.forward(torch::ones({1, 2}));
         })},
        {"ignored: got wight, expected a name of", ignoring({"wight"})},
        {"got a module none of whose parameters requires", ignoring({"weight", "bias"})},
        {"", forward_after([](auto& model) {
           model.to(torch::kFloat64);
           model.to(torch::kFloat32);
           model.register_parameter("frozen", torch::ones({1}), /*requires_grad=*/false);
           model.register_buffer("buffer", torch::ones({1}));
         })},
        {"parameter 1.weight belongs to another", message_of<ddp::UsageError>([&] {
           const Linear part(2, 1);
           const DistributedDataParallel inner(part, group);
           const DistributedDataParallel outer(Sequential(Linear(2, 2), part), group);
         })},
        {"Expected backward with create_graph=false, got", message_of<c10::Error>([&] {
           DistributedDataParallel wrap(Linear(2, 1), group);
           const torch::Tensor loss = wrap.forward(torch::ones({1, 2})).square().sum();
           loss.backward({}, {}, /*create_graph=*/true);
         })},
        {"parameter new is a CPUFloat8_e4m3fnType, expected a dense", with_new(kTrained, float8)},
        {"", with_new(kFrozen, float8)},
        {"parameter new is a SparseCPUFloatType, expected", with_new(kTrained, ones.to_sparse())},
        {"parameter new is a SparseCsrCPUFloatType, expe", with_new(kFrozen, ones.to_sparse_csr())},
        {"", with_new(kTrained, ones.to(torch::kComplexFloat).conj())},
        {"buffer new is a SparseCPULongType, expected",
         with_new(kBuffer, ones.to(torch::kLong).to_sparse())},
        {"buffer new is a QuantizedCPUQInt8Type, expected",
         with_new(kBuffer, at::quantize_per_tensor(ones, 0.1, 0, at::kQInt8))},
        {"buffer new is on meta, expected the process", with_new(kBuffer, ones.to(torch::kMeta))},
        {"", with_new(kBuffer, ones.to(torch::kBool))}};
    for (const auto& [begin, message] : refusals) {
      TORCH_CHECK(message.starts_with(begin) && message.empty() == begin.empty(), message);
    }
  });
}

TEST_CASE("failed backwards of all ranks at different layers leave nothing behind", "[models]") {
  const int64_t bytes = GENERATE(1, 8, 1 << 30);
  const bool to_none = GENERATE(true, false);
  on_any_ranks([bytes, to_none](ProcessGroup& group) {
    Linear first = one_weight();
    Linear second = one_weight();
    Linear third = one_weight();
    first->register_buffer("count", torch::ones({3}));  // is sent before a forward
    DistributedDataParallel wrap(Sequential(first, second, third), group,
                                 {.buckets = {bytes, bytes}});
    MeanHook hook;
    wrap.register_comm_hook(std::ref(hook));
    const auto backward = [&](bool fails) {
      torch::Tensor hidden = first->forward(torch::full({1, 1}, group.rank() + 1.0));
      for (auto [layer, fails_here] : {std::pair(second, 0), {third, 1}}) {
        if (fails && std::min(group.rank(), 1) == fails_here) {
          hidden.register_hook([](const torch::Tensor&) { throw std::domain_error("as told"); });
        }
        hidden = layer->forward(hidden);
      }
      hidden.backward();
    };
    wrap->train();
    const double all = (first->weight * second->weight * third->weight).item<double>();
    // After a failed backward gradients become none or 0, before or after the forward, or without.
    for (const int order : {0, 1, 2}) {
      for (const bool fails : {false, true, true, false}) {
        if (order == 0) {
          wrap->zero_grad(to_none);
        }
        if (order != 2) {
          wrap.forward(torch::ones({1, 1}));
        }
        if (order != 0) {
          wrap->zero_grad(to_none);
        }
        if (fails) {
          TORCH_CHECK(message_of<std::domain_error>([&] { backward(true); }) == "as told");
          continue;
        }
        backward(false);
        for (const torch::Tensor& parameter : wrap->parameters()) {
          const double expected = all / parameter.item<double>() * (group.world_size() + 1) / 2;
          const double mean = parameter.grad().item<double>();
          TORCH_CHECK(std::abs(mean - expected) < 1e-5, "Expected ", expected, ", got ", mean);
        }
      }
    }
    TORCH_CHECK(hook.finished == hook.started, hook.finished, " of ", hook.started, " ended");
  });
}

TEST_CASE("ignored parameters and buffers are each rank's own", "[models]") {
  on_any_ranks([](ProcessGroup& group) {
    const int rank = group.rank();
    const Linear part(2, 2);  // wrapped by itself
    const DistributedDataParallel of_part(part, group);
    Sequential model(Linear(2, 2), torch::nn::BatchNorm1d(2), part);
    std::vector<std::string> ignored = {"0.bias", "1.running_mean", "2.weight", "2.bias"};
    if (rank == 0) {  // only this rank has them
      model->register_parameter("adapter", torch::ones({2}, torch::kMeta));
      model->register_buffer("count", torch::ones({2}));
      ignored.insert(ignored.end(), {"adapter", "count"});
    }
    model[0]->parameters()[0].detach().fill_(rank);
    model[0]->parameters()[1].detach().fill_(rank);
    model[1]->buffers()[0].fill_(rank);
    DistributedDataParallel wrap(model, group, {.ignored = ignored});
    model->eval();
    (wrap.forward(torch::ones({1, 2})).sum() * (rank + 1)).backward();
    TORCH_CHECK(model[0]->parameters()[0].eq(0).all().item<bool>(), "rank 0's weight");
    TORCH_CHECK(model[0]->parameters()[1].eq(rank).all().item<bool>(), "its own bias");
    TORCH_CHECK(model[1]->buffers()[0].eq(rank).all().item<bool>(), "its own buffer");
    const double own = model[0]->parameters()[1].grad()[0].item<double>();
    const double mean = model[0]->parameters()[0].grad()[0][0].item<double>();
    TORCH_CHECK(std::abs(own / (rank + 1) * (group.world_size() + 1) / 2 - mean) < 1e-6,
                "Expected the mean of ", own, "'s, got ", mean);
  });
}

TEST_CASE("PowerSGD of rank 1 trains: what two vectors leave out comes with later steps",
          "[hook]") {
  on_any_ranks([](ProcessGroup& group) {
    Linear model(6, 5);
    PowerSgd power_sgd;
    DistributedDataParallel wrap(model, group);
    wrap.register_comm_hook(std::ref(power_sgd));
    const torch::Tensor before = model->weight.detach().clone();
    // The loss is linear, so the gradient is constant. Its mean over the ranks has full rank.
    const torch::Tensor gradient = torch::eye(5, 6) * (group.rank() + 1);
    constexpr int kSteps = 400;
    torch::optim::SGD optimizer(model->parameters(), 1.0 / kSteps);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      ((model->weight * gradient).sum() + model->bias.sum() * (group.rank() + 1)).backward();
      optimizer.step();
    }
    const torch::Tensor expected = torch::eye(5, 6) * ((group.world_size() + 1) / 2.0);
    const torch::Tensor moved = before - model->weight.detach();
    TORCH_CHECK((moved - expected).abs().le(0.1).all().item<bool>(), "moved ", moved);
    TORCH_CHECK(close(model->bias.grad(), torch::full({5}, (group.world_size() + 1) / 2.0), 1e-5));
  });
}

TEST_CASE("a layer that some steps do not use goes last, and holds up no bucket", "[buckets]") {
  const auto on_rank = [](ProcessGroup& group) {
    std::vector<Linear> layers = {one_weight(), one_weight(), one_weight(), one_weight()};
    DistributedDataParallel wrap(Sequential(layers[0], layers[1], layers[2], layers[3]), group,
                                 {.buckets = {1, 1}});
    MeanHook hook;
    wrap.register_comm_hook(std::ref(hook));
    std::vector<int> started_before;  // the first layer's gradient, by step
    for (int step = 0; step < 5; ++step) {
      wrap->zero_grad();
      hook.started = 0;
      torch::Tensor activation = layers[0]->forward(torch::ones({1, 1}));
      activation.register_hook(
          [&](const torch::Tensor&) { started_before.push_back(hook.started); });
      for (size_t layer = 1; layer < 4; ++layer) {
        const bool is_used = layer + static_cast<size_t>(step) != 5;
        activation = is_used ? layers[layer]->forward(activation) : activation;
      }
      activation.backward();
    }
    // Steps 2, 3 and 4 leave out layers 3, 2 and 1. After backward 4, 3 and 2 are the last.
    TORCH_CHECK(started_before == std::vector<int>({3, 3, 0, 1, 0}), started_before);
  };
  run_ranks(2, on_rank, GENERATE("gloo", "shm"));
}

TEST_CASE("a forward and a backward within a backward: each parameter once", "[models]") {
  on_any_ranks([](ProcessGroup& group) {
    Linear first(2, 2);
    Linear inside(2, 2);
    DistributedDataParallel wrap(Sequential(first, inside), group, {.buckets = {1, 1}});
    MeanHook hook;
    wrap.register_comm_hook(std::ref(hook));
    std::vector<torch::Tensor> losses;  // a program may keep them, with their graphs
    const auto backward = [&](bool also_outside, bool fails = false) {
      const torch::Tensor hidden = first->forward(torch::ones({1, 2}));
      torch::Tensor output = Checkpoint::apply(inside, hidden, torch::zeros({}));
      if (also_outside) {
        output = output + inside->forward(hidden);
      }
      hidden.register_hook([&wrap, fails](const torch::Tensor&) {
        if (fails) {
          throw std::domain_error("as told");
        }
        const torch::NoGradGuard no_grad;
        wrap.forward(torch::ones({1, 2}));
      });
      losses.push_back(output.sum() * (group.rank() + 1));
      losses.back().backward();
    };
    TORCH_CHECK(message_of<std::domain_error>([&] { backward(false, true); }) == "as told");
    wrap.forward(torch::ones({1, 2}));
    hook.started = 0;
    inside->zero_grad();
    backward(false);
    const double mean = inside->bias.grad()[0].item<double>();
    TORCH_CHECK(mean == (group.world_size() + 1) / 2.0, "Expected the mean, got ", mean);
    TORCH_CHECK(hook.started == (group.world_size() > 1 ? 4 : 0), "each bucket once");
    for (int step = 0; step < 3; ++step) {
      Checkpoint::apply(inside, first->weight, torch::zeros({})).sum().backward();
    }
    const auto accumulator = torch::autograd::impl::grad_accumulator(first->weight);
    TORCH_CHECK(accumulator->pre_hooks().size() == 1, "one for all steps");
    const std::string refusal = message_of<c10::Error>([&] { backward(true); });
    TORCH_CHECK(contains(refusal, "of parameter 1."), refusal);
  });
}

TEST_CASE("buckets are rebuilt in the order in which rank 0's gradients came", "[buckets]") {
  const auto on_rank = [](ProcessGroup& group) {
    // The order of registration differs from the order of use, which differs between ranks.
    std::vector<Linear> layers = {Linear(torch::nn::LinearOptions(2, 2).bias(false)), Linear(2, 2),
                                  Linear(2, 2), Linear(2, 2)};
    Sequential model(layers[0], layers[1], layers[2], layers[3]);
    DistributedDataParallel wrap(model, group, {.buckets = {1, 1}});
    const std::vector<torch::Tensor> parameters = model->parameters();
    std::vector<int64_t> order;
    torch::Tensor gradient;
    wrap.register_comm_hook([&](const ProcessGroup&, const ddp::GradBucket& bucket) {
      const torch::Tensor& own = bucket.parameters.at(0);
      const auto at = std::ranges::find_if(parameters, [&](auto& p) { return p.is_same(own); });
      order.push_back(at - parameters.begin());
      const torch::Tensor gap = bucket.buffer.slice(0, own.numel());
      TORCH_CHECK(gap.eq(0).all().item<bool>(), "values behind the gradient: ", bucket.buffer);
      gradient = parameters[6].grad();
      return [] {};
    });
    const std::vector<size_t> used =
        group.rank() == 0 ? std::vector<size_t>{2, 0, 3} : std::vector<size_t>{0, 3, 2};
    for (int step = 0; step < 2; ++step) {
      order.clear();
      model->zero_grad();
      torch::Tensor activation = torch::ones({1, 2});
      for (const size_t layer : used) {
        activation = layers[layer]->forward(activation);
      }
      activation.sum().backward();
    }
    TORCH_CHECK(gradient.is_same(parameters[6].grad()), "stays if the order stays");
    // Layers 3, 0, 2, each bias first; unused parameters last.
    TORCH_CHECK(order == std::vector<int64_t>({6, 5, 0, 4, 3, 2, 1}), order);
  };
  run_ranks(2, on_rank, GENERATE("gloo", "shm"));
}

TEST_CASE("SyncBatchNorm is BatchNorm of the whole batch, with any option, forward and backward",
          "[models]") {
  /// Images; ranks have 3, 4, 5, ... of them. The mean is far from zero.
  const auto rows_of = [](int rank, int step) {
    at::Generator generator =
        at::detail::createCPUGenerator(static_cast<uint64_t>(100 * step + rank));
    return torch::randn({3 + rank, 2, 3, 2}, generator, torch::kFloat64) * (rank + 1) + 1000;
  };
  /// Makes a step. @return the output and the gradient of the input
  const auto step = [](auto& model, const torch::Tensor& rows) {
    const torch::Tensor input = rows.detach().clone().requires_grad_();
    const torch::Tensor output = model->forward(input);
    // A gradient penalty, which needs second derivatives.
    const torch::Tensor slope = torch::autograd::grad(
        {output.pow(3).sum()}, {input}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    ((output - 0.5).pow(3).sum() + 0.1 * slope.square().sum()).backward();
    return torch::stack({output, input.grad()});
  };
  const auto expect = [](const char* what, const torch::Tensor& got, const torch::Tensor& wanted) {
    TORCH_CHECK(torch::allclose(got, wanted, 1e-7, 1e-7), what, ": got ", got, ", not ", wanted);
  };
  using Options = torch::nn::BatchNormOptions;
  const auto options = GENERATE(Options(2), Options(2).momentum(0.3),
                                Options(2).momentum(std::nullopt), Options(2).affine(false),
                                Options(2).eps(0.5), Options(2).track_running_stats(false));
  on_any_ranks([&](ProcessGroup& group) {
    const int rank = group.rank();
    ddp::SyncBatchNorm model(options, group);
    torch::nn::BatchNorm2d alone(options);
    model->to(torch::kFloat64);
    alone->to(torch::kFloat64);
    for (const auto& parameters : {model->parameters(), alone->parameters()}) {
      for (const torch::Tensor& parameter : parameters) {
        parameter.detach().mul_(0.5).add_(0.25);  // else weights are 1 and biases 0
      }
    }
    std::optional<DistributedDataParallel<ddp::SyncBatchNorm>> wrap;
    if (options.affine()) {  // else there are no gradients to average
      wrap.emplace(model, group);
    }
    const torch::Tensor empty = rows_of(0, 0).narrow(0, 0, 0).requires_grad_();
    const torch::Tensor output = model->forward(empty);  // no rank has a sample: nothing changes
    output.sum().backward();
    TORCH_CHECK(output.sizes() == empty.sizes() && empty.grad().numel() == 0);
    for (const int number : {0, 1}) {
      std::vector<torch::Tensor> all;
      for (int r = 0; r < group.world_size(); ++r) {
        all.push_back(rows_of(r, number));
      }
      const torch::Tensor whole = step(alone, torch::cat(all));
      const int64_t begin = (5 + rank) * rank / 2;  // 3 + 4 + ...
      expect("output and gradient", step(model, rows_of(rank, number)),
             whole.narrow(1, begin, 3 + rank));
    }
    for (size_t i = 0; i < alone->parameters().size(); ++i) {
      const torch::Tensor sum = model->parameters()[i].grad() * group.world_size();
      expect("gradient of a weight", sum, alone->parameters()[i].grad());
    }
    for (size_t i = 0; i < alone->buffers().size(); ++i) {
      TORCH_CHECK(torch::allclose(model->buffers()[i], alone->buffers()[i]), "buffer ", i);
    }
    model->eval();
    alone->eval();
    expect("evaluation", model->forward(rows_of(0, 0)), alone->forward(rows_of(0, 0)));
    model->train();
    model->to(torch::kBFloat16);
    TORCH_CHECK(model->forward(rows_of(rank, 0).to(torch::kBFloat16)).dtype() == torch::kBFloat16);
    for (const auto& [says, input] :
         {std::pair("Expected an input of (batch, 2, ...), got [2]", torch::ones({2})),
          {"Expected an input of (batch, 2, ...), got [2, 3]", torch::ones({2, 3})},
          {"got one", torch::ones({rank == 0, 2})}}) {
      const torch::Tensor bad = input;
      TORCH_CHECK(contains(message_of([&] { model->forward(bad); }), says));
    }
  });
}
