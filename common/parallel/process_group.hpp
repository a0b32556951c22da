// common/parallel/process_group.hpp - the ranks of a job, and their collectives.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "common/backends/communicator.hpp"
#include "common/backends/traits.hpp"
#include "common/meet/board.hpp"
#include "common/meet/launch.hpp"
#include "common/parallel/collective_log.hpp"

namespace ddp {

/// Group of ranks with a backend and its collectives, around c10d's process group. All ranks make
/// the same calls in the same order. A call throws when --timeout has passed, and names the late
/// ranks and the calling line, which c10d does not. Collectives come with and without waiting. All
/// ranks give tensors of one shape and type; wrong rows, or strides where contiguous ones are asked
/// for, are a c10::Error.
/// It has over 15 functions, because each verb of torch.distributed is one.
///
/// Note [Stops]: a rank that has ended its training, or that goes on after a backward that failed
/// there alone, makes other calls than the ranks that wait for it. So it says how many collectives
/// it has called, at the store and in shared memory. A rank that waits in a later collective gives
/// up, and names it.
class ProcessGroup {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  /// Makes a backend of the ranks that meet at `store`.
  using Connect = std::function<c10::intrusive_ptr<c10d::Backend>(
      const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size)>;

  /// Collective. Connects the backend.
  /// @param launch rank, world size, and the rank that serves `store`, for messages
  /// @param store place of these ranks alone; its timeout is the limit of every collective
  /// @param device device of all tensors; over Gloo, shm and MPI the CPU, as a rule
  /// @param connect makes the backend, and those of subgroup(); its errors pass through
  /// @param all_reduces false: all_reduce() does not change tensors, for --no-communication
  /// @param log receives the calls, also for threads of the backend
  ProcessGroup(LaunchEnvironment launch, c10::intrusive_ptr<c10d::Store> store,
               const torch::Device& device, Connect connect, bool all_reduces = true,
               std::shared_ptr<CollectiveLog> log = std::make_shared<CollectiveLog>());
  /// Waits for the collectives of a subgroup on a GPU.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const noexcept { return launch_.rank; }
  int world_size() const noexcept { return launch_.world_size; }
  const LaunchEnvironment& launch() const noexcept { return launch_; }
  const torch::Device& device() const noexcept { return device_; }
  /// Empty in a world without init_process_group().
  std::string backend_name() const { return group_->getDefaultBackend()->getBackendName(); }
  const BackendTraits& traits() const noexcept { return traits_; }
  bool all_reduces() const noexcept { return all_reduces_; }

  /// Collective over this group, also for ranks that are not in `ranks`. Makes a group with the
  /// same backend and its own numbers of ranks, also in messages: the first of `ranks` is rank 0.
  /// @return null on a rank that is not in `ranks`
  /// @throws UsageError if `ranks` differs between ranks, repeats a rank or has an unknown rank;
  /// or if the backend has no subgroups, as MPI
  std::unique_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks) const;

