// The fused step's arithmetic, for every instruction set of this machine, against float64.
#include "common/fused/kernels.hpp"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <limits>
#include <random>

#include "common/parallel/worker_pool.hpp"
#include "common/training/optimizer.hpp"
#include "tests/catch.hpp"

namespace {

using ddp::fused::After;
using ddp::fused::CrossEntropy;
using ddp::fused::Kernels;
using ddp::fused::Product;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int64_t round_up(int64_t value) {
  return (value + ddp::fused::kBlock - 1) / ddp::fused::kBlock * ddp::fused::kBlock;
}

/// Written so that NaN fails.
bool close(const torch::Tensor& a, const torch::Tensor& b, double tolerance) {
  return a.sizes() == b.sizes() &&
         (a.to(torch::kFloat64) - b.to(torch::kFloat64)).abs().le(tolerance).all().item<bool>();
}

/// A matrix whose rows have room up to the next block, and NaN there, which must not spread.
torch::Tensor with_room(const torch::Tensor& matrix) {
  torch::Tensor roomy = torch::full({matrix.size(0), round_up(matrix.size(1))}, kNan);
  roomy.narrow(1, 0, matrix.size(1)).copy_(matrix);
  return roomy;
}

/// c = a b, for matrices of any strides but that columns of b and c lie side by side.
Product product_of(const torch::Tensor& a, const torch::Tensor& b, const torch::Tensor& c) {
  return {.rows = c.size(0),
          .columns = c.size(1),
          .depth = a.size(1),
          .a = a.const_data_ptr<float>(),
          .a_row = a.stride(0),
          .a_depth = a.stride(1),
          .b = b.const_data_ptr<float>(),
          .b_row = b.stride(0),
          .c = c.mutable_data_ptr<float>(),
          .c_row = c.stride(0)};
}

}  // namespace

TEST_CASE("a product of any size is that of float64, for all kernels", "[fused]") {
  std::mt19937_64 random(1);
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (const Kernels* const kernels : ddp::fused::all_kernels()) {
    torch::manual_seed(2);
    for (int repetition = 0; repetition < 120; ++repetition) {
      const int64_t rows = between(1, 40);
      const int64_t columns = between(1, 140);
      const int64_t depth = between(1, repetition % 5 == 0 ? 700 : 70);
      const bool transposed = repetition % 2 == 1;
      const bool accumulate = repetition / 2 % 2 == 1;
      const auto after = static_cast<After>(repetition / 4 % 3);
      const torch::Tensor a =
          transposed ? torch::randn({depth, rows}).t() : torch::randn({rows, depth});
      const torch::Tensor b = torch::randn({depth, columns});
      const torch::Tensor roomy_b = with_room(b);
      const torch::Tensor bias = torch::randn({rows});
      const torch::Tensor before = torch::randn({rows, columns});
      // A neighbour on the right that must not be touched.
      const torch::Tensor wide = torch::cat({before, torch::full({rows, 3}, 7.0)}, 1);
      // Laid out as c is, and readable a block further.
      const torch::Tensor activations =
          torch::randn({(rows + 1) * wide.size(1) + ddp::fused::kBlock})
              .narrow(0, 0, rows * wide.size(1))
              .view({rows, wide.size(1)});
      Product product = product_of(a, roomy_b, wide.narrow(1, 0, columns));
      product.bias = accumulate ? nullptr : bias.const_data_ptr<float>();
      product.accumulate = accumulate;
      product.after = after;
      product.activations = activations.const_data_ptr<float>();
      const int64_t middle = rows / 2 / ddp::fused::kTileRows * ddp::fused::kTileRows;
      kernels->multiply(product, middle, rows);
      kernels->multiply(product, 0, middle);
      const torch::Tensor start =
          accumulate ? before.to(torch::kFloat64)
                     : bias.to(torch::kFloat64).unsqueeze(1).expand({rows, columns});
      torch::Tensor expected = start + a.to(torch::kFloat64).matmul(b.to(torch::kFloat64));
      // Rounding errors are as large as the terms are.
      const torch::Tensor bound =
          3e-7 * (start.abs() + a.to(torch::kFloat64).abs().matmul(b.to(torch::kFloat64).abs()));
      if (after == After::kRelu) {
        expected = expected.relu();
      } else if (after == After::kReluBackward) {
        expected = expected * activations.narrow(1, 0, columns).gt(0);
      }
      INFO(kernels->name << ": " << rows << " x " << columns << ", depth " << depth);
      const torch::Tensor error = (wide.narrow(1, 0, columns) - expected).abs();
      CHECK(error.le(bound).all().item<bool>());  // so that NaN fails
      CHECK(wide.narrow(1, columns, 3).eq(7).all().item<bool>());
    }
  }
}

