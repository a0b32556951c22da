// The step without autograd: its kernels against float64, the whole step against autograd, no
// allocation, and the capture of a CUDA graph.
#include <sys/resource.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <random>

#include "common/base/worker_pool.hpp"
#include "common/fused/fused_mlp.hpp"
#include "common/fused/kernels.hpp"
#include "common/fused/step_graph.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/count_allocations.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace {

using ddp::Batch;
using ddp::FusedMlp;
using ddp::fused::kBlock;
using ddp::fused::kTileRows;
using ddp::fused::Multiply;
using ddp::fused::multiply_kernels;
using ddp::fused::Product;

using Widths = std::vector<int64_t>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Copy of a matrix with rows up to the next block, filled with NaN, which must not spread.
torch::Tensor with_room(const torch::Tensor& matrix) {
  const int64_t columns = (matrix.size(1) + kBlock - 1) / kBlock * kBlock;
  torch::Tensor roomy = torch::full({matrix.size(0), columns}, kNan);
  roomy.narrow(1, 0, matrix.size(1)).copy_(matrix);
  return roomy;
}

Batch random_batch(const Widths& widths, int64_t samples) {
  Batch batch;
  batch.input = torch::randn({samples, widths.front()});
  batch.target = widths.back() == 1 ? torch::randn({samples, 1})
                                    : torch::randint(widths.back(), {samples}, torch::kInt64);
  return batch;
}

/// Batch without a hidden unit so close to 0 that rounding decides about its ReLU, so that
/// hand-written gradients can be compared with autograd's.
Batch clear_batch(const ddp::Mlp& model, const Widths& widths, int64_t samples) {
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> parameters = model->parameters();
  for (int tries = 0; tries < 300; ++tries) {
    const Batch batch = random_batch(widths, samples);
    torch::Tensor activation = batch.input.to(torch::kFloat64);
    bool is_clear = true;
    for (size_t i = 0; samples > 0 && i + 2 < parameters.size(); i += 2) {
      const torch::Tensor sums = torch::addmm(parameters[i + 1].to(torch::kFloat64), activation,
                                              parameters[i].to(torch::kFloat64).t());
      is_clear = is_clear && sums.abs().gt(3e-6 * sums.abs().max()).all().item<bool>();
      activation = sums.relu();
    }
    if (is_clear) {
      return batch;
    }
  }
  throw std::runtime_error("no batch keeps clear of zero");
}

/// Our kernels with 1 and with 3 threads, and the GPU's implementation, here on the CPU.
std::vector<std::unique_ptr<FusedMlp>> all_of(const ddp::Mlp& model, int64_t batch_size) {
  const ddp::FlatParameters flat = ddp::flatten_parameters(*model);
  std::vector<std::unique_ptr<FusedMlp>> all;
  all.push_back(ddp::fused::make_cpu_mlp(flat, batch_size, 1));
  all.push_back(ddp::fused::make_cpu_mlp(flat, batch_size, 3));
  all.push_back(ddp::fused::make_aten_mlp(flat, batch_size));
  return all;
}

void differentiate(FusedMlp& fused, const Batch& batch) {
  fused.load(batch);
  fused.forward();
  fused.backward();
}

/// Loss and gradients by autograd.
std::pair<double, std::vector<torch::Tensor>> by_autograd(ddp::Mlp model, const Batch& batch) {
  const torch::Tensor loss = ddp::loss(model->forward(batch.input), batch.target, batch.weight);
  return {loss.item<double>(), torch::autograd::grad({loss}, model->parameters())};
}

/// True if the model's gradients are `expected`, without NaN, relative to each parameter's largest.
/// Sums that cancel lose up to two digits, as in a layer of one unit.
bool gradients_are(const ddp::Mlp& model, const std::vector<torch::Tensor>& expected) {
  return std::ranges::equal(model->parameters(), expected,
                            [](const torch::Tensor& parameter, const torch::Tensor& gradient) {
                              const double bound =
                                  1e-4 * gradient.abs().max().item<double>() + 1e-12;
                              return torch::allclose(parameter.grad(), gradient, /*rtol=*/0, bound);
                            });
}

int64_t minor_faults() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

/// Notes a letter for each call of a StepGraph, on a CPU.
struct NotedStream : ddp::GraphStream {
  explicit NotedStream(std::string& its_notes) : notes(its_notes) {}
  void run(c10::function_ref<void()> work) override {
    notes += 'r';
    work();
  }
  std::function<void()> capture(c10::function_ref<void()> work) override {
    notes += 'c';
    work();
    return [this] { notes += 'p'; };  // plays it
  }
  std::string& notes;
};

}  // namespace

