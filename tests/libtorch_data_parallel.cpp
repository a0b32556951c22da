// LibTorch's data_parallel, which works on CUDA devices only, beside ours: the same gradients. How
// long a step takes with each is printed.
#include <torch/nn/parallel/data_parallel.h>

#include <algorithm>
#include <chrono>
#include <iostream>

#include "common/base/seconds_since.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/data_parallel.hpp"
#include "tests/catch.hpp"

namespace {

/// Of forward and backward.
double median_step_ms(const std::function<void()>& step) {
  constexpr int kWarmUp = 20;
  constexpr size_t kSteps = 101;
  std::vector<double> times_ms;
  for (int i = 0; i < kWarmUp; ++i) {
    step();
  }
  while (times_ms.size() < kSteps) {
    torch::cuda::synchronize();
    const auto begin = std::chrono::steady_clock::now();
    step();
    torch::cuda::synchronize();
    times_ms.push_back(1e3 * ddp::seconds_since(begin));
  }
  std::ranges::nth_element(times_ms, times_ms.begin() + kSteps / 2);
  return times_ms[kSteps / 2];
}

}  // namespace

TEST_CASE("data_parallel's gradients are LibTorch's and one device's", "[.][gpu]") {
  std::vector<torch::Device> devices;
  const int count = static_cast<int>(torch::cuda::device_count());
  REQUIRE(count > 0);
  for (int i = 0; i < std::max(count, 2); ++i) {  // a single one has two replicas
    devices.emplace_back(torch::kCUDA, static_cast<c10::DeviceIndex>(i % count));
  }
  at::set_num_threads(static_cast<int>(devices.size()));  // what LibTorch's replicas run on
  torch::manual_seed(42);
  ddp::Mlp model(std::vector<int64_t>{784, 512, 512, 10});
  model->to(devices.front());
  const torch::Tensor input = torch::randn({64, 784}, devices.front());
  const torch::Tensor target = torch::randint(10, {64}, torch::kInt64).to(devices.front());

  const auto backward = [&](const torch::Tensor& output) {
    model->zero_grad();
    torch::cross_entropy_loss(output, target).backward();
  };
  const auto gradients = [&] {
    std::vector<torch::Tensor> all;
    for (const torch::Tensor& parameter : model->parameters()) {
      all.push_back(parameter.grad().flatten());
    }
    return torch::cat(all).to(torch::kCPU, torch::kFloat64);
  };
  const auto alone = [&] { backward(model->forward(input)); };
  const auto ours = [&] { backward(ddp::data_parallel(model, input, devices)); };
  const auto theirs = [&] { backward(torch::nn::parallel::data_parallel(model, input, devices)); };
  alone();
  const torch::Tensor expected = gradients();
  const double norm = expected.norm().item<double>();
  CHECK(norm > 1e-3);
  for (const std::function<void()>& step : {std::function<void()>(ours), {theirs}}) {
    step();
    CHECK((gradients() - expected).norm().item<double>() <= 1e-5 * norm);
  }
  std::cout << "a step on " << devices.size() << " replicas, " << count << " GPUs: ours "
            << median_step_ms(ours) << " ms, LibTorch's " << median_step_ms(theirs) << " ms\n";
}
