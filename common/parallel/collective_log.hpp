// common/parallel/collective_log.hpp - the last collectives of a rank, by number, kind, size and
// the line of the program that called them: what is said of one that does not end, and which ranks
// did not come to it.
#pragma once

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/launch/launch_environment.hpp"

namespace ddp {

/// A line of a program. As a default argument it is the caller's, like std::source_location, for
/// which clang 14 lacks the builtin.
struct CallSite {
  const char* file = "";
  int line = 0;
  int bucket = -1;  ///< of gradients, if one travels

  static constexpr CallSite current(const char* file = __builtin_FILE(),
                                    int line = __builtin_LINE()) noexcept {
    return {.file = file, .line = line};
  }
  /// "called at 03_ddp_spawn/by_hand.cpp:45": relative to this project's folder if it lies there.
  /// With a bucket: "called at 03_ddp_spawn/main.cpp:21, bucket 0 of gradients".
  std::string text() const;
};

/// Written by the thread that calls collectives, a few words for each, into memory that is there
/// from the beginning; read from any thread once something failed. Numbers begin with 1 in each
/// process group, and are the same on all ranks as long as these make the same calls. (Over Gloo a
/// broadcast of more than 4 MiB counts once for each piece.)
class CollectiveLog {
 public:
  /// @param kind lives as long as the program; "all_reduce"
  void begin(const char* kind, const torch::Tensor& tensor, const CallSite& site) noexcept;
  /// The call that began last returned `work`.
  void started(const c10d::Work* work) noexcept;

  /// "all_reduce of 1024 float32 (collective 37), called at 03_ddp_spawn/by_hand.cpp:45": the
  /// collective that `work` is of, or the last one if it is of none.
  std::string of(const c10d::Work& work) const;
  /// The last one; empty if there was none.
  std::string last() const;
  /// "collective 37, called at 03_ddp_spawn/by_hand.cpp:45": the same for a message that says
  /// already what was called.
  std::string last_call() const;

 private:
  struct Entry {
    const char* kind = "";
    int64_t elements = 0;
    torch::ScalarType dtype{};
    CallSite site;
    const c10d::Work* work = nullptr;  // compared only
  };

  // What follows is under the lock: NCCL's watchdog reads while the host goes on.
  const Entry& entry(uint64_t number) const { return entries_[number % entries_.size()]; }
  std::string text(uint64_t number) const;

  mutable std::mutex mutex_;
  std::array<Entry, 64> entries_;  // more than are on their way at a time
  uint64_t count_ = 0;
};

/// A backend says that a rank did not come in time, but not which. Whoever notices first closes its
/// connections, which is all that the others see. So each rank that has noticed either says so at
/// the store.
/// @param timed_out or a connection broke, which may have other reasons
/// @return ranks that say nothing for a moment after another rank's time was over; rank 0 if the
/// store that it serves does not answer; none if no time was over, or the store is gone
std::vector<int> late_ranks(const c10::intrusive_ptr<c10d::Store>& store,
                            const LaunchEnvironment& launch, bool timed_out);

/// Makes one line of what NCCL's watchdog throws in its own thread after a timeout: the
/// collective, the line that called it, and the late ranks.
void explain_nccl_timeouts(const c10::intrusive_ptr<c10d::Store>& store,
                           const LaunchEnvironment& launch,
                           std::shared_ptr<const CollectiveLog> log);

}  // namespace ddp
