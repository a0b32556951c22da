#include "common/backends/shm/shm_barrier.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>

#include "common/base/exit_codes.hpp"

namespace ddp::shm {
namespace {

/// How often a rank that sleeps looks whether the others live.
constexpr std::chrono::milliseconds kCheckInterval{5};
/// How long a failed rank may take to write its reason before others stop waiting for the text.
constexpr int kReasonAttempts = 1000;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::microseconds limit) {
  timespec timeout{};
  timeout.tv_sec = limit.count() / 1000000;
  timeout.tv_nsec = limit.count() % 1000000 * 1000;
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

using Words = std::array<uint32_t, ControlPage::kCallWords>;

Words pack(const Call& call, uint64_t sequence) {
  return {static_cast<uint32_t>(sequence),
          static_cast<uint32_t>(call.operation) | static_cast<uint32_t>(call.dtype) << 8 |
              static_cast<uint32_t>(call.reduce_op) << 16 | static_cast<uint32_t>(call.root) << 24,
          static_cast<uint32_t>(call.count),
          static_cast<uint32_t>(call.count >> 32),
          call.region,
          static_cast<uint32_t>(call.region_offset),
          static_cast<uint32_t>(call.region_offset >> 32)};
}

Call unpack(const Words& words) {
  Call call;
  call.operation = static_cast<Operation>(words[1] & 0xff);
  call.dtype = static_cast<DType>(words[1] >> 8 & 0xff);
  call.reduce_op = static_cast<ReduceOp>(words[1] >> 16 & 0xff);
  call.root = static_cast<uint8_t>(words[1] >> 24);
  call.count = words[2] | static_cast<uint64_t>(words[3]) << 32;
  call.region = words[4];
  call.region_offset = words[5] | static_cast<uint64_t>(words[6]) << 32;
  return call;
}

}  // namespace

bool Call::same_call(const Call& other) const {
  return operation == other.operation && dtype == other.dtype && reduce_op == other.reduce_op &&
         root == other.root && count == other.count;
}

std::string to_string(const Call& call) {
  const std::string elements = " of " + std::to_string(call.count) + " " + to_string(call.dtype);
  switch (call.operation) {
    case Operation::kAllReduce:
      return std::string("all_reduce ") + to_string(call.reduce_op) + elements;
    case Operation::kReduceScatter:
      return std::string("reduce_scatter ") + to_string(call.reduce_op) + elements;
    case Operation::kBroadcast:
      return "broadcast from rank " + std::to_string(call.root) + elements;
    case Operation::kGather:
      return "gather to rank " + std::to_string(call.root) + elements;
    case Operation::kAllGather:
      return "all_gather" + elements;
    case Operation::kBarrier:
      return "barrier";
  }
  return "unknown operation";
}

WaitPolicy wait_policy(int world_size, int cpus) {
  // A spin takes 10 to 50 ns.
  return world_size <= cpus ? WaitPolicy{.fewest_spins = 50, .most_spins = 4000}
                            : WaitPolicy{.fewest_spins = 10, .most_spins = 100};
}

Barrier::Barrier(int rank, std::vector<ControlPage*> pages, std::chrono::milliseconds timeout,
                 WaitPolicy policy, std::function<bool(int)> is_alive, std::vector<int> names)
    : rank_(rank),
      pages_(std::move(pages)),
      timeout_(timeout),
      policy_(policy),
      is_alive_(std::move(is_alive)),
      names_(std::move(names)),
      spins_(policy.most_spins) {
  pages_[static_cast<size_t>(rank_)]->pid = getpid();
}

Barrier::~Barrier() {
  ControlPage& own = *pages_[static_cast<size_t>(rank_)];
  own.has_left = 1;
  futex_wake_all(own.progress.arrivals);
}

bool Barrier::begin(const Call& call) {
  throw_if_failed();
  call_ = call;
  ++sequence_;
  deadline_.reset();
  const Words own = pack(call, sequence_);
  pages_[static_cast<size_t>(rank_)]->progress.calls[sequence_ % 2] = own;
  meet();
  bool same_place = call.region != 0;
  for (int peer = 0; peer < world_size(); ++peer) {
    const Words& words = pages_[static_cast<size_t>(peer)]->progress.calls[sequence_ % 2];
    if (words == own) {
      continue;
    }
    if (words[0] != own[0] || !unpack(words).same_call(call)) {
      fail_mismatch(peer);
    }
    same_place = false;
  }
  return same_place;
}

void Barrier::fail_mismatch(int peer) {
  const Words& theirs = pages_[static_cast<size_t>(peer)]->progress.calls[sequence_ % 2];
  const auto says = [this](int rank, uint32_t sequence, const Call& call) {
    return name(rank) + " calls " + to_string(call) + " as collective " + std::to_string(sequence);
  };
  const std::string own_text = says(rank_, static_cast<uint32_t>(sequence_), call_);
  const std::string their_text = says(peer, theirs[0], unpack(theirs));
  fail((rank_ < peer ? own_text + ", " + their_text : their_text + ", " + own_text) +
       ", expected the same on every rank");
}

void Barrier::meet() {
  arrive();
  wait_for_all();
}

void Barrier::arrive() {
  ControlPage& own = *pages_[static_cast<size_t>(rank_)];
  // Either a sleeper sees this arrival before it sleeps, or its entry in `sleepers` is seen here:
  // that needs a total order of these four accesses.
  own.progress.arrivals.store(++arrivals_, std::memory_order_seq_cst);
  if (own.sleepers.count.load(std::memory_order_seq_cst) != 0) {
    futex_wake_all(own.progress.arrivals);
  }
}

bool Barrier::has_arrived(int peer) const {
  const uint32_t theirs =
      pages_[static_cast<size_t>(peer)]->progress.arrivals.load(std::memory_order_acquire);
  return static_cast<int32_t>(theirs - arrivals_) >= 0;
}

void Barrier::wait_for_all() {
  for (int step = 1; step < world_size(); ++step) {
    const int peer = (rank_ + step) % world_size();
    if (has_arrived(peer)) {
      continue;
    }
    int spin = 0;
    while (spin < spins_ && !has_arrived(peer)) {
      pause_briefly();
      ++spin;
    }
    // Ranks that share a processor for a while, because other programs run too, must not spin;
    // ranks of which one was interrupted for once must not lose their processor for it.
    if (spin < spins_) {
      spins_ = std::min(policy_.most_spins, spins_ * 2);
    } else {
      spins_ = std::max(policy_.fewest_spins, spins_ / 2);
      wait_slowly(peer);
    }
  }
}

void Barrier::wait_slowly(int peer) {
  if (!deadline_) {
    deadline_ = Clock::now() + timeout_;
  }
  const Clock::time_point deadline = *deadline_;
  while (!has_arrived(peer)) {
    throw_if_failed();
    const auto left =
        std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now());
    sleep_until_arrival(peer, std::clamp<std::chrono::microseconds>(
                                  left, std::chrono::microseconds(1), kCheckInterval));
    check_peers(deadline);
  }
}

