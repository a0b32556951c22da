// common/meet/board.hpp - what ranks tell each other in texts, through a store alone: before there
// is a backend, and where a wrong collective would hang, abort or add up wrong numbers.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <map>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "common/base/process_exit.hpp"

namespace ddp {

/// The connection to the store broke.
struct StoreGone : TransientError {
  using TransientError::TransientError;
};

/// Calls `body`, which talks to the store. @throws StoreGone naming `what`
template <typename Body>
auto at_store(const std::string& what, const Body& body) {
  try {
    return body();
  } catch (const c10::DistNetworkError&) {
    wait_for_launcher();
    throw StoreGone("the store went away during " + what +
                    ", expected rank 0 (or the launcher's agent) to serve it");
  }
}

/// Notices of the ranks of a group at its store. All ranks make the same calls, and a topic may
/// come again. Texts may be empty. A call that waits names the ranks that do not come within
/// `patience`, in which time during which this process is stopped does not count.
class Board {
 public:
  Board(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
        std::chrono::milliseconds patience)
      : store_(std::move(store)), rank_(rank), world_size_(world_size), patience_(patience) {}

  /// Collective. @param what the event for messages, if `topic` does not name it
  /// @return every rank's text, by rank
  /// @throws TransientError naming the ranks that gave none, StoreGone
  std::vector<std::string> gather(const std::string& topic, const std::string& text,
                                  const std::string& what = "");
  /// Collective. Checks that all ranks have the same `text`.
  /// @throws UsageError, on all ranks, naming the rank and the first line that differs
  /// @throws TransientError, on all ranks, naming the ranks that gave none
  void same(const std::string& topic, const std::string& text);
  /// Like same(), but rank 0 judges: `objection` gets all texts by rank, and returns what is wrong,
  /// or "". All ranks throw that as a UsageError.
  using Objection = std::function<std::string(const std::vector<std::string>& texts)>;
  void check(const std::string& topic, const std::string& text, const Objection& objection);
  /// Collective. @return rank 0's text, on every rank @throws TransientError if there is none
  std::string from_rank_0(const std::string& topic, const std::string& text);
  /// Collective. Waits until all ranks have called it, 10 s at most: if the rank that serves the
  /// store ended earlier, the others would report a broken connection. Throws nothing.
  void wait_for_readers(const std::string& topic);

  /// Notes that this rank was here. Waits for nobody.
  void leave(const std::string& topic) { put(topic, ""); }
  /// @return ranks that have not called leave()
  std::vector<int> missing(const std::string& topic) const;

 private:
  /// Prefix of the keys of this call, the same on all ranks that call alike.
  std::string next(const std::string& topic) { return key(topic, rounds_[topic]++); }
  static std::string key(const std::string& prefix, int number) {
    return prefix + "/" + std::to_string(number);
  }
  void put(const std::string& prefix, const std::string& text);
  std::string take(const std::string& prefix, int rank) const;
  bool wait_for_ranks(const std::string& prefix, int ranks, std::chrono::milliseconds limit) const;
  std::vector<std::string> texts_of_ranks(const std::string& prefix, const std::string& what) const;
  std::string wait_for_rank_0(const std::string& prefix, const std::string& topic) const;

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int world_size_;
  std::chrono::milliseconds patience_;
  std::map<std::string, int> rounds_;  // calls so far, by topic
};

}  // namespace ddp
