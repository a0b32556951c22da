// tests/support/shm_ranks.hpp - ranks over shared memory as threads or as processes, and what their
// reductions must give.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/backends/shm/shm_communicator.hpp"

namespace ddp::test {

/// Runs `body` on `world_size` threads, each with its own mapping. Assertions belong after it, in
/// the main thread; the first exception of a rank is rethrown when all have ended.
void run_shm_threads(int world_size, const std::function<void(shm::Communicator&)>& body);

/// What became of a process.
struct ProcessOutcome {
  std::string text;  ///< what its body returned, or "<type>: <message>" of what it threw
  int status = 0;  ///< as waitpid() gives it
  double seconds = 0;  ///< from the call of wait() to its end
};

/// Children of this process, one for each rank, that run `body` and end.
class RankProcesses {
 public:
  using Body = std::function<std::string(int rank, const shm::Exchange& exchange)>;
  RankProcesses(int world_size, const Body& body);
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  /// What a body calls to say that it got so far.
  static void tick(int rank);
  /// Blocks until every rank has called tick() `times` times. @return false after 20 s
  bool wait_for_ticks(int times) const;
  /// Kills who has not ended after 20 s.
  std::vector<ProcessOutcome> wait();

 private:
  std::vector<pid_t> pids_;
  std::vector<bool> ended_;
  std::vector<int> pipes_;
  int world_size_;
  void* exchange_;
};

/// An element's bits, as wide as the type, in the low bits.
using Bits = uint64_t;

/// What reducing one element of every rank, in this order, must give: computed one element at a
/// time, with the rounding of half precision done in double.
Bits expected_reduction(shm::DType dtype, shm::ReduceOp op, const std::vector<Bits>& values);
/// Equal, or both not a number: whose bits may differ.
bool same_element(shm::DType dtype, Bits a, Bits b);
bool is_nan(shm::DType dtype, Bits value);
Bits load_element(const void* data, size_t index, size_t bytes);

/// The same for every caller; different for every rank and element. Some are infinite, some not a
/// number.
std::vector<std::byte> rank_data(shm::DType dtype, size_t count, int rank, uint64_t seed);

extern const std::vector<shm::DType> kAllDTypes;
extern const std::vector<shm::ReduceOp> kAllReduceOps;

/// Names in /dev/shm.
std::set<std::string> shared_memory_names();

}  // namespace ddp::test
