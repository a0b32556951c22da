// common/parallel/mirrored.hpp - one process, several devices, as tf.distribute.MirroredStrategy.
#pragma once

#include <c10/util/FunctionRef.h>

#include "common/data/data_loader.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/parallel/data_parallel.hpp"

namespace ddp {

/// Model and its copies, which stay equal: they begin with the same weights, and each update uses
/// the mean of all replicas' gradients. So weights and outputs are never copied. Each replica
/// computes a loss of its own.
///
/// Note [Mirrored bits]: replica i computes the same as rank i in stage 03: it has the samples of
/// DistributedSampler and the same loss. Gradients are added in the order of the replicas and then
/// divided. With two replicas the weights have the bits of stage 03, because a sum of two has a
/// single order.
///
/// Each replica has its own buffers, such as batch norm's statistics.
class MirroredReplicas {
 public:
  /// @param model first replica, on devices.front(); Cloneable, without tied parameters, because
  /// LibTorch's clone() unties them
  /// @throws c10::Error if there are tied parameters, parameters of several types or none that
  /// learns, no device, or a GPU twice
  MirroredReplicas(std::shared_ptr<torch::nn::Module> model, std::vector<torch::Device> devices);

  size_t size() const noexcept { return modules_.size(); }
  torch::nn::Module& module(size_t i) const { return *modules_[i]; }

  /// Calls `apply(i)` for all replicas at the same time, each on its thread and device.
  void parallel_apply(c10::function_ref<void(size_t)> apply) { threads_.run(apply); }
  /// Replica i's share of a batch, on its device: every size()-th sample, from the i-th on.
  /// @param batch (batch, ...) contiguous
  Batch share(const Batch& batch, size_t i) const;
  /// Gives every replica the mean of all gradients, in the order of the replicas.
  void average_gradients();
  /// @param values one for each replica, of one shape @return mean, float64, on the first device
  torch::Tensor mean(const std::vector<torch::Tensor>& values) const;
  /// @throws Error (1) naming a replica with other weights than the model
  void expect_same_weights() const;

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;  // replicas; the first is the model
  std::vector<FlatParameters> flat_;
  DeviceThreads threads_;
};

/// Replicas of a module holder such as ddp::Mlp.
template <typename ModuleHolder>
class Mirrored : public MirroredReplicas {
 public:
  using Module = typename ModuleHolder::ContainedType;

  Mirrored(const ModuleHolder& model, std::vector<torch::Device> devices)
      : MirroredReplicas(model.ptr(), std::move(devices)) {}
  Module& operator[](size_t i) const { return dynamic_cast<Module&>(module(i)); }
};

}  // namespace ddp
