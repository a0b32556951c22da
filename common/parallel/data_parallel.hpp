// common/parallel/data_parallel.hpp - one process, several devices, as torch.nn.DataParallel.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <vector>

namespace ddp {

/// Splits `input` along dimension 0 into one part per device, sizes differing by at most one, and
/// copies each part there.
std::vector<torch::Tensor> scatter(const torch::Tensor& input,
                                   const std::vector<torch::Device>& devices);

/// A copy of the module on every device, with parameters of its own to collect gradients in.
///
/// Note [Replicas]: DataParallel makes the copies anew in every forward, since the optimizer has
/// changed the original in between. On the original's own device nothing is copied: the replica's
/// parameters share its memory.
std::vector<std::shared_ptr<torch::nn::Module>> replicate(
    const torch::nn::Module& module, const std::vector<torch::Device>& devices);

/// Calls `apply(i)` for every replica at once, each on a thread of its own; the exception of the
/// first that has one is rethrown when all are done.
void parallel_apply(size_t replicas, const std::function<void(size_t)>& apply);

/// Concatenates the replicas' outputs on `device`. Its backward does the reverse: it scatters the
/// gradient, runs every replica's backward in parallel (left alone, autograd would run CPU replicas
/// one after the other), and adds the replicas' gradients up, in order, into the original's.
torch::Tensor gather(const torch::nn::Module& module,
                     const std::vector<std::shared_ptr<torch::nn::Module>>& replicas,
                     const std::vector<torch::Tensor>& outputs, const torch::Device& device);

/// The counterpart of torch.nn.DataParallel for a module holder such as ddp::Mlp: the module must
/// be Cloneable and map one tensor to one tensor. No gradient flows into `input`.
/// @param  input (batch, ...) on any device
/// @return       (batch, ...) on devices.front()
template <typename ModuleHolder>
torch::Tensor data_parallel(ModuleHolder& module, const torch::Tensor& input,
                            const std::vector<torch::Device>& devices) {
  using Module = typename ModuleHolder::ContainedType;
  const std::vector<torch::Tensor> inputs = scatter(input, devices);
  const auto replicas = replicate(*module, devices);
  std::vector<torch::Tensor> outputs(devices.size());
  parallel_apply(devices.size(), [&](size_t i) {
    outputs[i] = std::dynamic_pointer_cast<Module>(replicas[i])->forward(inputs[i]);
  });
  return gather(*module, replicas, outputs, devices.front());
}

}  // namespace ddp
