#include "tests/backends/shm_ranks.hpp"

#include <sys/wait.h>

#include <csignal>

#include "common/base/exit_codes.hpp"
#include "tests/support/rank_threads.hpp"

namespace ddp::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{60};

/// True for ranks that have called tick(), shared by all processes.
std::atomic<bool>& is_ticking(int rank) {
  static void* const shared = mmap(nullptr, (shm::kMaxRanks + 1) * sizeof(std::atomic<bool>),
                                   PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return static_cast<std::atomic<bool>*>(shared)[rank];
}

/// Runs a rank in a child and ends it. @param out receives the body's result or exception
[[noreturn]] void run_rank(const RankProcesses::Body& body, int rank, const shm::Exchange& exchange,
                           int out) {
  std::string text;
  int code = 0;
  try {
    text = body(rank, exchange);
  } catch (const Error& error) {
    text = error.what();
    code = static_cast<int>(error.code());
  } catch (const shm::SegmentError& error) {
    text = error.what();
    code = 2;
  } catch (const std::exception& error) {
    text = error.what();
    code = 99;
  }
  _exit(write(out, text.data(), text.size()) < 0 ? 98 : code);
}

}  // namespace

void run_shm_threads(int world_size, const std::function<void(shm::Collectives&)>& body) {
  RankExchange exchange(world_size);
  run_rank_threads(world_size, [&](int rank) {
    const auto communicator =
        shm::Collectives::connect(rank, world_size, kPatience, exchange.of(rank));
    body(*communicator);
    communicator->barrier();
  });
}

RankProcesses::RankProcesses(int world_size, const Body& body)
    : exchange_(std::make_unique<RankExchange>(world_size)) {
  for (int rank = 0; rank < world_size; ++rank) {
    is_ticking(rank) = false;
  }
  for (int rank = 0; rank < world_size; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) {
      throw std::runtime_error("no pipe");
    }
    const pid_t pid = fork();
    if (pid == 0) {
      run_rank(body, rank, exchange_->of(rank), ends[1]);
    }
    close(ends[1]);
    pids_.push_back(pid);
    pipes_.push_back(ends[0]);
  }
}

RankProcesses::~RankProcesses() {
  wait();
}

void RankProcesses::tick(int rank) {
  is_ticking(rank) = true;
}

void RankProcesses::await_all() const {
  const Clock::time_point deadline = Clock::now() + kPatience;
  for (size_t rank = 0; rank < pids_.size(); ++rank) {
    while (!is_ticking(static_cast<int>(rank))) {
      if (Clock::now() > deadline) {
        throw std::runtime_error("rank " + std::to_string(rank) + " did not come so far");
      }
      usleep(200);
    }
  }
}

std::vector<ProcessOutcome> RankProcesses::wait() {
  const Clock::time_point deadline = Clock::now() + kPatience;
  std::vector<ProcessOutcome> outcomes;
  for (size_t i = 0; i < pids_.size(); ++i) {
    ProcessOutcome& outcome = outcomes.emplace_back();
    while (waitpid(pids_[i], &outcome.status, WNOHANG) == 0) {
      if (Clock::now() > deadline) {
        kill(pids_[i], SIGKILL);
      }
      usleep(500);
    }
    char buffer[4096];
    for (ssize_t n = 0; (n = read(pipes_[i], buffer, sizeof(buffer))) > 0;) {
      outcome.text.append(buffer, static_cast<size_t>(n));
    }
    close(pipes_[i]);
  }
  pids_.clear();
  pipes_.clear();
  return outcomes;
}

}  // namespace ddp::test