TEST_CASE("a product of any size is that of float64, on every instruction set") {
  std::mt19937_64 random(1);
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (const Multiply multiply : multiply_kernels()) {
    for (int repetition = 0; repetition < 200; ++repetition) {
      torch::manual_seed(static_cast<uint64_t>(repetition));
      const int64_t rows = between(1, 40);
      const int64_t columns = between(1, 140);
      const int64_t depth = repetition % 10 == 0 ? between(200, 600) : between(0, 40);
      const bool is_transposed = repetition % 2 == 0;
      const torch::Tensor a =
          is_transposed ? torch::randn({depth, rows}).t() : torch::randn({rows, depth});
      const torch::Tensor b = with_room(torch::randn({depth, columns}));
      const torch::Tensor wide = torch::full({rows, columns + 3}, 7.0);
      const torch::Tensor c = wide.narrow(1, 0, columns);
      const torch::Tensor bias = torch::randn({rows});
      const bool has_bias = repetition % 3 != 0;
      const bool is_backward = repetition % 3 == 2;
      // In the layout of c, with room.
      const torch::Tensor laid_out = torch::randn({rows * (columns + 3) + kBlock});
      const Product product{
          .rows = rows,
          .columns = columns,
          .depth = depth,
          .a = {a.const_data_ptr<float>(), a.stride(0), a.stride(1)},
          .b = {b.const_data_ptr<float>(), b.stride(0)},
          .c = {c.mutable_data_ptr<float>(), c.stride(0)},
          .bias = has_bias ? bias.const_data_ptr<float>() : nullptr,
          .relu = repetition % 3 == 1,
          .activations = is_backward ? laid_out.const_data_ptr<float>() : nullptr};
      const int64_t middle = rows / 2 / kTileRows * kTileRows;
      multiply(product, middle, rows);
      multiply(product, 0, middle);

      const torch::Tensor b64 = b.narrow(1, 0, columns).to(torch::kFloat64);
      const torch::Tensor a64 = a.to(torch::kFloat64);
      const torch::Tensor start =
          (has_bias ? bias.to(torch::kFloat64) : torch::zeros({rows}, torch::kFloat64))
              .unsqueeze(1)
              .expand({rows, columns});
      torch::Tensor expected = start + a64.matmul(b64);
      // Rounding errors grow with the terms.
      const torch::Tensor bound = 1e-6 * (start.abs() + a64.abs().matmul(b64.abs())) + 1e-30;
      if (product.relu) {
        expected = expected.relu();
      } else if (is_backward) {
        expected = expected * laid_out.as_strided(c.sizes(), c.strides()).gt(0);
      }
      INFO(rows << " x " << columns << ", depth " << depth);
      const torch::Tensor error = (c - expected).abs();
      CHECK(error.le(bound).all().item<bool>());  // fails for NaN
      CHECK(wide.narrow(1, columns, 3).eq(7).all().item<bool>());
    }
  }
}

TEST_CASE("hand-written gradients are autograd's, and steps SGD's, for any MLP, batch and weight") {
  at::set_num_threads(1);  // as in set_device(): our threads and OpenMP's would wait for each other
  std::mt19937_64 random(7);
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (int repetition = 0; repetition < 60; ++repetition) {
    Widths widths;
    for (int64_t layers = between(1, 5); layers >= 0; --layers) {
      widths.push_back(between(1, random() % 2 == 0 ? 20 : 300));
    }
    if (random() % 3 == 0) {
      widths.back() = 1;  // regression
    }
    const int64_t batch_size = between(1, repetition % 8 == 0 ? 270 : 65);
    torch::manual_seed(static_cast<uint64_t>(repetition));
    const ddp::Mlp model(widths);
    const auto all = all_of(model, batch_size);
    torch::Tensor first;
    for (const int64_t samples : {batch_size, between(1, batch_size), int64_t{0}, batch_size}) {
      INFO("widths " << widths << ", " << samples << " of " << batch_size << " samples");
      Batch batch = clear_batch(model, widths, samples);
      batch.weight = samples == batch_size ? 1 : 0.7;
      const auto [loss, gradients] = by_autograd(model, batch);
      for (const auto& fused : all) {
        for (const torch::Tensor& parameter : model->parameters()) {
          parameter.grad().fill_(kNan);  // all of it must be replaced
        }
        differentiate(*fused, batch);
        CHECK(gradients_are(model, gradients));
        CHECK(fused->loss().item<double>() == Approx(loss).epsilon(1e-5));
        CHECK(fused->loss().scalar_type() == torch::kFloat32);
        if (fused == all.front()) {
          first = fused->gradients().clone();
        } else if (fused == all[1]) {  // threads change no bit
          CHECK(torch::equal(fused->gradients(), first));
        }
      }
      // The next gradients are those at the new weights, so no layer may keep the old ones.
      for (const auto& fused : all) {
        const torch::Tensor expected = fused->weights() - 0.01 * fused->gradients();
        fused->step(0.01);
        CHECK(torch::allclose(fused->weights(), expected, 1e-6, 1e-7));
      }
    }
  }
}

