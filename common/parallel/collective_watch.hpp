// common/parallel/collective_watch.hpp - what a rank does about ranks that do not come: it names
// them, and ends where a collective would not.
#pragma once

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "common/base/watchdog.hpp"
#include "common/launch/launch_environment.hpp"
#include "common/parallel/collective_log.hpp"

namespace ddp {

/// A backend says that a rank did not come in time, but not which; and whoever notices first closes
/// its connections, which is all that others see. So each rank that has noticed either says so at
/// the store.
/// @param timed_out or a connection broke, which may have other reasons
/// @return those that say nothing for a moment after another one's time was over; rank 0 if the
/// store that it serves does not answer; none if no time was over, or the store is gone
std::vector<int> late_ranks(const c10::intrusive_ptr<c10d::Store>& store,
                            const LaunchEnvironment& environment, bool timed_out);

/// Has errors of other threads that tell of a collective's timeout name the ranks that are missing,
/// and the collective that this rank called last.
void explain_timeouts(const c10::intrusive_ptr<c10d::Store>& store,
                      const LaunchEnvironment& environment,
                      std::shared_ptr<const CollectiveLog> log);

/// Note [NCCL's timeouts]: a collective that lacks a rank is a kernel that does not end, and the
/// host learns nothing of it before it asks the device. Two watch over that.
/// ProcessGroupNCCL's watchdog knows every collective by name and number. It then gives debuggers a
/// minute, and throws in its own thread. The minute is switched off (in backends/cuda/cuda.cpp),
/// and what a thread throws becomes one line and exit code 1 like any error of main()'s.
/// (TORCH_NCCL_BLOCKING_WAIT would throw in the main thread, but there the host waits for each
/// collective, and TORCH_NCCL_ASYNC_ERROR_HANDLING only chooses whether communicators are aborted
/// first, which may itself hang.) But it does not see collectives in a CUDA Graph, nor calls to
/// NCCL that do not return, as when that connects a communicator, or its channels at first use; and
/// it may wait in the driver for a lock that cudaDeviceSynchronize() holds.
/// So this class looks at what cannot stand still in a run without faults: moments that are
/// recorded on the device's stream are reached, and a watched call returns. The thread that reads
/// the clock calls neither CUDA nor NCCL.
class CollectiveWatch {
 public:
  /// @return whether the device has got further since the last question, or has nothing to do
  using GetsFurther = std::function<bool()>;

  /// Its thread throws an Error if nothing has got further for a second longer than `timeout`.
  CollectiveWatch(std::chrono::milliseconds timeout, GetsFurther gets_further);

  /// Looks no more.
  void end() { looks_ = {}; }

  /// The watched call is the life of this object. One at a time.
  class Call {
   public:
    explicit Call(CollectiveWatch& watch) : calls_(watch.calls_) { ++calls_; }
    ~Call() { ++calls_; }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    std::atomic<uint64_t>& calls_;
  };

 private:
  void look(const GetsFurther& gets_further, const std::stop_token& stop);

  std::atomic<uint64_t> calls_{0};  // odd while one runs
  Watchdog watchdog_;
  std::jthread looks_;
};

/// For the default stream of `device`, where all work of a rank meets.
CollectiveWatch::GetsFurther progress_of(const torch::Device& device);

}  // namespace ddp
