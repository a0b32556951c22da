// common/parallel/process_group.hpp - the ranks of a job, and how they talk.
#pragma once

#include <c10/util/SmallVector.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/launch/launch_environment.hpp"
#include "common/launch/options.hpp"
#include "common/parallel/collective_log.hpp"
#include "common/parallel/collective_watch.hpp"
#include "common/parallel/step_trace.hpp"

namespace ddp {

/// Views of one contiguous, one-dimensional tensor, of which each rank owns a part. The lists are
/// what c10d's calls want, made once.
struct DividedTensor {
  std::vector<torch::Tensor> whole;  ///< just one
  std::vector<torch::Tensor> parts;  ///< by rank, in order; of equal size but for the last ones,
                                     ///< which may be shorter or empty
  bool is_even() const { return parts.front().numel() == parts.back().numel(); }
};

DividedTensor divide(const torch::Tensor& whole, int world_size);

/// How long a rank waited for communication that nothing hid.
struct WaitTime {
  using Event = std::shared_ptr<c10::Event>;  ///< recorded again when nobody has it any more
  double host_ms = 0;  ///< starting collectives and waiting for them
  std::vector<std::pair<Event, Event>> device;  ///< before and after, on a GPU's stream
  /// On a GPU only when the stream is idle.
  double total_ms() const;
};

/// What communication cost a rank.
struct CommunicationWait {
  WaitTime backward;  ///< for sums
  WaitTime gather;  ///< for the weights of a sharded optimizer
  c10::SmallVector<int64_t, 16> all_reduce_bytes;  ///< one entry per all-reduce that was started
  int64_t gather_bytes = 0;
};

/// c10d's process group with its store, and a clock that adds up how long this rank waited for
/// communication. Every rank must make the same calls in the same order; a call throws when
/// --timeout has passed, and the message names the line that called: `site`.
///
/// Note [Default group]: as in Python, init_process_group() makes a group that whatever is given
/// none uses. There is one per thread, since in tests a rank is a thread.
class ProcessGroup {
 public:
  /// @param watch over calls to the backend; none: those return, or throw, by themselves
  ProcessGroup(LaunchEnvironment environment, c10::intrusive_ptr<c10d::Store> store,
               c10::intrusive_ptr<c10d::ProcessGroup> group, std::string backend_name,
               torch::Device device, std::shared_ptr<CollectiveWatch> watch = nullptr,
               std::shared_ptr<CollectiveLog> log = std::make_shared<CollectiveLog>());
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;
  ~ProcessGroup() = default;

  int rank() const noexcept { return environment_.rank; }
  int world_size() const noexcept { return environment_.world_size; }
  const LaunchEnvironment& environment() const noexcept { return environment_; }
  const std::string& backend_name() const noexcept { return backend_name_; }
  const torch::Device& device() const noexcept { return device_; }

  /// Sums `tensor` over all ranks, in place. Any shape, on device().
  void all_reduce(torch::Tensor tensor, const CallSite& site = CallSite::current()) const {
    wait(start_all_reduce(std::move(tensor), site));
  }
  /// The same without waiting: hand the result to wait() before reading the tensor.
  /// @return nothing to wait for while all-reduces are paused
  c10::intrusive_ptr<c10d::Work> start_all_reduce(
      torch::Tensor tensor, const CallSite& site = CallSite::current()) const {
    std::vector<torch::Tensor> tensors{std::move(tensor)};
    return start_all_reduce(tensors, c10d::ReduceOp::SUM, site);
  }
  /// The same for a vector of one tensor, as c10d wants it, that the caller makes only once.
  /// @param op SUM, or AVG if has_average()
  c10::intrusive_ptr<c10d::Work> start_all_reduce(
      std::vector<torch::Tensor>& tensors, c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM,
      const CallSite& site = CallSite::current()) const;
  /// Whether the backend divides while it adds, with the bits of a division afterwards, which
  /// takes a pass over the tensor: about as long as to sum a large one over two ranks. (NCCL's AVG
  /// multiplies before it adds: other bits unless the ranks are a power of two, and a sum that
  /// NVSwitch cannot do.)
  bool has_average() const noexcept { return backend_name_ == "shm"; }
  void wait(const c10::intrusive_ptr<c10d::Work>& work) const { wait(work, wait_.backward); }
  /// The same, but of the sum each rank gets its own part only; what its tensor holds elsewhere is
  /// undefined. An all-reduce where the backend has nothing cheaper.
  c10::intrusive_ptr<c10d::Work> start_reduce_scatter(
      DividedTensor& tensor, const CallSite& site = CallSite::current()) const;
  /// Copies every rank's own part of each tensor to all ranks, in place. While paused it does
  /// nothing.
  void gather_parts(std::vector<DividedTensor>& tensors,
                    const CallSite& site = CallSite::current()) const;
  /// Copies the root's `tensor` to all ranks, in place.
  void broadcast(torch::Tensor tensor, int root = 0,
                 const CallSite& site = CallSite::current()) const;
  /// @return (world_size, ...): row r is rank r's `tensor`
  torch::Tensor all_gather(const torch::Tensor& tensor,
                           const CallSite& site = CallSite::current()) const;
  void barrier(const CallSite& site = CallSite::current()) const;
  /// Collective. (numel) elements on device(), not initialised, in memory that all_reduce() works
  /// on without a copy if the backend has such; ordinary memory otherwise.
  torch::Tensor allocate(int64_t numel, torch::ScalarType dtype) const;

