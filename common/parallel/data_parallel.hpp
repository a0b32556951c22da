// common/parallel/data_parallel.hpp - one process, several devices, as torch.nn.DataParallel.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/worker_pool.hpp"

namespace ddp {

/// Copies of `module`, one on each of the devices, that share no memory with it. Draws no random
/// numbers.
std::vector<std::shared_ptr<torch::nn::Module>> clone_to(const torch::nn::Module& module,
                                                         const std::vector<torch::Device>& devices);

/// A thread for each device, on which the device and the caller's streams are current.
class DeviceThreads {
 public:
  explicit DeviceThreads(std::vector<torch::Device> devices);
  const std::vector<torch::Device>& devices() const noexcept { return devices_; }
  /// Calls `apply(i)` for every device at once. The first exception is rethrown when all are done.
  void run(c10::function_ref<void(size_t)> apply);

 private:
  std::vector<torch::Device> devices_;
  WorkerPool threads_;
};

/// The replicas of a module of any type, for DataParallel.
///
/// Note [Replicas]: DataParallel hands the weights to its replicas anew in every forward, since the
/// optimizer has changed the original in between. On the original's own device nothing is copied:
/// the replica's parameters share its memory, and so do the first replica's buffers, so that batch
/// norm's statistics are kept. Every forward brings over parameters, buffers, what requires a
/// gradient, and train() or eval(); other members of a module stay as they were cloned.
class Replicas {
 public:
  Replicas(std::shared_ptr<torch::nn::Module> module, std::vector<torch::Device> devices);

  size_t size() const noexcept { return replicas_.size(); }
  torch::nn::Module& replica(size_t i) const { return *replicas_[i]; }
  DeviceThreads& threads() const { return *threads_; }

  std::vector<torch::Tensor> scatter(const torch::Tensor& input) const;
  void replicate();
  torch::Tensor gather(const std::vector<torch::Tensor>& outputs) const;

 private:
  void update(size_t i);

  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<DeviceThreads> threads_;  // which the graphs of outputs hold, too
  std::vector<std::shared_ptr<torch::nn::Module>> replicas_;
};

/// The counterpart of torch.nn.DataParallel for a module holder such as ddp::Mlp: the module must
/// be Cloneable and map one tensor to one tensor. No gradient flows into the input.
template <typename ModuleHolder>
class DataParallel {
 public:
  DataParallel(const ModuleHolder& module, std::vector<torch::Device> devices)
      : replicas_(module.ptr(), std::move(devices)) {}

  /// Splits `input` along dimension 0 into one part per device, sizes differing by at most one, and
  /// copies each part there. On the device where the input is, a part is a view of it.
  /// @param input (batch, ...)
  std::vector<torch::Tensor> scatter(const torch::Tensor& input) const {
    return replicas_.scatter(input);
  }
  /// Gives all replicas the module's weights, see Note [Replicas].
  void replicate() { replicas_.replicate(); }
  /// Calls forward of all replicas at once, each on a thread of its own.
  std::vector<torch::Tensor> parallel_apply(const std::vector<torch::Tensor>& inputs) {
    using Module = typename ModuleHolder::ContainedType;
    std::vector<torch::Tensor> outputs(inputs.size());
    replicas_.threads().run([&](size_t i) {
      outputs[i] = dynamic_cast<Module&>(replicas_.replica(i)).forward(inputs[i]);
    });
    return outputs;
  }
  /// Concatenates the replicas' outputs on the first device. Its backward does the reverse: it
  /// scatters the gradient, runs every replica's backward in parallel (left alone, autograd would
  /// run CPU replicas one after the other), and adds the replicas' gradients up, in order, into the
  /// module's.
  /// @return (batch, ...)
  torch::Tensor gather(const std::vector<torch::Tensor>& outputs) const {
    return replicas_.gather(outputs);
  }

  /// All four.
  torch::Tensor forward(const torch::Tensor& input) {
    const std::vector<torch::Tensor> inputs = scatter(input);
    replicate();
    return gather(parallel_apply(inputs));
  }

 private:
  Replicas replicas_;
};

}  // namespace ddp
