// common/parallel/mirrored.hpp - one process, several devices, as tf.distribute.MirroredStrategy.
#pragma once

#include <c10/util/FunctionRef.h>
#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

#include "common/data/data_loader.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/parallel/worker_pool.hpp"

namespace ddp {

class MirroredReplicas;

/// A value of which every replica has its own.
struct PerReplica {
  MirroredReplicas& replicas;
  std::vector<torch::Tensor> values;  ///< by replica, each on its device
  bool completes_step = true;

  /// Of losses: every replica's backward, on its thread. If the batch completes the step all
  /// replicas hold the mean of their gradients then.
  void backward() const;
};

/// A model and its copies, which are made once and stay equal: they begin with the same weights and
/// make the same updates, since what they update by is the mean of all replicas' gradients. So no
/// weights travel, and no outputs: each replica computes a loss of its own. There is a thread for
/// each, as long as this object lives.
///
/// Note [Mirrored bits]: replica i computes what rank i would in stage 03: the samples that
/// DistributedSampler gives it, the same loss, gradients that are added in the order of the
/// replicas and then divided. So the weights have the bits of stage 03 at two replicas, where a sum
/// has one order only.
///
/// Buffers (batch norm's statistics, say) are each replica's own.
class MirroredReplicas {
 public:
  /// @param model on devices.front(), where it is the first replica; Cloneable
  MirroredReplicas(std::shared_ptr<torch::nn::Module> model, std::vector<torch::Device> devices);
  MirroredReplicas(const MirroredReplicas&) = delete;
  MirroredReplicas& operator=(const MirroredReplicas&) = delete;

  size_t size() const noexcept { return modules_.size(); }
  torch::nn::Module& module(size_t i) const { return *modules_[i]; }

  /// Calls `apply(i)` for every replica at once, each on its thread and device; on all devices the
  /// caller's current streams are current there. The first exception is rethrown when all are done.
  void run(c10::function_ref<void(size_t)> apply);
  /// What `apply` makes, in run(), of replica i's share of a batch: every size()-th sample, from
  /// the i-th on.
  PerReplica map(const torch::Tensor& whole,
                 c10::function_ref<torch::Tensor(size_t, const torch::Tensor&)> apply);
  /// Gives every replica the mean of all gradients, in the order of the replicas.
  void all_reduce();
  /// For measuring: gradients stay as they are, and replicas drift apart.
  void pause_all_reduce(bool pause) { paused_ = pause; }
  /// Gives every replica the model's parameters and buffers.
  void broadcast();
  /// @throws Error (1) naming a replica whose weights are not the model's
  void expect_mirrored() const;

 private:
  std::vector<torch::Device> devices_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;  // the first is the model
  std::vector<FlatParameters> flat_;
  bool paused_ = false;
  WorkerPool threads_;
};

/// Of each replica, a Module that maps one tensor to one tensor, its output for its share.
/// @param  input (batch, ...) on any device
/// @return       of each replica its share of the batch, on its device
template <typename Module>
PerReplica forward_replicas(MirroredReplicas& replicas, const torch::Tensor& input) {
  return replicas.map(input, [&replicas](size_t i, const torch::Tensor& share) {
    return dynamic_cast<Module&>(replicas.module(i)).forward(share);
  });
}

/// The replicas of a module holder such as ddp::Mlp, which maps one tensor to one tensor.
template <typename ModuleHolder>
class Mirrored : public MirroredReplicas {
 public:
  Mirrored(const ModuleHolder& model, std::vector<torch::Device> devices)
      : MirroredReplicas(model.ptr(), std::move(devices)) {}

  /// See forward_replicas().
  PerReplica forward(const torch::Tensor& input) {
    return forward_replicas<typename ModuleHolder::ContainedType>(*this, input);
  }
};

/// Every replica's loss, as ddp::loss() of its share of the batch. The batch's observer learns
/// their mean, and that backward begins.
PerReplica loss(const PerReplica& output, const Batch& batch);

}  // namespace ddp
