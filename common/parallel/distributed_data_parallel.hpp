// common/parallel/distributed_data_parallel.hpp - averages gradients over ranks during backward.
#pragma once

#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/tensor_flatten.h>

#include <unordered_map>

#include "common/parallel/default_group.hpp"
#include "common/parallel/gradient_buckets.hpp"
#include "common/parallel/model_check.hpp"

namespace ddp {

struct DistributedDataParallelOptions {
  BucketSizes buckets = {};
  /// Copies rank 0's buffers, such as batch norm's statistics, to all ranks in every forward.
  /// false: only at the start.
  bool broadcast_buffers = true;
  /// Names of parameters and buffers that are left as they are: not compared, sent nor averaged.
  /// May differ between ranks, such as for a layer that only one rank has.
  std::vector<std::string> ignored = {};
};

/// Turns communication off while it lives: backward only accumulates gradients.
class NoSync {
 public:
  NoSync(bool& synchronize, bool active) : synchronize_(synchronize), before_(synchronize) {
    synchronize_ = before_ && !active;
  }
  ~NoSync() { synchronize_ = before_; }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  bool& synchronize_;
  bool before_;
};

/// Engine of DistributedDataParallel, for a module of any type.
///
/// A hook on each parameter moves its gradient into a bucket and counts. The last gradient of a
/// bucket starts its all-reduce. Backward makes gradients roughly in reverse order of the
/// parameters, so the first bucket has the last parameters. After backward 1, 2, 4, 8 and so on,
/// buckets follow the order of rank 0's gradients in that backward; parameters that a backward has
/// missed come last, because a bucket that waits for them holds up all later buckets. All ranks
/// start buckets in the same order. At the end of backward, buckets that are not full are started
/// too, and all buckets are waited for. With a single rank there are no buckets, only the checks.
///
/// Note [Unused parameters]: a parameter that a backward does not use contributes its present
/// gradient, which earlier micro-batches or another loss may have set, or zero. Afterwards, with
/// several ranks, every parameter has a gradient on every rank. Optimizers skip parameters without
/// a gradient, so they do the same on all ranks. Every synchronised backward must use at least one
/// parameter on every rank, because the first hook starts the work. A zero gradient still moves a
/// parameter if the optimizer has momentum or weight decay. A parameter that was frozen
/// (requires_grad=false on all ranks) gets no gradient and does not change.
/// Ranks that use different parameters start buckets at different times. Their backward must not
/// contain other collectives of the group, such as SyncBatchNorm's.
///
/// Note [Failed backward]: a backward may throw on all ranks, which then go on. If it throws on
/// some ranks only, and these go on, their next gradients would meet the other ranks' present
/// gradients. So a rank whose backward threw sends the missing buckets, whose values nobody uses,
/// and waits, before its next backward, until the backward has thrown on all ranks. Ranks on which
/// it did not throw end with an error that names this rank, see Note [Stops]. As in Python, a
/// backward that threw before its first gradient has not begun.
///
/// An accumulator of gradients keeps the stream on which it was made, so wrap a model on the stream
/// on which its forwards run.
///
/// Several reducers may share a process group and a backward, as when a GAN's generator learns
/// through the discriminator. Their buckets must fill in the same order on all ranks, so ranks must
/// not use different parameters of several reducers in the same backward.
class GradientReducer {
 public:
  /// Broadcasts rank 0's parameters and buffers.
  /// @param site caller that messages about this object's collectives name
  /// @param module must outlive this object
  /// @throws UsageError naming the first difference between a rank's model or options and rank 0's,
  /// a parameter that another living reducer has, or an unknown name in `ignored`
  GradientReducer(torch::nn::Module& module, const ProcessGroup& process_group,
                  const DistributedDataParallelOptions& options, const CallSite& site);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Collective, unless in no_sync(). Broadcasts rank 0's buffers.
  /// @throws UsageError naming a parameter that would not be averaged, because after this object
  /// was made it was added, moved to another device, type or shape, or unfrozen
  /// @throws Error (1) if the last backward threw on some ranks only
  void before_forward();
  NoSync no_sync(bool active) { return NoSync(synchronize_, active); }
  void register_comm_hook(CommHook hook) { buckets_.set_hook(std::move(hook)); }

