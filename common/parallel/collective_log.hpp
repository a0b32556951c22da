// common/parallel/collective_log.hpp - the last collectives of a rank, for messages about one that
// does not end, and the ranks that did not come to it.
#pragma once

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <array>
#include <mutex>

#include "common/meet/launch.hpp"

namespace ddp {

/// Line of a program. As a default argument it is the caller's line, as std::source_location would
/// be, which clang 14 does not support.
struct CallSite {
  const char* file = "";
  int line = 0;
  int bucket = -1;  ///< bucket of gradients; -1: none
  const char* caller = "";  ///< function of this library that the program calls there

  static constexpr CallSite current(const char* file = __builtin_FILE(),
                                    int line = __builtin_LINE()) noexcept {
    return {.file = file, .line = line};
  }
  /// This place, for the collectives of a function that the program calls there.
  constexpr CallSite in(const char* function) const noexcept {
    return {.file = file, .line = line, .bucket = bucket, .caller = function};
  }
  /// "called by log.epoch at 03_ddp_spawn/main.cpp:52, bucket 0 of gradients", without a function
  /// or a bucket if there is none. Paths in this project are relative to its folder.
  std::string text() const;
};

/// Log of the last collectives. The thread that calls collectives writes it, without allocating;
/// any thread reads it after a failure. Numbers begin with 1 in each process group, and are the
/// same on all ranks as long as the ranks make the same calls. Over Gloo each piece of a broadcast
/// of more than 4 MiB counts.
class CollectiveLog {
 public:
  /// @param kind string literal, "all_reduce"
  void begin(const char* kind, const torch::Tensor& tensor, const CallSite& site) noexcept;
  /// Notes the `work` of the last call.
  void started(const c10d::Work* work) noexcept;

  uint64_t count() const;
  /// Number of the collective of `work`, or of the last one if `work` is unknown.
  uint64_t number_of(const c10d::Work& work) const;
  /// Describes that collective: "all_reduce of 1024 float32 (collective 37), called at
  /// 03_ddp_spawn/by_hand.cpp:45".
  std::string of(const c10d::Work& work) const;
  /// Describes the last collective; empty if there was none.
  std::string last() const;
  /// The same without the kind and the size: "collective 37, called at 03_ddp_spawn/main.cpp:45".
  std::string last_call() const;

 private:
  struct Entry {
    const char* kind = "";
    int64_t elements = 0;
    torch::ScalarType dtype{};
    CallSite site;
    const c10d::Work* work = nullptr;  // only compared
  };

  // Called under the lock, because NCCL's watchdog reads while the host goes on.
  const Entry& entry(uint64_t number) const { return entries_[number % entries_.size()]; }
  std::string text(uint64_t number) const;

  mutable std::mutex mutex_;
  std::array<Entry, 64> entries_;  // more than the collectives in progress
  uint64_t count_ = 0;
};

/// Finds the ranks that did not come in time, which backends do not name. The rank that notices
/// first closes its connections, and the other ranks see only that. So each rank that notices a
/// timeout or a broken connection says so at the store.
/// @param timed_out false: a connection broke, which may have other reasons
/// @return the ranks that say nothing for a moment after another rank's timeout; the rank
/// that serves the store, if it does not answer; none without a timeout, or if the store is gone
std::vector<int> late_ranks(const c10::intrusive_ptr<c10d::Store>& store,
                            const LaunchEnvironment& launch, bool timed_out);

}  // namespace ddp