  /// Sums `tensor` over all ranks, in place. Any shape, on device().
  /// @param op SUM, MAX, MIN, or for floating-point and complex numbers AVG
  void all_reduce(const torch::Tensor& tensor, c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM,
                  const CallSite& site = CallSite::current()) const;
  /// The same without waiting: pass the result to wait() before reading the tensor.
  /// @param tensor a single contiguous tensor, in a vector for c10d
  /// @param op as in all_reduce(); over Gloo AVG divides before it adds
  Work start_all_reduce(std::vector<torch::Tensor>& tensor,
                        c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM,
                        const CallSite& site = CallSite::current()) const;
  /// @throws Error (1) naming the late ranks, if they are known
  void wait(const Work& work) const;
  /// Copies the root's `tensor` to all ranks, in place. Any shape and strides, the same shape and
  /// type on all ranks: a difference is an Error over shm, and undefined over other backends.
  /// @param root 0 to world_size() - 1
  void broadcast(const torch::Tensor& tensor, int root = 0,
                 const CallSite& site = CallSite::current()) const;
  /// The same without waiting. @param tensor contiguous
  Work start_broadcast(const torch::Tensor& tensor, int root = 0,
                       const CallSite& site = CallSite::current()) const;
  /// @return (world_size, ...): row r is rank r's `tensor`
  torch::Tensor all_gather(const torch::Tensor& tensor,
                           const CallSite& site = CallSite::current()) const;
  /// The same without waiting. @param tensor contiguous
  /// @param rows (world_size, ...) contiguous, to which the result goes
  Work start_all_gather(const torch::Tensor& rows, const torch::Tensor& tensor,
                        const CallSite& site = CallSite::current()) const;
  /// Sums the ranks' rows for this rank. @param input (world_size, ...): row r is for rank r
  /// @param op as in all_reduce() @return (...)
  torch::Tensor reduce_scatter(const torch::Tensor& input,
                               c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM,
                               const CallSite& site = CallSite::current()) const;
  /// The same without waiting, in place: then rows[rank()] has the result, and the other rows are
  /// undefined. @param rows (world_size, ...) contiguous
  Work start_reduce_scatter(const torch::Tensor& rows,
                            c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM,
                            const CallSite& site = CallSite::current()) const;
  /// @param input (world_size, ...): row r is for rank r @return (world_size, ...): row r is from r
  torch::Tensor all_to_all(const torch::Tensor& input,
                           const CallSite& site = CallSite::current()) const;
  /// Sends `tensor` to a rank that calls recv(), over Gloo and NCCL.
  /// @throws c10::Error naming another backend
  void send(const torch::Tensor& tensor, int to, const CallSite& site = CallSite::current()) const;
  /// Receives the tensor that rank `from` sends. @param tensor of the same size and type, in place
  void recv(const torch::Tensor& tensor, int from,
            const CallSite& site = CallSite::current()) const;
  /// Returns when all ranks have called it, and the work on their GPUs is done.
  void barrier(const CallSite& site = CallSite::current()) const;

  /// Collective. Allocates (numel) uninitialised elements on device(), if possible in memory that
  /// all_reduce() reads without a copy.
  torch::Tensor allocate(int64_t numel, torch::ScalarType dtype) const;

  /// Texts between the ranks, without the backend.
  Board& board() const noexcept { return board_; }
  const c10::intrusive_ptr<c10d::Store>& store() const noexcept { return store_; }
  /// Group for c10d's own components, such as its Reducer.
  const c10::intrusive_ptr<c10d::ProcessGroup>& c10d_group() const noexcept { return group_; }

  /// Says that this rank calls no further collective, see Note [Stops].
  void end_training() const;
  /// Collective for ranks whose last backward failed, before they go on.
  /// @throws Error (1) if it did not fail on all ranks
  void meet_after_failed_backward() const;

 private:
  void stop(Stop stop) const;
  void expect_rows(const char* what, const torch::Tensor& rows) const;
  /// send() or recv(). Its errors name the other rank and the calling line. Not counted: ranks send
  /// different numbers of messages, and see Note [Stops].
  void pass(bool sends, const torch::Tensor& tensor, int peer, const CallSite& site) const;
  /// Calls `collective` with the backend. Its errors name the calling line.
  template <typename Collective>
  Work start(const char* kind, const torch::Tensor& tensor, const CallSite& site,
             const Collective& collective) const;

  LaunchEnvironment launch_;
  c10::intrusive_ptr<c10d::Store> store_;
  torch::Device device_;
  Connect connect_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  BackendTraits traits_;
  /// For c10d: Gloo's own clock runs on while a job is suspended, so there wait() has the limit.
  std::chrono::milliseconds limit_;
  mutable Board board_;  // counts its calls
  std::shared_ptr<CollectiveLog> log_;  // the backend's threads read it too
  bool all_reduces_;
  bool is_subgroup_ = false;
  mutable Stop failed_backwards_ = 0;
};

}  // namespace ddp
