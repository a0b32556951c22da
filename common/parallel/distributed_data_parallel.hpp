// common/parallel/distributed_data_parallel.hpp - averages gradients over ranks during backward.
#pragma once

#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/parallel/gradient_buckets.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp {

struct DistributedDataParallelOptions {
  BucketSizes buckets = {};
  /// Every forward gives all ranks rank 0's buffers: batch norm's statistics, say. false: each rank
  /// has its own, after they began with rank 0's.
  bool broadcast_buffers = true;
};

/// The engine behind DistributedDataParallel, for a module of any type.
///
/// A hook on each parameter moves its gradient into a bucket and counts, and the last gradient of a
/// bucket starts its all-reduce. Backward makes gradients roughly in reverse order of the
/// parameters, so buckets begin with the last one; after the first backward they are laid out in
/// the order in which rank 0's gradients came. All ranks start buckets in the same order. When
/// backward is through, buckets that are not full are started too, all are waited for, and the sums
/// become means. Alone, a rank does nothing of this.
///
/// Note [Unused parameters]: one that takes no part in a backward contributes what its gradient
/// holds, from micro-batches before or another loss, and zero if it has none. Afterwards, with
/// several ranks, every parameter has a gradient on every rank, be it zero: optimizers, which pass
/// over parameters without one, do the same on all ranks. But at least one parameter must take part
/// in every synchronised backward on every rank: the first hook is what starts the work. A zero is
/// not nothing to an optimizer with momentum or weight decay: the parameter moves on. A parameter
/// that was frozen (requires_grad=false on all ranks) gets no gradient and stays where it is.
/// Ranks that differ in which parameters take part start buckets at different times: no other
/// collective of the group may come within their backward, as SyncBatchNorm's would.
///
/// Several reducers may share a process group, and a backward (a GAN's generator learns through the
/// discriminator), as long as their buckets fill up in the same order on all ranks: not if ranks
/// use different parameters of several reducers in one backward.
class GradientReducer {
  /// A shared_ptr, or from LibTorch 2.15 on an intrusive_ptr.
  using AccumulatorPointer =
      decltype(torch::autograd::impl::grad_accumulator(std::declval<const torch::Tensor&>()));

 public:
  /// Broadcasts rank 0's parameters and buffers.
  /// @param site what messages about this object's collectives name as their caller
  /// @throws UsageError naming the first parameter in which a rank's model or options differ from
  /// rank 0's, or one that another living reducer has
  GradientReducer(torch::nn::Module& module, const ProcessGroup& process_group,
                  const DistributedDataParallelOptions& options, const CallSite& site);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Collective, unless in no_sync(). Broadcasts rank 0's buffers.
  /// @throws UsageError naming a parameter that would not be averaged: it was moved to another
  /// device or type, or unfrozen, since this object was made
  void before_forward();
  bool synchronize() const { return synchronize_; }
  void set_synchronize(bool synchronize) { synchronize_ = synchronize; }
  void register_comm_hook(CommHook hook) { buckets_.set_hook(std::move(hook)); }
  size_t bucket_count() const { return buckets_.size(); }

 private:
  /// What hooks know of the reducer. When a backward fails on one of autograd's threads, the others
  /// may still run hooks while the exception unwinds the caller's stack, the reducer included.
  struct HookTarget {
    std::mutex mutex;  // With several GPUs in one process autograd has a thread for each.
    GradientReducer* reducer;  // none: it is gone
  };

  const std::string& name_of(const torch::Tensor& parameter) const;
  void add_hooks();
  void gradient_ready(size_t parameter);
  /// Calls finish_backward() when the backward that runs has ended, the outermost one.
  /// @param running kept until then, unless the backward throws
  static void finish_at_end(const std::shared_ptr<HookTarget>& target,
                            const std::shared_ptr<void>& running);
  void finish_backward();
  void rebuild_buckets();
  /// @throws as before_forward()
  void expect_unchanged() const;
  void broadcast_buffers() const;

  const ProcessGroup& process_group_;
  CallSite site_;
  bool synchronize_ = true;
  std::shared_ptr<void> taken_;  // the parameters, by this reducer
  std::vector<torch::Tensor> frozen_;  // parameters that required no gradient
  std::vector<torch::Tensor> buffers_;
  std::unordered_map<const torch::TensorImpl*, std::string> names_;
  GradientBuckets buckets_;
  // What adds each parameter's gradients up, and has the hook: parameters refer to it only weakly.
  std::vector<AccumulatorPointer> accumulators_;

  bool broadcasts_buffers_;  // in every forward
  std::shared_ptr<HookTarget> target_;  // whose mutex is for what follows
  std::weak_ptr<void> backward_;  // expires when the backward ends, by an exception too
  std::vector<bool> ready_;  // parameters whose gradient is there
  std::vector<size_t> pending_;  // parameters in each bucket whose gradient is not there yet
  size_t next_to_start_ = 0;
  bool rebuilt_ = false;
  std::vector<int64_t> ready_order_;  // parameters, in the order of a backward's gradients
};

/// While it lives, backward only adds gradients up: no communication.
class NoSync {
 public:
  NoSync(GradientReducer& reducer, bool active)
      : reducer_(reducer), before_(reducer.synchronize()) {
    reducer_.set_synchronize(before_ && !active);
  }
  ~NoSync() { reducer_.set_synchronize(before_); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  GradientReducer& reducer_;
  bool before_;
};

/// The counterpart of torch.nn.parallel.DistributedDataParallel for a module holder such as
/// ddp::Mlp, or a shared_ptr to a module. After loss.backward() every rank holds the mean of all
/// ranks' gradients.
template <typename ModuleHolder>
class DistributedDataParallel {
 public:
  /// Collective, over the default group: every rank takes rank 0's weights.
  /// @param bucket_mib gradients that are all-reduced together; the first bucket has 1 MiB
  explicit DistributedDataParallel(ModuleHolder module, double bucket_mib = kBucketMib,
                                   const CallSite& site = CallSite::current())
      : DistributedDataParallel(std::move(module), default_process_group(),
                                {.buckets = bucket_sizes(bucket_mib)}, site) {}
  /// @param process_group must outlive this object
  DistributedDataParallel(ModuleHolder module, const ProcessGroup& process_group,
                          const DistributedDataParallelOptions& options = {},
                          const CallSite& site = CallSite::current())
      : module_(std::move(module)), reducer_(*module_, process_group, options, site) {}

  template <typename... Inputs>
  auto forward(Inputs&&... inputs) {
    reducer_.before_forward();
    return module_->forward(std::forward<Inputs>(inputs)...);
  }
  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) {
    return forward(std::forward<Inputs>(inputs)...);
  }
  /// For all but forward: parallel_model->parameters().
  auto* operator->() const { return module_.get(); }
  const ModuleHolder& module() const noexcept { return module_; }

  /// Put the result round all but the last micro-batch of a step.
  /// @param active false: nothing happens, so that a loop needs no second body
  [[nodiscard]] NoSync no_sync(bool active = true) { return NoSync(reducer_, active); }

  /// Replaces the all-reduce of each bucket. On all ranks, between steps.
  void register_comm_hook(CommHook hook) { reducer_.register_comm_hook(std::move(hook)); }

  size_t bucket_count() const { return reducer_.bucket_count(); }

 private:
  ModuleHolder module_;
  GradientReducer reducer_;
};

}  // namespace ddp
