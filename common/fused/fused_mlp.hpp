// common/fused/fused_mlp.hpp - a training step of the MLP without autograd.
#pragma once

#include "common/data/data_loader.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/model/mlp.hpp"

namespace ddp {

/// Forward, backward and update of an Mlp written out by hand, on storage that is allocated once.
///
/// Autograd is general: it builds a graph in every forward, and each operator looks up a kernel and
/// allocates its result. A single known model needs only the arithmetic: our own kernels on a CPU,
/// ATen's operators on a GPU.
class FusedMlp {
 public:
  virtual ~FusedMlp() = default;

  /// Takes the batch of the next step. Do not change its target before forward().
  virtual void load(const Batch& batch) = 0;
  /// Computes loss(). @throws c10::Error on a CPU for a target outside the model's classes
  virtual void forward() = 0;
  /// Replaces gradients() by the gradients of loss().
  virtual void backward() = 0;
  /// SGD: weights -= rate * gradients
  virtual void step(double rate) = 0;

  /// Same scalar as ddp::loss(). The next forward() overwrites it.
  const torch::Tensor& loss() const { return loss_; }
  /// All weights and biases, (elements) float32: the model's parameters are views of it.
  const torch::Tensor& weights() const { return flat_.data; }
  /// Gradients in the layout of weights().
  const torch::Tensor& gradients() const { return flat_.grad; }

 protected:
  explicit FusedMlp(FlatParameters flat)
      : flat_(std::move(flat)), loss_(torch::zeros({}, flat_.data.options())) {}

  FlatParameters flat_;
  torch::Tensor loss_;
};

/// @param model float32, all of it trained
/// @param batch_size samples of the largest batch
/// @param threads threads of the CPU kernels; their number changes no bit of the result
/// @param allocate_gradients allocates the storage of gradients(); empty: LibTorch does
/// @throws c10::Error for other dtypes and for frozen parameters
std::unique_ptr<FusedMlp> make_fused_mlp(const Mlp& model, int64_t batch_size, int threads = 1,
                                         const AllocateFunction& allocate_gradients = {});

namespace fused {

/// Our own kernels, for CPUs. A step allocates nothing.
std::unique_ptr<FusedMlp> make_cpu_mlp(const FlatParameters& flat, int64_t batch_size, int threads);
/// ATen operators that write to existing tensors, for GPUs. Tests run them on the CPU too.
std::unique_ptr<FusedMlp> make_aten_mlp(const FlatParameters& flat, int64_t batch_size);

}  // namespace fused
}  // namespace ddp