  /// A key of the store that is another one each time, and the same on all ranks if they call this
  /// alike: an earlier exchange's texts are still there.
  std::string exchange_key(const std::string& topic) const;
  /// Compares `text` with the other ranks', through the store: no collective runs that ranks with
  /// different ideas of the job could hang or abort in. @param topic what is compared, for messages
  /// @throws UsageError, on all ranks, naming the rank and the first line that differs
  /// @throws TransientError naming the ranks that did not come within --timeout
  void verify_same(const std::string& topic, const std::string& text) const;
  /// The same exchange for whatever `objection` finds in the ranks' texts, on rank 0; "" if
  /// nothing.
  void verify(
      const std::string& topic, const std::string& text,
      const std::function<std::string(const std::vector<std::string>& texts)>& objection) const;
  /// Rank 0's text, on every rank, through the store. @param topic as above
  std::string share(const std::string& topic, const std::string& text) const;

  /// What this rank waited since the last call, while the timer was enabled.
  CommunicationWait take_wait() const { return std::exchange(wait_, {}); }
  void enable_wait_timer(bool enabled = true) { wait_timer_enabled_ = enabled; }
  /// `trace` is told of every collective, and of waits while the timer is enabled.
  /// @param trace null: nobody is told
  void set_trace(StepTrace* trace) { trace_ = trace; }
  /// Counts what a CUDA Graph repeats without a call to this object: the bytes of `captured`.
  void record_bytes(const CommunicationWait& captured) const;
  /// While paused, all_reduce() leaves tensors as they are: how fast would a step be if
  /// communication were free?
  void pause_all_reduce(bool paused) { all_reduce_paused_ = paused; }
  /// Has `look` called with what this rank gives to every sum, before it starts, paused or not; it
  /// may throw. Empty: nothing is called.
  void before_all_reduce(std::function<void(const torch::Tensor& own)> look) {
    before_all_reduce_ = std::move(look);
  }
  /// While accumulating, DistributedDataParallel only adds gradients up, as under no_sync(): this
  /// micro-batch does not complete its step.
  void set_accumulating(bool accumulating) { accumulating_ = accumulating; }
  bool is_accumulating() const noexcept { return accumulating_; }
  bool is_destroyed() const noexcept { return destroyed_; }

  /// Has `release` called when the process group is destroyed, before its connections are: NCCL
  /// waits there, for ever, until no CUDA Graph holds one of its collectives any more.
  void before_shutdown(std::function<void()> release) const {
    before_shutdown_.push_back(std::move(release));
  }

  /// As NoticesLostRanks; empty where the backend sees it in the next collective only.
  std::string lost_rank() const;

  /// For what must not go through the backend, as when the backend itself is measured.
  const c10::intrusive_ptr<c10d::Store>& store() const noexcept { return store_; }
  /// What c10d's own components, such as its Reducer, are built on.
  const c10::intrusive_ptr<c10d::ProcessGroup>& c10d_group() const noexcept { return group_; }

 private:
  friend void destroy_process_group(ProcessGroup& process_group);

