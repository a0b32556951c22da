#include "tests/backends/shm_ranks.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <new>

#include "common/base/exit_codes.hpp"
#include "tests/support/rank_threads.hpp"

namespace ddp::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{60};

/// Runs a rank in a child. @return its exit code
int run_rank(const RankProcesses::Body& body, int rank, RankBoard& board) {
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

}  // namespace

std::shared_ptr<RankBoard> RankBoard::create(int world_size) {
  void* const memory =
      mmap(nullptr, sizeof(RankBoard), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::runtime_error("no memory for the exchange");
  }
  return {new (memory) RankBoard(world_size),
          [](RankBoard* board) { munmap(board, sizeof(RankBoard)); }};
}

shm::Exchange RankBoard::exchange(int rank) {
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

void run_shm_threads(int world_size, const std::function<void(shm::Collectives&)>& body) {
  const auto board = RankBoard::create(world_size);
  run_rank_threads(world_size, [&](int rank) {
    const auto communicator =
        shm::Collectives::connect(rank, world_size, kPatience, board->exchange(rank));
    body(*communicator);
    communicator->barrier();
  });
}

RankProcesses::RankProcesses(int world_size, const Body& body)
    : board_(RankBoard::create(world_size)) {
  for (int rank = 0; rank < world_size; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      _exit(run_rank(body, rank, *board_));
    }
    pids_.push_back(pid);
  }
}

void RankProcesses::await_work() const {
  const Clock::time_point deadline = Clock::now() + kPatience;
  while (board_->at_work < std::ssize(pids_)) {
    if (Clock::now() > deadline) {
      throw std::runtime_error("not every rank came so far");
    }
    usleep(200);
  }
}

std::vector<ProcessOutcome> RankProcesses::wait() {
  const Clock::time_point deadline = Clock::now() + kPatience;
  std::vector<ProcessOutcome> outcomes;
  for (const pid_t pid : pids_) {
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
      if (Clock::now() > deadline) {
        kill(pid, SIGKILL);
      }
      usleep(500);
    }
    outcomes.push_back({board_->results[outcomes.size()].data(), status});
  }
  pids_.clear();
  return outcomes;
}

}  // namespace ddp::test
