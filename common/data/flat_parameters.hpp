// common/data/flat_parameters.hpp - a module's parameters in one tensor, its gradients in another.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ddp {

/// With one tensor for all gradients an all-reduce needs no copy into a buffer of its own.
struct FlatParameters {
  torch::Tensor data;  ///< (total) on the module's device; the parameters are views of it, in order
  torch::Tensor grad;  ///< (total) likewise, of the gradients: see rebind_grads()
  std::vector<torch::Tensor> parameters;  ///< trainable_parameters()
  std::vector<int64_t> offsets;  ///< where each begins in data and grad; gaps are zero
  std::vector<torch::Tensor> grad_views;  ///< of `grad`, one per parameter, in its shape

  /// move_gradient() of every parameter to its view.
  void rebind_grads() const;
};

/// Makes `place` the parameter's .grad() again if backward or zero_grad() replaced it, as stock
/// optimizers have it; keeps its value, which is zero if there is none.
/// @param place as view_like() makes it
/// @param divisor () by which the value is divided; undefined: one
void move_gradient(const torch::Tensor& parameter, const torch::Tensor& place,
                   const torch::Tensor& divisor = {});

/// A tensor in `flat`'s memory from element `offset` on, in the shape of `like`, and in its strides
/// (channels_last, say) if these leave no gaps. No autograd view: in-place operations on it concern
/// nobody else.
torch::Tensor view_like(const torch::Tensor& flat, int64_t offset, const torch::Tensor& like);

/// Elements of a tensor and of the gap behind it: the next one begins with a line of cache, which
/// is also the widest vector.
int64_t padded_elements(const torch::Tensor& tensor);

/// The parameters that require a gradient, in order. One that has several names (tied weights) is
/// there once, in the place of its first.
std::vector<torch::Tensor> trainable_parameters(const torch::nn::Module& module);

/// (numel) elements on the module's device, whose values do not matter.
using AllocateFunction = std::function<torch::Tensor(int64_t numel, torch::ScalarType dtype)>;

/// Moves the parameters (and zeroed gradients) into flat storage, or finds them there from an
/// earlier call.
/// @param allocate_gradients where new gradients' storage comes from; empty: from LibTorch
/// @throws c10::Error unless all trainable parameters have one dtype and one device
FlatParameters flatten_parameters(const torch::nn::Module& module,
                                  const AllocateFunction& allocate_gradients = {});

/// All parameters, frozen ones too, in order: (total) float64, on the host.
torch::Tensor parameter_vector(const torch::nn::Module& module);

/// Hash of the parameters' bytes in order, without gaps: 32 hex digits. Equal hash, equal bits.
std::string parameter_hash(const torch::nn::Module& module);

}  // namespace ddp
