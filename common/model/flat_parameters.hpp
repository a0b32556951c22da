// common/model/flat_parameters.hpp - a module's parameters in one tensor, its gradients in another.
#pragma once

#include <torch/nn/module.h>

namespace ddp {

/// Parameters and gradients in one tensor each, so that an all-reduce needs no copy to a buffer.
struct FlatParameters {
  torch::Tensor data;  ///< (total) on the module's device; parameters are views in order, gaps 0
  torch::Tensor grad;  ///< (total) on the same device; the gradients are views, see rebind_grads()
  std::vector<torch::Tensor> parameters;  ///< trainable_parameters()
  std::vector<torch::Tensor> grad_views;  ///< views of `grad`, one per parameter, in its shape

  /// move_gradient() of every parameter to its view.
  void rebind_grads() const;
};

/// Makes `place` the parameter's .grad() again if backward, or a stock optimizer's zero_grad(),
/// replaced it. Copies the gradient's value to `place`, or zero if there is no gradient.
/// @param place from view_like()
/// @param divisor () the value is divided by it; undefined: no division
void move_gradient(const torch::Tensor& parameter, const torch::Tensor& place,
                   const torch::Tensor& divisor = {});

/// Tensor in `flat`'s memory from element `offset` on, in the shape of `like`, and in its strides
/// (such as channels_last) if these leave no gaps. It is no autograd view: in-place operations on
/// it do not change the version of `flat`.
torch::Tensor view_like(const torch::Tensor& flat, int64_t offset, const torch::Tensor& like);

/// Elements of a tensor and of the gap behind it: the next tensor begins with a cache line, which
/// is as long as the widest vector.
int64_t padded_elements(const torch::Tensor& tensor);

/// Parameters that require a gradient, in order. A parameter with several names (tied weights)
/// occurs once, at its first name.
std::vector<torch::Tensor> trainable_parameters(const torch::nn::Module& module);

/// Returns (numel) uninitialised elements on the module's device.
using AllocateFunction = std::function<torch::Tensor(int64_t numel, torch::ScalarType dtype)>;

/// Moves the parameters and their gradients into new flat storage. A missing gradient
/// becomes zero.
/// @param allocate_gradients allocates the gradients' storage; empty: LibTorch does
/// @throws c10::Error unless all trainable parameters have one dtype and one device
FlatParameters flatten_parameters(const torch::nn::Module& module,
                                  const AllocateFunction& allocate_gradients = {});

/// Hash of the parameters' bytes in order, without gaps: 32 hex digits.
std::string parameter_hash(const torch::nn::Module& module);

}  // namespace ddp