 private:
  /// Pointer to the reducer for its hooks. When a backward fails on one of autograd's threads, the
  /// other threads may still run hooks while the exception destroys the reducer.
  struct HookTarget {
    std::mutex mutex;  // autograd has a thread for each GPU of the process
    GradientReducer* reducer;  // null: destroyed
  };

  const std::string& name_of(const torch::Tensor& parameter) const;
  void add_hook(size_t parameter);
  void gradient_ready(size_t parameter);
  /// Calls finish_backward() at the end of the outermost running backward.
  /// @param running kept until then, unless the backward throws
  static void finish_at_end(const std::shared_ptr<HookTarget>& target,
                            const std::shared_ptr<void>& running);
  void finish_backward();
  /// See Note [Failed backward].
  void leave_failed_backward();
  void rebuild_buckets();
  /// Hooks parameters again that torch::load() or to() gave new memory.
  /// @throws the errors of before_forward()
  void expect_unchanged();
  /// Copies rank 0's values to all ranks, in few messages. @param groups of one type each
  void broadcast(const std::vector<torch::utils::TensorGroup>& groups) const;

  torch::nn::Module& module_;
  const ProcessGroup& process_group_;
  CallSite site_;
  bool synchronize_ = true;
  std::shared_ptr<void> taken_;  // marks the parameters as this reducer's
  struct Layout {  // what a parameter keeps
    std::vector<int64_t> sizes;
    caffe2::TypeMeta dtype;
    torch::Device device;
  };

  std::vector<torch::Tensor> parameters_;  // to average
  std::vector<Layout> layouts_;  // of parameters_
  std::vector<torch::Tensor> frozen_;  // parameters that required no gradient
  std::vector<torch::utils::TensorGroup> buffers_;  // to broadcast in every forward
  /// All parameters that the module had, ignored ones too.
  std::unordered_map<const torch::TensorImpl*, NamedTensors::value_type> named_;
  std::vector<const torch::TensorImpl*> walked_;  // parameters as the module lists them
  GradientBuckets buckets_;  // none with a single rank
  // Autograd's nodes that hold the hooks: parameters refer to them only weakly. By shared_ptr, or
  // from LibTorch 2.15 on by intrusive_ptr.
  std::vector<decltype(torch::autograd::impl::grad_accumulator({}))> accumulators_;

  std::shared_ptr<HookTarget> target_;  // its mutex guards the members below
  std::weak_ptr<void> backward_;  // expires when the backward ends, or throws
  bool is_unfinished_ = false;  // a backward has begun, and not reached finish_backward()
  std::vector<bool> ready_;  // by parameter: its gradient is there
  std::vector<size_t> pending_;  // by bucket: number of gradients that are missing
  size_t next_to_start_ = 0;
  uint64_t backwards_ = 0;
  std::vector<bool> missed_;  // by parameter: some backward gave it no gradient
  std::vector<int64_t> ready_order_;  // parameters, in the order of a backward's gradients
};

/// Counterpart of torch.nn.parallel.DistributedDataParallel for a module holder such as ddp::Mlp,
/// or a shared_ptr to a module. After loss.backward() every rank has the mean of all ranks'
/// gradients. Construction and forward() throw the errors of GradientReducer. Buckets, hooks and
/// overlap are as in Li et al., "PyTorch Distributed", VLDB 2020.
template <typename ModuleHolder>
class DistributedDataParallel {
 public:
  /// Collective, over the default group. Every rank gets rank 0's weights.
  /// @param bucket_mib size of a bucket of gradients; the first bucket has 1 MiB
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
  /// Access to the module's other members: parallel_model->parameters().
  auto* operator->() { return module_.get(); }
  const auto* operator->() const { return module_.get(); }
  const ModuleHolder& module() const noexcept { return module_; }

  /// Turns communication off until the result is destroyed. Keep it for all micro-batches of a step
  /// but the last. @param active false: no effect, so that a loop needs no second body
  [[nodiscard]] NoSync no_sync(bool active = true) { return reducer_.no_sync(active); }

  /// Replaces the all-reduce of each bucket. Call it on all ranks, between steps.
  void register_comm_hook(CommHook hook) { reducer_.register_comm_hook(std::move(hook)); }

 private:
  ModuleHolder module_;
  GradientReducer reducer_;
};

}  // namespace ddp
