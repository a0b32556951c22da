// tests/support/shm_ranks.hpp - ranks over shared memory as threads or as processes, and what their
// reductions must give.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/backends/shm/shm_communicator.hpp"
#include "tests/support/rank_exchange.hpp"

namespace ddp::test {

/// Runs `body` on `world_size` threads, each with its own mapping. Assertions belong after it, in
/// the main thread; the first exception of a rank is rethrown when all have ended.
void run_shm_threads(int world_size, const std::function<void(shm::Communicator&)>& body);

/// What became of a process.
struct ProcessOutcome {
  std::string text;  ///< what its body returned, or "<type>: <message>" of what it threw
  int status = 0;  ///< as waitpid() gives it
};

/// Children of this process, one for each rank, that run `body` and end.
class RankProcesses {
 public:
  using Body = std::function<std::string(int rank, const Exchange& exchange)>;
  RankProcesses(int world_size, const Body& body);
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  /// What a body calls to say that it got so far.
  static void tick(int rank);
  /// Blocks until that rank has called tick() `times` times. @throws std::runtime_error after 60 s
  static void await(int rank, int times);
  void await_all(int times) const;
  /// Kills who has not ended after 60 s.
  std::vector<ProcessOutcome> wait();

 private:
  std::unique_ptr<RankExchange> exchange_;
  std::vector<pid_t> pids_;
  std::vector<int> pipes_;
};

/// An element's bits, as wide as the type, in the low bits.
using Bits = uint64_t;

/// What reducing one element of every rank, in this order, must give: computed one element at a
/// time, with the rounding of half precision done in double.
Bits expected_reduction(DType dtype, ReduceOp op, const std::vector<Bits>& values);
/// Equal, or both not a number: whose bits may differ.
bool same_element(DType dtype, Bits a, Bits b);
bool is_nan(DType dtype, Bits value);
Bits load_element(const void* data, size_t index, size_t bytes);

/// The same for every caller; different for every rank and element. Some are infinite, some NaN.
std::vector<std::byte> rank_data(DType dtype, size_t count, int rank, uint64_t seed);

extern const std::vector<DType> kAllDTypes;
extern const std::vector<ReduceOp> kAllReduceOps;

/// Gives this process, and those that it starts from now on, an empty /dev/shm of their own.
/// @param options of a tmpfs, as "size=1m"
/// @throws std::runtime_error unless run as root
void own_shared_memory(const char* options = "");
/// How many names there are in /dev/shm.
size_t count_shared_memory_names();

}  // namespace ddp::test