TEST_CASE("the bits of a product do not depend on how it is divided", "[fused]") {
  for (const Kernels* const kernels : ddp::fused::all_kernels()) {
    torch::manual_seed(3);
    const torch::Tensor a = torch::randn({37, 500});
    const torch::Tensor b = torch::randn({500, 64});
    const auto multiply = [&](int64_t columns, int64_t step) {
      const torch::Tensor c = torch::zeros({37, columns});
      for (int64_t begin = 0; begin < 37; begin += step) {
        kernels->multiply(product_of(a, b, c), begin, std::min<int64_t>(begin + step, 37));
      }
      return c;
    };
    const torch::Tensor whole = multiply(64, 37);
    CHECK(torch::equal(multiply(64, 6), whole));
    CHECK(torch::equal(multiply(64, 18), whole));
    CHECK(torch::equal(multiply(48, 37), whole.narrow(1, 0, 48)));
    CHECK(torch::equal(multiply(21, 12), whole.narrow(1, 0, 21)));
  }
}

TEST_CASE("what is not a number stays so", "[fused]") {
  for (const Kernels* const kernels : ddp::fused::all_kernels()) {
    for (const After after : {After::kNothing, After::kRelu}) {
      const torch::Tensor a = torch::ones({2, 1});
      torch::Tensor b = torch::ones({1, 16});
      b[0][5] = kNan;
      const torch::Tensor c = torch::zeros({2, 16});
      Product product = product_of(a, b, c);
      product.after = after;
      kernels->multiply(product, 0, 2);
      CHECK(c.isnan().sum().item<int64_t>() == 2);
      CHECK(std::isnan(c[1][5].item<float>()));
    }
  }
}

TEST_CASE("one element that is not finite is noticed, wherever it is", "[fused]") {
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Kernels* const kernels : ddp::fused::all_kernels()) {
    for (const int64_t size : {0, 1, 15, 16, 63, 64, 65, 200}) {
      std::vector<float> values(static_cast<size_t>(size), kMost);
      CHECK(kernels->all_finite(values.data(), size));
      for (float& value : values) {
        for (const float bad : {kNan, kInfinity, -kInfinity}) {
          value = bad;
          CHECK_FALSE(kernels->all_finite(values.data(), size));
        }
        value = -kMost;
      }
    }
  }
}

TEST_CASE("a product marks what is not finite in it, terms that are too large together, too",
          "[fused]") {
  const torch::Tensor b = torch::ones({400, 48});
  for (const Kernels* const kernels : ddp::fused::all_kernels()) {
    for (const int64_t depth : {1, 400}) {
      torch::Tensor a = torch::full({8, depth}, 1e35);
      const torch::Tensor c = torch::zeros({8, 48});
      Product product = product_of(a, b.narrow(0, 0, depth), c);
      const auto is_marked = [&](int64_t columns) {
        torch::Tensor marks = torch::zeros({ddp::fused::kBlock});
        product.columns = columns;
        product.marks = marks.mutable_data_ptr<float>();
        kernels->multiply(product, 0, 8);
        return !kernels->all_finite(marks.const_data_ptr<float>(), marks.numel());
      };
      for (const int64_t columns : {4, 16, 40, 48}) {
        CHECK_FALSE(is_marked(columns));
        for (int64_t row = 0; row < 8; ++row) {
          a[row][depth / 2] = 3.4e38;  // finite, and alone so is its product
          CHECK(is_marked(columns) == (depth > 1));
          a[row][depth / 2] = kNan;
          CHECK(is_marked(columns));
          a[row][depth / 2] = 1e35;
        }
      }
    }
  }
}

TEST_CASE("transpose and sum_rows, at every size", "[fused]") {
  for (const Kernels* const kernels : ddp::fused::all_kernels()) {
    for (const int64_t rows : {1, 3, 4, 5, 31, 64}) {
      for (const int64_t columns : {1, 2, 4, 7, 16, 33, 100}) {
        const torch::Tensor matrix = torch::randn({rows, columns});
        const torch::Tensor transposed = torch::full({columns, rows + 2}, 7.0);
        kernels->transpose(matrix.const_data_ptr<float>(), columns, rows, columns,
                           transposed.mutable_data_ptr<float>(), rows + 2);
        CHECK(torch::equal(transposed.narrow(1, 0, rows), matrix.t()));
        CHECK(transposed.narrow(1, rows, 2).eq(7).all().item<bool>());
      }
    }
    const torch::Tensor matrix = torch::randn({9, 64});
    for (const int64_t columns : {16, 32, 48, 64}) {
      const torch::Tensor expected = matrix.narrow(1, 0, columns).to(torch::kFloat64).sum(1);
      for (const bool accumulate : {true, false}) {
        const torch::Tensor sums = torch::ones({9});
        kernels->sum_rows(matrix.const_data_ptr<float>(), 64, 9, columns,
                          sums.mutable_data_ptr<float>(), accumulate);
        CHECK(close(sums, accumulate ? expected + 1 : expected, 1e-5));
      }
    }
  }
}

