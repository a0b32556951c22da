// common/parallel/process_group.hpp - the ranks of a job, and how they talk.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/launch/launch_environment.hpp"
#include "common/launch/options.hpp"
#include "common/parallel/collective_log.hpp"

namespace ddp {

/// c10d's process group: ranks, their backend and its collectives. All ranks make the same calls in
/// the same order. A call throws when --timeout has passed, and the message names the calling line.
/// (c10d's class alone names no rank and no line, which is why there is this one.)
///
/// Note [Default group]: as in Python, init_process_group() makes a group that is used wherever no
/// group is given. There is one per thread, since in tests a rank is a thread.
class ProcessGroup {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  /// Makes a backend of ranks that meet at `store`.
  using Connect = std::function<c10::intrusive_ptr<c10d::Backend>(
      const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size)>;

  /// @param all_reduces false: all_reduce() leaves tensors as they are, for --no-communication
  /// @param connect for subgroup()
  ProcessGroup(LaunchEnvironment launch, c10::intrusive_ptr<c10d::Store> store,
               c10::intrusive_ptr<c10d::ProcessGroup> group, torch::Device device,
               std::shared_ptr<CollectiveLog> log = std::make_shared<CollectiveLog>(),
               bool all_reduces = true, Connect connect = {});
  /// On a GPU, a subgroup waits for its collectives.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const noexcept { return launch_.rank; }
  int world_size() const noexcept { return launch_.world_size; }
  const LaunchEnvironment& launch() const noexcept { return launch_; }
  const torch::Device& device() const noexcept { return device_; }
  std::string backend_name() const { return group_->getDefaultBackend()->getBackendName(); }
  bool all_reduces() const noexcept { return all_reduces_; }

  /// Collective over this group: every rank calls it, whether it is among `ranks` or not.
  /// @param ranks of this group; the first is rank 0 of the new one. With the same backend
  /// @return null on a rank that is not among them. Its messages number ranks as the new group does
  /// @throws UsageError if the ranks differ between ranks, or one is there twice or not at all; or
  /// over MPI, which connects all ranks of its world
  std::unique_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks) const;

  /// Sums `tensor` over all ranks, in place. Any shape, on device().
  /// @param op SUM, MAX or MIN
  void all_reduce(const torch::Tensor& tensor, c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM,
                  const CallSite& site = CallSite::current()) const;
  /// The same without waiting: hand the result to wait() before reading the tensor.
  /// @param tensor of one contiguous tensor, a vector as c10d takes it
  /// @param op SUM, or AVG over shm, which divides while it adds
  Work start_all_reduce(std::vector<torch::Tensor>& tensor,
                        c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM,
                        const CallSite& site = CallSite::current()) const;
  /// @throws Error (1) naming the late ranks, where the backend lets that be found out
  void wait(const Work& work) const;
  /// Copies the root's `tensor` to all ranks, in place.
  void broadcast(const torch::Tensor& tensor, int root = 0,
                 const CallSite& site = CallSite::current()) const;
  /// @return (world_size, ...): row r is rank r's `tensor`
  torch::Tensor all_gather(const torch::Tensor& tensor,
                           const CallSite& site = CallSite::current()) const;
  /// Sums rank by rank what the ranks have for this one. @param input (world_size, ...): row r is
  /// for rank r @param op SUM, MAX or MIN @return (...)
  torch::Tensor reduce_scatter(const torch::Tensor& input,
                               c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM,
                               const CallSite& site = CallSite::current()) const;
  /// Sends `tensor` to one rank, which calls recv(). Over Gloo and NCCL.
  /// @throws c10::Error naming a backend that cannot
  void send(const torch::Tensor& tensor, int to, const CallSite& site = CallSite::current()) const;
  /// Waits for what rank `from` sends. @param tensor of the same size and type, in place
  void recv(const torch::Tensor& tensor, int from,
            const CallSite& site = CallSite::current()) const;
  /// Returns when all ranks are here, on GPUs too.
  void barrier(const CallSite& site = CallSite::current()) const;

  /// Collective. (numel) elements on device(), not initialised, in memory that all_reduce() reads
  /// without a copy if the backend has such; ordinary memory otherwise.
  torch::Tensor allocate(int64_t numel, torch::ScalarType dtype) const;