TEST_CASE("a sample that is not a number spoils the loss and every parameter") {
  const Widths widths{4, 6, 3};
  const ddp::Mlp model(widths);
  for (const auto& fused : all_of(model, 5)) {
    Batch batch = random_batch(widths, 5);
    batch.input[3][2] = kNan;
    differentiate(*fused, batch);
    CHECK(std::isnan(fused->loss().item<double>()));
    for (const torch::Tensor& parameter : model->parameters()) {
      CHECK(parameter.grad().isnan().any().item<bool>());
    }
  }
}

TEST_CASE("large logits give a finite loss") {
  const Widths widths{4, 3};
  const ddp::Mlp model(widths);
  Batch batch = random_batch(widths, 5);
  batch.input.mul_(1e4);
  const auto [loss, gradients] = by_autograd(model, batch);
  for (const auto& fused : all_of(model, 5)) {
    differentiate(*fused, batch);
    CHECK(fused->loss().item<double>() == Approx(loss).epsilon(1e-5));
    CHECK(gradients_are(model, gradients));
  }
}

TEST_CASE("what the step cannot compute is refused") {
  const Widths widths{4, 3};
  const ddp::Mlp model(widths);
  for (const auto& fused : all_of(model, 5)) {
    CHECK_THROWS_AS(fused->load(random_batch(widths, 6)), c10::Error);
    for (const int64_t no_class : {-1, 3}) {
      Batch batch = random_batch(widths, 5);
      batch.target[2] = no_class;
      CHECK_THROWS_AS(differentiate(*fused, batch), c10::Error);
    }
  }
  ddp::Mlp doubles(widths);
  doubles->to(torch::kFloat64);
  CHECK_THROWS_AS(ddp::make_fused_mlp(doubles, 4), c10::Error);
  // The middle layer; the first bias; the last layer, without which the other layers fit together.
  for (const std::vector<size_t>& frozen : std::vector<std::vector<size_t>>{{2, 3}, {1}, {4, 5}}) {
    ddp::Mlp partly(Widths{6, 8, 8, 3});
    for (const size_t index : frozen) {
      partly->parameters()[index].set_requires_grad(false);
    }
    CHECK_THROWS_AS(ddp::make_fused_mlp(partly, 4), c10::Error);
  }
}

TEST_CASE("a fused step allocates nothing and touches no new page", "[allocations]") {
  at::set_num_threads(1);
  for (const Widths& widths : {Widths{20, 1}, Widths{64, 128, 128, 10}, Widths{784, 512, 10}}) {
    for (const int threads : {1, 2}) {
      const ddp::Mlp model(widths);
      const auto fused = ddp::make_fused_mlp(model, 64, threads);
      const Batch batch = random_batch(widths, 64);
      uint64_t allocations = 0;
      int64_t faults = 0;
      for (int step = 0; step < 120; ++step) {
        if (step == 20) {
          allocations = ddp::test::allocations();
          faults = minor_faults();
        }
        differentiate(*fused, batch);
        fused->step(0.01);
      }
      CHECK(ddp::test::allocations() - allocations == 0);
      CHECK(minor_faults() - faults == 0);
    }
  }
  // The counter works.
  const uint64_t before = allocations();
  const torch::Tensor tensor = torch::empty({1000});
  CHECK(allocations() - before >= 2);  // its description and its memory
}

TEST_CASE("a step runs three times as it is, is captured once and then repeated") {
  std::string notes;
  ddp::StepGraph graph(std::make_unique<NotedStream>(notes));
  int calls = 0;
  for (int step = 0; step < 10; ++step) {
    graph.run([&] { ++calls; });
  }
  CHECK(notes == "rrrcppppppp");
  CHECK(calls == 4);
}

TEST_CASE("a pool runs every task once, and hands on the first exception") {
  for (const size_t size : {1U, 2U, 5U}) {
    ddp::WorkerPool pool(size);
    std::vector<int> calls(size);
    for (int round = 1; round <= 1000; ++round) {
      pool.run([&](size_t i) { ++calls[i]; });
      REQUIRE(calls == std::vector<int>(size, round));
    }
    CHECK_THROWS_AS(pool.run([&](size_t i) {
      if (i + 1 == size) {
        throw std::runtime_error("the last");
      }
    }),
                    std::runtime_error);
    pool.run([&](size_t i) { ++calls[i]; });
    CHECK(calls == std::vector<int>(size, 1001));
  }
}
