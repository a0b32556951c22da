// tests/backends/shm_ranks.hpp - ranks over shared memory as threads or as processes.
#pragma once

#include <sys/types.h>

#include "common/backends/shm/shm_collectives.hpp"
#include "common/backends/shm/shm_kernels.hpp"

namespace ddp::test {

/// Memory that ranks share before they are connected. Children inherit it.
class RankBoard {
 public:
  using Text = std::array<char, 1024>;
  using Texts = std::array<Text, shm::kMaxRanks + 1>;  ///< by rank

  static std::shared_ptr<RankBoard> create(int world_size);
  /// Meets the other ranks. @throws std::runtime_error if they do not come within 20 s
  shm::Exchange exchange(int rank);

  std::atomic<int> at_work{0};  ///< ranks that have counted themselves
  Texts results{};  ///< of RankProcesses

 private:
  struct Round {
    Texts texts{};
    std::atomic<int> arrived{0};
  };
  explicit RankBoard(int world_size) : world_size_(world_size) {}

  int world_size_;
  std::array<Round, 4> rounds_;
};

/// Runs `body` on `world_size` threads, by run_rank_threads(), each with its own mapping.
void run_shm_threads(int world_size, const std::function<void(shm::Collectives&)>& body);

/// End of a process.
struct ProcessOutcome {
  std::string text;  ///< result of its body, or the message of its exception
  int status = 0;  ///< status from waitpid()
};

/// Children of this process, one for each rank, that run `body` and end with exit code 0, the code
/// of its ddp::Error, or 2 for a SegmentError.
class RankProcesses {
 public:
  using Body = std::function<std::string(int rank, RankBoard& board)>;
  RankProcesses(int world_size, const Body& body);
  ~RankProcesses() { wait(); }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  /// Blocks until every rank is at work. @throws std::runtime_error after 60 s
  void await_work() const;
  /// Waits for all ranks, and kills ranks that have not ended after 60 s.
  std::vector<ProcessOutcome> wait();

 private:
  std::shared_ptr<RankBoard> board_;
  std::vector<pid_t> pids_;
};

}  // namespace ddp::test
