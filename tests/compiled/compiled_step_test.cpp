// Steps that PyTorch's compiler made are those of Python, for batches of any size. make_steps.py
// makes them. For autograd in C++ see compiled_test.py.
#include <torch/optim/sgd.h>

#include "common/base/exit_codes.hpp"
#include "common/compiled/compiled_step.hpp"
#include "common/data/tensor_file.hpp"
#include "tests/support/catch.hpp"

namespace {

std::string file(const std::string& name) {
  return DDP_STEPS "/" + name;
}

bool close(const torch::Tensor& a, const torch::Tensor& b) {
  return torch::allclose(a, b, /*rtol=*/1e-5, /*atol=*/1e-6);
}

TEST_CASE("three steps of a model with tied weights, buffers and attention are Python's") {
  ddp::CompiledStep step(file("zoo.pt2"), torch::kCPU);
  std::vector<std::string> names;
  for (const auto& item : step.named_parameters()) {
    CHECK(item.value().requires_grad());
    names.push_back(item.key());
  }
  const size_t trained = names.size();
  for (const auto& item : step.named_buffers()) {
    names.push_back(item.key());
  }
  const size_t tensors = names.size();
  for (const char* const kind : {"input", "target", "loss"}) {
    for (const char* const number : {"0", "1", "2"}) {
      names.push_back(std::string(kind) + number);
    }
  }
  names.emplace_back("evaluated");
  const ddp::NamedTensors stored =
      ddp::map_tensor_file(file("zoo.expected.safetensors"), names).tensors;
  const std::map<std::string, torch::Tensor> expected(stored.begin(), stored.end());
  REQUIRE(trained == 15);
  REQUIRE(tensors == trained + 5);  // BatchNorm's, the assigned one, and the frozen parameter
  REQUIRE(expected.size() == names.size());

  torch::optim::SGD optimizer(step.parameters(), 0.1);
  for (const std::string number : {"0", "1", "2"}) {
    optimizer.zero_grad();
    const torch::Tensor transposed =  // other strides
        expected.at("input" + number).transpose(0, -1).contiguous().transpose(0, -1);
    const torch::Tensor loss = step(transposed, expected.at("target" + number), 0.5);
    CHECK(close(loss, expected.at("loss" + number)));
    optimizer.step();
  }
  for (const auto& values : {step.named_parameters(), step.named_buffers()}) {
    for (const auto& item : values) {
      INFO(item.key());
      CHECK(close(item.value(), expected.at(item.key())));
    }
  }
  const ddp::Samples last{expected.at("input2"), expected.at("target2")};
  const ddp::Evaluation evaluation = ddp::evaluate(step, last);
  CHECK(evaluation.loss == Approx(expected.at("evaluated").item<double>()).epsilon(1e-5));
  CHECK(std::isnan(evaluation.accuracy));  // several outputs a sample
}

TEST_CASE("all gradients share one tensor; NaN stays in it, and no samples leave zeros") {
  ddp::CompiledStep step(file("T.pt2"), torch::kCPU);
  const auto run = [&](int64_t samples, float value) {
    return step(torch::full({samples, 20}, value), torch::ones({samples, 1})).item<float>();
  };
  CHECK(std::isfinite(run(3, 1)));
  CHECK(step.gradients().count_nonzero().item<int64_t>() == 21);
  step.gradients().fill_(2);
  for (const torch::Tensor& parameter : step.parameters()) {
    CHECK(parameter.grad().eq(2).all().item<bool>());
  }
  CHECK(std::isnan(run(3, NAN)));
  CHECK(step.parameters()[0].grad().isnan().all().item<bool>());
  CHECK(run(0, 1) == 0);
  CHECK(step.gradients().count_nonzero().item<int64_t>() == 0);
  CHECK_THROWS_WITH(
      step(torch::ones({3, 21}), torch::ones({3, 1})),
      ContainsSubstring("got input of shape (3, 21) and dtype Float on cpu, expected (3, 20)"));
  CHECK_THROWS_AS(step(torch::ones({3, 20}, torch::kFloat64), torch::ones({3, 1})),
                  ddp::UsageError);
  CHECK_THROWS_WITH(step(torch::ones({3, 20}), torch::ones({3})),
                    ContainsSubstring("got target of shape (3)"));
  CHECK_THROWS_WITH(step(torch::ones({3, 20}), torch::ones({2, 1})),
                    ContainsSubstring("expected (3, 1)"));
}

}  // namespace
