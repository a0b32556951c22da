// common/parallel/data_parallel.hpp - one process, several devices, as torch.nn.DataParallel.
#pragma once

#include <torch/nn/module.h>

#include "common/base/worker_pool.hpp"

namespace ddp {

/// Copies `module`, which must be Cloneable, to each of the devices. The copies share no memory
/// with it. The state of the random generator does not change.
/// @throws c10::Error from torch's clone()
std::vector<std::shared_ptr<torch::nn::Module>> clone_to(const torch::nn::Module& module,
                                                         const std::vector<torch::Device>& devices);

/// Threads, one for each device, with the device and the caller's streams as current.
class DeviceThreads {
 public:
  /// @throws c10::Error if there is no device, or a GPU twice: autograd has one thread for each
  explicit DeviceThreads(std::vector<torch::Device> devices);
  const std::vector<torch::Device>& devices() const noexcept { return devices_; }
  /// Calls `apply(i)` for every device at once. The first exception is rethrown when all are done.
  void run(c10::function_ref<void(size_t)> apply);

 private:
  std::vector<torch::Device> devices_;
  WorkerPool threads_;
};

/// The part of DataParallel that does not depend on the module's type.
///
/// Note [Replicas]: every forward copies the original's weights to the replicas, because the
/// optimizer has changed them. On the original's device nothing is copied: the replica's parameters
/// share the original's memory. The first replica's buffers do so too, so that batch norm keeps its
/// statistics. Every forward copies parameters, buffers, requires_grad, and train() or eval().
/// Other members of a module stay as they were cloned.
class Replicas {
 public:
  /// @throws c10::Error if there are tied parameters, no device, or a GPU twice
  Replicas(std::shared_ptr<torch::nn::Module> module, std::vector<torch::Device> devices);

  /// Splits `input` along dimension 0 into a part for each device, and copies each part to its
  /// device. Sizes differ by at most one. On the input's own device the part is a view.
  /// @param input (batch, ...) on any device
  /// @throws c10::Error if it requires a gradient
  std::vector<torch::Tensor> scatter(const torch::Tensor& input) const;
  /// Gives all replicas the module's weights, see Note [Replicas].
  void replicate();
  /// Concatenates the replicas' outputs on the first device. Its backward scatters the gradient,
  /// runs every replica's backward in parallel, and adds the replicas' gradients, in order, to the
  /// module's gradients. Autograd by itself would run the backward of CPU replicas one after the
  /// other. @param outputs (batch / devices, ...) each @return (batch, ...)
  torch::Tensor gather(const std::vector<torch::Tensor>& outputs) const;

 private:
  std::shared_ptr<torch::nn::Module> module_;

 protected:
  std::shared_ptr<DeviceThreads> threads_;  // shared with the graphs of outputs
  std::vector<std::shared_ptr<torch::nn::Module>> replicas_;
};

/// Counterpart of torch.nn.DataParallel for a module holder such as ddp::Mlp. The module must be
/// Cloneable and map one tensor to one tensor. No gradient flows into the input, see scatter().
template <typename ModuleHolder>
class DataParallel : public Replicas {
 public:
  DataParallel(const ModuleHolder& module, std::vector<torch::Device> devices)
      : Replicas(module.ptr(), std::move(devices)) {}

  /// Calls forward of all replicas at once, each on its thread. Rethrows the first exception.
  /// @param inputs (batch / devices, ...) each, from scatter() @return outputs, for gather()
  std::vector<torch::Tensor> parallel_apply(const std::vector<torch::Tensor>& inputs) {
    using Module = typename ModuleHolder::ContainedType;
    std::vector<torch::Tensor> outputs(inputs.size());
    threads_->run(
        [&](size_t i) { outputs[i] = dynamic_cast<Module&>(*replicas_[i]).forward(inputs[i]); });
    return outputs;
  }

  /// Calls all four. @param input (batch, ...) @return (batch, ...) on the first device
  torch::Tensor forward(const torch::Tensor& input) {
    const std::vector<torch::Tensor> inputs = scatter(input);
    replicate();
    return gather(parallel_apply(inputs));
  }
};

}  // namespace ddp
