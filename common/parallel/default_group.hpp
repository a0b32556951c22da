// common/parallel/default_group.hpp - makes and ends the group of all ranks of a job.
#pragma once

#include "common/launch/options.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp {

/// Note [Default group]: as in Python, init_process_group() makes the group that is used wherever
/// no group is given, in every thread of the process.

/// Options of init_process_group(), for programs without Options.
struct ProcessGroupOptions {
  std::string backend = "auto";  ///< value of --backend
  double timeout_seconds = 600;  ///< limit for the rendezvous and for every collective
  std::string interface = {};  ///< network interface for the collectives; empty: found by itself
  /// Settings that all ranks must share, such as a batch size, line by line.
  std::string settings = {};
  bool all_reduces = true;  ///< false: only for measuring, see ProcessGroup
};

/// Collective. Meets the other ranks at the store of `launch`, checks that all ranks have the same
/// settings, connects the backend, and makes the default group.
/// @throws TransientError naming the missing ranks, a port that is taken or a host name that stays
/// unknown
/// @throws UsageError if the ranks' settings differ or two ranks have the same GPU
///
/// May be called again after destroy_process_group(). Works in any main(), and ignores SIGPIPE from
/// then on. Under run_rank() and spawn() an error is also a line and an exit code, and no rank
/// outlives its launcher.
void init_process_group(const Options& options, const LaunchEnvironment& launch,
                        const torch::Device& device);
void init_process_group(LaunchEnvironment launch, torch::Device device,
                        const ProcessGroupOptions& options = {});
/// Collective. Waits until every rank has called it, so that the store outlives all ranks, then
/// closes the connections. Without this call, as after an exception, connections break, and peers
/// see an error. @throws TransientError naming the ranks that did not call it in time
void destroy_process_group(const CallSite& site = CallSite::current());

/// @throws c10::Error if there is none, as in stage 01
const ProcessGroup& default_process_group();
/// The default group, or before init_process_group() and after the destruction a group of this
/// rank alone, with the restart count of the environment. Its collectives take tensors of any
/// device, and return at once.
/// @throws UsageError if there is no group and the launcher's variables contradict one another
const ProcessGroup& world();

/// Sums `tensor` over the ranks of the default group, in place. Shapes and errors of this and of
/// the other functions are in ProcessGroup.
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
/// Returns when all ranks have called it.
inline void barrier(const CallSite& site = CallSite::current()) {
  default_process_group().barrier(site);
}
/// Collective. Allocates memory that the ranks share, if the backend has shared memory.
inline torch::Tensor allocate(int64_t numel, torch::ScalarType dtype) {
  return default_process_group().allocate(numel, dtype);
}

/// Names the first pair of ranks that use the same CUDA device. Objection for Board::check().
/// @param devices UUIDs by rank; "" if unknown
std::string shared_device(const std::vector<std::string>& devices);

}  // namespace ddp