  /// Calls `collective` with the backend, under the watch.
  template <typename Collective>
  auto call(const Collective& collective) const;
  /// The same for a collective on `tensor`, which is logged; what it throws names `site`, too.
  template <typename Collective>
  c10::intrusive_ptr<c10d::Work> call(const char* kind, const torch::Tensor& tensor,
                                      const CallSite& site, const Collective& collective) const;
  /// Calls `collective`, which starts to sum `tensor`, unless all-reduces are paused.
  template <typename Collective>
  c10::intrusive_ptr<c10d::Work> start(const char* kind, const torch::Tensor& tensor,
                                       const CallSite& site, const Collective& collective) const;
  void wait(const c10::intrusive_ptr<c10d::Work>& work, WaitTime& time) const;
  /// This rank has waited since `begin`, on the host.
  void add_wait(WaitTime& time, std::chrono::steady_clock::time_point begin) const;
  /// The device's stream, now.
  WaitTime::Event record() const;
  /// The same while the timer is enabled if on a GPU too a collective is over when it has started:
  /// its stream stands still meanwhile. Else null.
  WaitTime::Event record_if_blocking() const;
  /// @throws Error (1) naming the late ranks, if that can be found out
  void wait(c10d::Work& work) const;
  /// Starts to copy the root's `tensor` to all ranks.
  void start_broadcast(const torch::Tensor& tensor, int root, const CallSite& site,
                       std::vector<c10::intrusive_ptr<c10d::Work>>& works) const;

  LaunchEnvironment environment_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::string backend_name_;
  torch::Device device_;
  std::shared_ptr<CollectiveWatch> watch_;
  std::shared_ptr<CollectiveLog> log_;  // that threads which watch over collectives have, too
  StepTrace* trace_ = nullptr;
  bool wait_timer_enabled_ = false;
  bool all_reduce_paused_ = false;
  bool accumulating_ = false;
  bool destroyed_ = false;
  std::function<void(const torch::Tensor&)> before_all_reduce_;
  mutable CommunicationWait wait_;
  mutable std::deque<WaitTime::Event> events_;  // the least recently recorded one first
  mutable int64_t exchanges_ = 0;
  mutable std::vector<std::function<void()>> before_shutdown_;
};

/// What init_process_group() is told by a program that has no Options.
struct ProcessGroupOptions {
  std::string backend = "auto";  ///< as --backend has it
  double timeout_seconds = 120;  ///< for rendezvous and for every collective
  std::string interface;  ///< network interface for the collectives; empty: one is found
  /// What all ranks must have been told alike, such as a batch size: one setting a line.
  std::string settings;
};

/// Meets the other ranks at the store that `environment` names, checks that all were started with
/// the same settings, connects the backend, and makes the group the default one.
/// @throws TransientError naming the missing ranks, the port that is taken or a host name that
/// stays unknown
/// @throws UsageError if the ranks' settings differ or two have one GPU
void init_process_group(const Options& options, const LaunchEnvironment& environment,
                        const torch::Device& device);
void init_process_group(const LaunchEnvironment& environment, const torch::Device& device,
                        const ProcessGroupOptions& options = {});
/// Destroys the default group, and there is none any more. Its object stays until `train` or the
/// thread has ended, or the next one is made, for those who refer to it.
void destroy_process_group();

/// The default group; null before init_process_group(), as in stage 01, and once destroyed.
ProcessGroup* find_default_process_group();
/// @throws c10::Error if there is none
ProcessGroup& default_process_group();

/// Sums `tensor` over the ranks of the default group, in place.
void all_reduce(torch::Tensor tensor, const CallSite& site = CallSite::current());
/// Copies the root's `tensor` to all ranks of the default group, in place.
void broadcast(torch::Tensor tensor, int root = 0, const CallSite& site = CallSite::current());

/// As init_process_group(), for a group of one's own.
ProcessGroup create_process_group(const Options& options, const LaunchEnvironment& environment,
                                  const torch::Device& device);
ProcessGroup create_process_group(const LaunchEnvironment& environment, const torch::Device& device,
                                  const ProcessGroupOptions& options = {});

/// What is wrong with ranks of whom each has named its device; "" if all differ.
/// @param devices UUIDs by rank; "" is unknown
std::string shared_device(const std::vector<std::string>& devices);

/// Makes `backend` the one through which `group` works on `device`.
void attach_backend(c10d::ProcessGroup& group, const torch::Device& device,
                    const c10::intrusive_ptr<c10d::Backend>& backend);

/// Waits until every rank is here, so that the store is not gone before the last one has left, then
/// closes the connections. Without this call, as when an exception unwinds, connections simply drop
/// (over Gloo, once a wait has failed, when the process ends) and peers see an error.
void destroy_process_group(ProcessGroup& process_group);

}  // namespace ddp
