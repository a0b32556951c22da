#include "common/training/initial_weights.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>

namespace ddp {
namespace {

constexpr int64_t kPieceElements = int64_t{1} << 16;

/// Half the width of the uniform distribution that torch::nn::Linear draws from, with the bits of
/// its arithmetic.
double linear_bound(const torch::Tensor& parameter, int64_t fan_in) {
  const double fan = std::sqrt(static_cast<double>(fan_in));
  if (parameter.dim() == 1) {
    return 1 / fan;
  }
  const double leaky_relu_gain = std::sqrt(2.0 / (1 + std::pow(std::sqrt(5.0), 2)));
  return std::sqrt(3.0) * (leaky_relu_gain / fan);
}

}  // namespace

InitialWeights::InitialWeights(const torch::nn::Module& module, uint64_t seed)
    : module_(module), seed_(seed) {
  const bool drawn = visit_pieces([](const torch::Tensor& initial, const torch::Tensor& now) {
    return torch::equal(initial, now);
  });
  if (!drawn) {
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& parameter : module_.parameters()) {
      copies_.push_back(parameter.detach().to(torch::kCPU, parameter.scalar_type(),
                                              /*non_blocking=*/false, /*copy=*/true));
    }
  }
}

bool InitialWeights::visit_pieces(const Visit& visit) const {
  const torch::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(seed_);
  const std::vector<torch::Tensor> parameters = module_.parameters();
  int64_t fan_in = 1;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const torch::Tensor now = parameters[i].detach().flatten();
    fan_in = parameters[i].dim() == 2 ? parameters[i].size(1) : fan_in;  // a bias has its weight's
    for (int64_t begin = 0; begin < now.numel(); begin += kPieceElements) {
      const int64_t end = std::min(begin + kPieceElements, now.numel());
      const torch::Tensor piece = now.slice(0, begin, end).to(torch::kCPU);
      torch::Tensor initial;
      if (copies_.empty()) {
        const double bound = linear_bound(parameters[i], fan_in);
        initial = torch::empty_like(piece).uniform_(-bound, bound, generator);
      } else {
        initial = copies_[i].flatten().slice(0, begin, end);
      }
      if (!visit(initial, piece)) {
        return false;
      }
    }
  }
  return true;
}

double InitialWeights::distance() const {
  double sum = 0;
  visit_pieces([&sum](const torch::Tensor& initial, const torch::Tensor& now) {
    sum += torch::sub(now.to(torch::kFloat64), initial).square_().sum().item<double>();
    return true;
  });
  return std::sqrt(sum);
}

}  // namespace ddp
