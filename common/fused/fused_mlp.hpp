// common/fused/fused_mlp.hpp - a training step of the MLP without autograd.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "common/data/data_loader.hpp"
#include "common/data/flat_parameters.hpp"
#include "common/data/mlp.hpp"

namespace ddp {

/// Forward, backward and update of an Mlp written out by hand, on storage that is allocated once.
///
/// Autograd is general: it builds a graph in every forward, and each operator looks up what to call
/// and allocates what it returns. One known model needs none of that. What is left is the
/// arithmetic: our own kernels on a CPU, ATen's operators on a GPU.
class FusedMlp {
 public:
  virtual ~FusedMlp() = default;
  FusedMlp(const FusedMlp&) = delete;
  FusedMlp& operator=(const FusedMlp&) = delete;

  /// The batch of the next step. Its target must keep its values until forward() has read them.
  virtual void load(const Batch& batch) = 0;
  /// Computes loss(). @throws c10::Error on a CPU for a target that is no class of the model
  virtual void forward() = 0;
  /// Replaces gradients() by the gradients of loss().
  virtual void backward() = 0;
  /// SGD: weights -= rate * gradients
  virtual void step(double rate) = 0;

  /// Scalar, as ddp::loss() gives it. The next forward() overwrites it.
  const torch::Tensor& loss() const { return loss_; }
  /// All weights and biases, (elements) float32: the model's parameters are views of it.
  const torch::Tensor& weights() const { return flat_.data; }
  /// Their gradients, laid out as weights().
  const torch::Tensor& gradients() const { return flat_.grad; }

 protected:
  explicit FusedMlp(FlatParameters flat)
      : flat_(std::move(flat)), loss_(torch::zeros({}, flat_.data.options())) {}

  FlatParameters flat_;
  torch::Tensor loss_;
};

/// @param model float32, all of it trained
/// @param batch_size samples of the largest batch
/// @param threads that compute, on a CPU; their number changes no bit of the result
/// @param allocate_gradients where the storage of gradients() comes from; empty: from LibTorch
/// @throws c10::Error for a model of another kind
std::unique_ptr<FusedMlp> make_fused_mlp(const Mlp& model, int64_t batch_size, int threads = 1,
                                         const AllocateFunction& allocate_gradients = {});

namespace fused {

/// On a CPU: our own kernels. A step allocates nothing.
std::unique_ptr<FusedMlp> make_cpu_mlp(const FlatParameters& flat, int64_t batch_size, int threads);
/// On any device, but meant for GPUs: ATen operators that write to tensors allocated before.
std::unique_ptr<FusedMlp> make_aten_mlp(const FlatParameters& flat, int64_t batch_size);

}  // namespace fused
}  // namespace ddp