  /// For messages past the backend, see agreement.hpp.
  const c10::intrusive_ptr<c10d::Store>& store() const noexcept { return store_; }
  /// For c10d's own components, such as its Reducer.
  const c10::intrusive_ptr<c10d::ProcessGroup>& c10d_group() const noexcept { return group_; }

 private:
  /// Calls `collective` with the backend. What it throws names the line that called.
  template <typename Collective>
  Work start(const char* kind, const torch::Tensor& tensor, const CallSite& site,
             const Collective& collective) const;
  /// Calls `work` with `tensor`, or with a contiguous copy that is copied back.
  template <typename Collective>
  void on_contiguous(const torch::Tensor& tensor, const Collective& work) const;

  LaunchEnvironment launch_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  torch::Device device_;
  std::shared_ptr<CollectiveLog> log_;  // which the backend's threads read, too
  bool all_reduces_;
  Connect connect_;
  bool is_subgroup_ = false;
};

/// For init_process_group() of a program without Options.
struct ProcessGroupOptions {
  std::string backend = "auto";  ///< as --backend has it
  double timeout_seconds = 600;  ///< for the rendezvous and for every collective
  std::string interface = {};  ///< network interface for the collectives; empty: one is found
  /// Settings that all ranks must share, such as a batch size: one a line.
  std::string settings = {};
  bool all_reduces = true;  ///< false: for measuring, see ProcessGroup
};

/// Collective. Meets the other ranks at the store that `launch` names, checks that all were started
/// with the same settings, connects the backend, and makes the group the default one.
/// @throws TransientError naming the missing ranks, the port that is taken or a host name that
/// stays unknown
/// @throws UsageError if the ranks' settings differ or two have one GPU
///
/// May be called again once the group before was destroyed. Works in any main(), where SIGPIPE is
/// ignored from then on; run_rank() and spawn() add that an error is one line and an exit code, and
/// that no rank outlives its launcher.
void init_process_group(const Options& options, const LaunchEnvironment& launch,
                        const torch::Device& device);
void init_process_group(const LaunchEnvironment& launch, const torch::Device& device,
                        const ProcessGroupOptions& options = {});
/// Collective. Waits until every rank is here, so that the store is not gone before the last one
/// has left, then closes the connections. Without this call, as when an exception unwinds,
/// connections simply drop, and peers see an error.
void destroy_process_group();

/// The default group; null before init_process_group(), as in stage 01, and once destroyed.
const ProcessGroup* find_default_process_group();
/// @throws c10::Error if there is none
const ProcessGroup& default_process_group();

/// Sums `tensor` over the ranks of the default group, in place.
inline void all_reduce(const torch::Tensor& tensor,
                       c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM,
                       const CallSite& site = CallSite::current()) {
  default_process_group().all_reduce(tensor, op, site);
}
/// Copies the root's `tensor` to all ranks of the default group, in place.
inline void broadcast(const torch::Tensor& tensor, int root = 0,
                      const CallSite& site = CallSite::current()) {
  default_process_group().broadcast(tensor, root, site);
}
/// Collective over the default group: a group of some of its ranks, see ProcessGroup::subgroup().
inline std::unique_ptr<ProcessGroup> new_group(const std::vector<int>& ranks) {
  return default_process_group().subgroup(ranks);
}
inline void barrier(const CallSite& site = CallSite::current()) {
  default_process_group().barrier(site);
}
/// Collective: memory that the ranks share, if the backend has such.
inline torch::Tensor allocate(int64_t numel, torch::ScalarType dtype) {
  return default_process_group().allocate(numel, dtype);
}

/// Collective. Compares the ranks' weights, which must be the same bits.
/// @throws Error (1), on all ranks, naming the ranks that differ from rank 0, unless
/// --no-communication was given
void expect_same_weights(const torch::nn::Module& module);

/// Makes `backend` the one through which `group` works on `device`.
void attach_backend(c10d::ProcessGroup& group, const torch::Device& device,
                    const c10::intrusive_ptr<c10d::Backend>& backend);

}  // namespace ddp
