// tests/backends/shm_ranks.hpp - ranks over shared memory as threads or as processes.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <new>

#include "common/backends/shm/shm_collectives.hpp"
#include "common/backends/shm/shm_kernels.hpp"
#include "common/base/exit_codes.hpp"
#include "tests/support/rank_threads.hpp"
#include "tests/support/run_program.hpp"

namespace ddp::test {

constexpr std::chrono::seconds kPatience{60};

/// Memory that ranks share before they are connected. Children inherit it.
class RankBoard {
 public:
  using Text = std::array<char, 1024>;
  using Texts = std::array<Text, shm::kMaxRanks + 1>;  ///< by rank

  static std::shared_ptr<RankBoard> create(int world_size) {
    void* const memory =
        mmap(nullptr, sizeof(RankBoard), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw std::runtime_error("no memory for the exchange");
    }
    return {new (memory) RankBoard(world_size),
            [](RankBoard* board) { munmap(board, sizeof(RankBoard)); }};
  }
  /// Meets the other ranks. @throws std::runtime_error if they do not come within 20 s
  shm::Exchange exchange(int rank) {
    return [this, rank, number = size_t{0}](const std::string& mine) mutable {
      auto& [texts, arrived] = rounds_.at(number++);
      mine.copy(texts[static_cast<size_t>(rank)].data(), Text().size() - 1);
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
inline void run_shm_threads(int world_size, const std::function<void(shm::Collectives&)>& body) {
  const auto board = RankBoard::create(world_size);
  run_rank_threads(world_size, [&](int rank) {
    const auto communicator =
        shm::Collectives::connect(rank, world_size, kPatience, board->exchange(rank));
    body(*communicator);
    communicator->barrier();
  });
}

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
  RankProcesses(int world_size, const Body& body) : board_(RankBoard::create(world_size)) {
    for (int rank = 0; rank < world_size; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) {
        _exit(run_rank(body, rank, *board_));
      }
      pids_.push_back(pid);
    }
  }
  ~RankProcesses() { wait(); }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  /// Blocks until every rank is at work. @throws std::runtime_error after 60 s
  void await_work() const {
    if (!wait_until(static_cast<double>(kPatience.count()),
                    [&] { return board_->at_work >= std::ssize(pids_); })) {
      throw std::runtime_error("not every rank came so far");
    }
  }
  /// Waits for all ranks, and kills ranks that have not ended after 60 s.
  std::vector<ProcessOutcome> wait() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    std::vector<ProcessOutcome> outcomes;
    for (const pid_t pid : pids_) {
      int status = 0;
      while (waitpid(pid, &status, WNOHANG) == 0) {
        if (std::chrono::steady_clock::now() > deadline) {
          kill(pid, SIGKILL);
        }
        usleep(500);
      }
      outcomes.push_back({board_->results[outcomes.size()].data(), status});
    }
    pids_.clear();
    return outcomes;
  }

 private:
  /// Runs a rank in a child. @return its exit code
  static int run_rank(const Body& body, int rank, RankBoard& board) {
    const auto end = [&](int code, const std::string& text) {
      RankBoard::Text& result = board.results[static_cast<size_t>(rank)];
      text.copy(result.data(), result.size() - 1);
      return code;
    };
    try {
      return end(0, body(rank, board));
    } catch (const Error& error) {
      return end(static_cast<int>(error.code()), error.what());
    } catch (const shm::SegmentError& error) {
      return end(2, error.what());
    } catch (const std::exception& error) {
      return end(99, error.what());
    }
  }

  std::shared_ptr<RankBoard> board_;
  std::vector<pid_t> pids_;
};

}  // namespace ddp::test
