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

/// A module's copies on several devices, with parameters of their own to collect gradients in.
struct Replicas {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;  ///< by device
  std::vector<torch::Tensor> originals;  ///< the module's own parameters
  std::vector<std::vector<torch::Tensor>> parameters;  ///< by device, in the order of `originals`
};

/// Note [Replicas]: DataParallel hands the weights to its replicas anew in every forward, since the
/// optimizer has changed the original in between. On the original's own device nothing is copied:
/// the replica's parameters share its memory, and the first replica's buffers too, so that what the
/// forward writes there (batch norm's statistics) is kept. The replicas themselves are made in the
/// first forward and live as long as the module: to clone a module draws random weights for every
/// copy, only to overwrite them. So that a forward draws nothing, the generator is put back. Later
/// forwards bring over parameters, buffers, what requires a gradient, and train() or eval(); other
/// members of a module stay as they were cloned.
///
/// @param module owned by a shared_ptr, as a module holder's is
std::shared_ptr<const Replicas> replicate(const torch::nn::Module& module,
                                          const std::vector<torch::Device>& devices);

/// Copies of `module`, one on each of the devices, that share no memory with it. Draws no random
/// numbers.
std::vector<std::shared_ptr<torch::nn::Module>> clone_to(const torch::nn::Module& module,
                                                         const std::vector<torch::Device>& devices);

/// Calls `apply(i)` for every replica at once, each on a thread of its own that waits for the next
/// call; the first exception is rethrown when all are done.
void parallel_apply(size_t replicas, const std::function<void(size_t)>& apply);
/// The same for replica i on devices[i]: there it is the current device, and the caller's current
/// stream is the replica's, so that neither waits for the other.
void parallel_apply(const std::vector<torch::Device>& devices,
                    const std::function<void(size_t)>& apply);

/// Concatenates the replicas' outputs on `device`. Its backward does the reverse: it scatters the
/// gradient, runs every replica's backward in parallel (left alone, autograd would run CPU replicas
/// one after the other), and adds the replicas' gradients up, in order, into the original's.
torch::Tensor gather(const Replicas& replicas, const std::vector<torch::Tensor>& outputs,
                     const torch::Device& device);

/// The counterpart of torch.nn.DataParallel for a module holder such as ddp::Mlp: the module must
/// be Cloneable and map one tensor to one tensor. No gradient flows into `input`.
/// @param  input (batch, ...) on any device
/// @return       (batch, ...) on devices.front()
template <typename ModuleHolder>
torch::Tensor data_parallel(ModuleHolder& module, const torch::Tensor& input,
                            const std::vector<torch::Device>& devices) {
  using Module = typename ModuleHolder::ContainedType;
  const std::vector<torch::Tensor> inputs = scatter(input, devices);
  const std::shared_ptr<const Replicas> replicas = replicate(*module, devices);
  std::vector<torch::Tensor> outputs(devices.size());
  parallel_apply(devices, [&](size_t i) {
    outputs[i] = std::dynamic_pointer_cast<Module>(replicas->modules[i])->forward(inputs[i]);
  });
  return gather(*replicas, outputs, devices.front());
}

}  // namespace ddp
