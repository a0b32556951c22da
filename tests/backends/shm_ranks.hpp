// tests/backends/shm_ranks.hpp - ranks over shared memory as threads or as processes.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "common/backends/shm/shm_collectives.hpp"
#include "common/backends/shm/shm_kernels.hpp"

namespace ddp::test {

/// Memory that children inherit. Create it before they are forked.
class RankExchange {
 public:
  explicit RankExchange(int world_size) : world_size_(world_size) {
    void* const memory =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw std::runtime_error("no memory for the exchange");
    }
    board_ = new (memory) Board;
  }
  ~RankExchange() { munmap(board_, sizeof(Board)); }
  RankExchange(const RankExchange&) = delete;
  RankExchange& operator=(const RankExchange&) = delete;

  /// Meets the other ranks. @throws std::runtime_error if they do not come within 20 s
  shm::Exchange of(int rank) {
    return [this, rank, round = size_t{0}](const std::string& mine) mutable {
      auto& texts = board_->texts.at(round);
      auto& arrived = board_->arrived.at(round);
      ++round;
      std::strncpy(texts[static_cast<size_t>(rank)].data(), mine.c_str(), kTextBytes - 1);
      ++arrived;
      for (int wait = 0; arrived < world_size_; ++wait) {
        if (wait > 20000) {
          throw std::runtime_error("the exchange lacks ranks");
        }
        usleep(1000);
      }
      std::vector<std::string> all;
      for (int r = 0; r < world_size_; ++r) {
        all.emplace_back(texts[static_cast<size_t>(r)].data());
      }
      return all;
    };
  }

 private:
  static constexpr size_t kTextBytes = 1024;
  static constexpr size_t kRounds = 4;
  struct Board {
    std::array<std::array<std::array<char, kTextBytes>, shm::kMaxRanks + 1>, kRounds> texts{};
    std::array<std::atomic<int>, kRounds> arrived{};
  };
  int world_size_;
  Board* board_;
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
  using Body = std::function<std::string(int rank, const shm::Exchange& exchange)>;
  RankProcesses(int world_size, const Body& body);
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  /// Called by a body to report progress.
  static void tick(int rank);
  /// Blocks until every rank has called tick(). @throws std::runtime_error after 60 s
  void await_all() const;
  /// Waits for all ranks, and kills ranks that have not ended after 60 s.
  std::vector<ProcessOutcome> wait();

 private:
  std::unique_ptr<RankExchange> exchange_;
  std::vector<pid_t> pids_;
  std::vector<int> pipes_;
};

}  // namespace ddp::test