void Barrier::sleep_until_arrival(int peer, std::chrono::microseconds limit) {
  ControlPage& theirs = *pages_[static_cast<size_t>(peer)];
  theirs.sleepers.count.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = theirs.progress.arrivals.load(std::memory_order_seq_cst);
  if (static_cast<int32_t>(seen - arrivals_) < 0) {
    futex_wait(theirs.progress.arrivals, seen, limit);
  }
  theirs.sleepers.count.fetch_sub(1, std::memory_order_seq_cst);
}

void Barrier::check_peers(Clock::time_point deadline) {
  throw_if_failed();
  const bool late = Clock::now() >= deadline;
  std::string missing;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank_ || has_arrived(peer)) {
      continue;
    }
    const ControlPage& page = *pages_[static_cast<size_t>(peer)];
    const bool has_left = page.has_left != 0;
    // It may have arrived between the two looks.
    if ((has_left || !is_alive_(peer)) && !has_arrived(peer)) {
      throw_if_failed();
      fail(describe(peer) + (page.has_left != 0 ? " left during " : " died during ") + current());
    }
    missing += (missing.empty() ? "" : ", ") + describe(peer);
  }
  if (late && !missing.empty()) {
    fail(current() + ": " + missing + " did not arrive within " + in_seconds(timeout_) +
         " s, expected all " + std::to_string(world_size()) + " ranks");
  }
}

void Barrier::fail(const std::string& reason) {
  ControlPage::Failure& failure = pages_[0]->failure;
  uint32_t none = 0;
  if (!failure.state.compare_exchange_strong(none, 1)) {
    throw_if_failed();
  }
  failure.rank = rank_;
  std::strncpy(failure.reason.data(), reason.c_str(), failure.reason.size() - 1);
  failure.state = 2;
  for (ControlPage* const page : pages_) {
    futex_wake_all(page->progress.arrivals);
  }
  throw Error(ExitCode::kTrainingFailed, reason);
}

void Barrier::throw_if_failed() {
  const ControlPage::Failure& failure = pages_[0]->failure;
  if (failure.state.load(std::memory_order_acquire) == 0) {
    return;
  }
  for (int attempt = 0; attempt < kReasonAttempts && failure.state != 2; ++attempt) {
    usleep(100);
  }
  if (failure.state != 2) {
    throw Error(ExitCode::kTrainingFailed, current() + ": another rank failed");
  }
  if (failure.rank == rank_) {
    throw Error(ExitCode::kTrainingFailed, failure.reason.data());
  }
  throw Error(ExitCode::kTrainingFailed, name(failure.rank) + " failed: " + failure.reason.data());
}

std::string Barrier::name(int rank) const {
  return "rank " + std::to_string(names_.empty() ? rank : names_[static_cast<size_t>(rank)]);
}

std::string Barrier::describe(int peer) const {
  return name(peer) + " (pid " + std::to_string(pages_[static_cast<size_t>(peer)]->pid) + ")";
}

std::string Barrier::current() const {
  return to_string(call_) + " (collective " + std::to_string(sequence_) + ")";
}

}  // namespace ddp::shm
