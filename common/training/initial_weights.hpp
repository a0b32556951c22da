// common/training/initial_weights.hpp - how far a model's weights have moved since training began.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace ddp {

/// The weights before the first step. Those of linear layers that were drawn right after
/// `torch::manual_seed(seed)` are not kept but drawn again, a piece at a time: a copy of a large
/// model would be a third of what training it with SGD takes. Any others are copied.
class InitialWeights {
 public:
  /// @param module holds them now; outlives this object
  InitialWeights(const torch::nn::Module& module, uint64_t seed);

  /// |w - w0| over all parameters, in float64.
  double distance() const;

 private:
  using Visit = std::function<bool(const torch::Tensor& initial, const torch::Tensor& now)>;

  /// Calls `visit` for all parameters, in order, with pieces on the host, until it
  /// returns false.
  /// @return whether it never did
  bool visit_pieces(const Visit& visit) const;

  const torch::nn::Module& module_;
  uint64_t seed_;
  std::vector<torch::Tensor> copies_;  // on the host; empty: they are drawn again
};

}  // namespace ddp