TEST_CASE("cross entropy and its gradient, large logits too", "[fused]") {
  for (const Kernels* const kernels : ddp::fused::all_kernels()) {
    torch::manual_seed(4);
    for (const int64_t classes : {2, 3, 10, 100}) {
      for (const int64_t samples : {1, 15, 16, 17, 40, 64}) {
        for (const double magnitude : {1.0, 30.0, 300.0}) {
          const int64_t columns = round_up(samples);
          const torch::Tensor logits = torch::randn({samples, classes}) * magnitude;
          const torch::Tensor targets = torch::randint(classes, {samples}, torch::kInt64);
          torch::Tensor stored = torch::full({classes, columns}, kNan);  // in unused columns
          stored.narrow(1, 0, samples).copy_(logits.t());
          const double loss = kernels->cross_entropy({.classes = classes,
                                                      .samples = samples,
                                                      .columns = columns,
                                                      .logits = stored.mutable_data_ptr<float>(),
                                                      .logits_row = columns,
                                                      .targets = targets.const_data_ptr<int64_t>(),
                                                      .gradient_scale = 0.25F});
          torch::Tensor exact = logits.to(torch::kFloat64).requires_grad_();
          const torch::Tensor expected = torch::nn::functional::cross_entropy(
              exact, targets,
              torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
          expected.backward();
          INFO(kernels->name << ", " << classes << " classes, " << samples << " samples, "
                             << magnitude);
          CHECK(std::abs(loss - expected.item<double>()) <=
                2e-6 * std::max(1.0, expected.item<double>()));
          CHECK(close(stored.narrow(1, 0, samples).t(), exact.grad() * 0.25, 3e-7));
          CHECK(stored.narrow(1, samples, columns - samples).eq(0).all().item<bool>());
        }
      }
    }
  }
}

TEST_CASE("cross entropy of a logit that is not a number is not one", "[fused]") {
  for (const Kernels* const kernels : ddp::fused::all_kernels()) {
    for (const int64_t bad_class : {0, 1, 2}) {
      torch::Tensor logits = torch::zeros({3, 16});
      logits[bad_class][4] = kNan;
      const std::vector<int64_t> targets(16, 1);
      const double loss = kernels->cross_entropy({.classes = 3,
                                                  .samples = 16,
                                                  .columns = 16,
                                                  .logits = logits.mutable_data_ptr<float>(),
                                                  .logits_row = 16,
                                                  .targets = targets.data()});
      CHECK(std::isnan(loss));
      CHECK(logits.select(1, 4).isnan().all().item<bool>());
      CHECK(logits.isnan().sum().item<int64_t>() == 3);
    }
  }
}

TEST_CASE("the fused update is LibTorch's, for every optimizer", "[fused][optimizer]") {
  for (const std::string kind : {"sgd", "momentum", "adam", "adamw"}) {
    ddp::Options options;
    options.optimizer = kind;
    torch::manual_seed(5);
    torch::nn::Linear ours(37, 11);
    const auto theirs = std::dynamic_pointer_cast<torch::nn::LinearImpl>(ours->clone());
    ddp::Optimizer our_optimizer(*ours, options);
    ddp::Optimizer their_optimizer(*theirs, options);
    for (int step = 0; step < 50; ++step) {
      const torch::Tensor gradient = torch::randn({11, 37});
      ours->weight.mutable_grad().copy_(gradient);
      theirs->weight.mutable_grad().copy_(gradient);
      our_optimizer.fused_step();
      their_optimizer.step();
    }
    INFO(kind);
    CHECK(close(ours->weight.detach(), theirs->weight.detach(), 1e-6));
    CHECK(close(ours->bias.detach(), theirs->bias.detach(), 1e-7));
    for (size_t i = 0; i < our_optimizer.state().size(); ++i) {
      CHECK(close(our_optimizer.state()[i].second, their_optimizer.state()[i].second, 1e-6));
    }
  }
}

TEST_CASE("a pool runs every task once, and hands on the first exception", "[fused]") {
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
