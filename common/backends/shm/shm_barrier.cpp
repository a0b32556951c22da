#include "common/backends/shm/shm_barrier.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/ranges.h>

#include <climits>
#include <cstring>

#include "common/base/exit_codes.hpp"
#include "common/base/worker_pool.hpp"

namespace ddp::shm {
namespace {

/// "all_reduce sum of 100 float32"
std::string to_string(const Call& call) {
  static constexpr std::array kTypes = {"float32", "float64", "int64", "bytes"};
  static constexpr std::array kOps = {"sum", "average", "maximum", "minimum"};
  const std::string elements =
      fmt::format("of {} {}", uint64_t{call.count}, kTypes[static_cast<size_t>(call.dtype)]);
  switch (call.operation) {
    case Operation::kAllReduce:
      return fmt::format("all_reduce {} {}", kOps[static_cast<size_t>(call.reduce_op)], elements);
    case Operation::kBroadcast:
      return fmt::format("broadcast from rank {} {}", int{call.root}, elements);
    case Operation::kAllGather:
      return "all_gather " + elements;
    case Operation::kBarrier:
      break;
  }
  return "barrier";
}

/// Time between two checks of a sleeping rank that the other ranks live: 5 ms.
constexpr timespec kCheckInterval{.tv_sec = 0, .tv_nsec = 5'000'000};
constexpr int kLooksPerClock = 32;  // most waits end before they first read the clock

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/// True if two ranks make the same call, whatever the place of each rank's elements.
bool same_collective(const Call& a, const Call& b) {
  return a.sequence == b.sequence && a.operation == b.operation && a.dtype == b.dtype &&
         a.reduce_op == b.reduce_op && a.root == b.root && a.count == b.count;
}

}  // namespace

Barrier::Barrier(int rank, std::vector<ControlPage*> pages, std::chrono::milliseconds timeout,
                 std::function<bool(int)> is_alive)
    : rank_(rank), pages_(std::move(pages)), timeout_(timeout), is_alive_(std::move(is_alive)) {
  page(rank_).pid = getpid();
}

Barrier::~Barrier() {
  if (page(rank_).pid != getpid()) {
    return;  // a forked child that ends: the rank goes on
  }
  page(rank_).has_left = 1;
  futex_wake_all(page(rank_).progress.arrivals);
}

bool Barrier::begin(Call call) {
  throw_if_failed();
  call.sequence = static_cast<uint32_t>(++sequence_);
  call_ = call;
  page(rank_).progress.calls[sequence_ % 2] = call;
  meet();
  bool same_place = call.region != 0;
  for (int peer = 0; peer < world_size(); ++peer) {
    const Call& theirs = page(peer).progress.calls[sequence_ % 2];
    if (!same_collective(theirs, call)) {
      const auto [first, second] = std::minmax(rank_, peer);
      const auto name = [this](int rank) {
        return to_string(page(rank).progress.calls[sequence_ % 2]);
      };
      fail(fmt::format("rank {} calls {}, rank {} calls {}, expected the same on every rank", first,
                       name(first), second, name(second)));
    }
    same_place =
        same_place && theirs.region == call.region && theirs.region_offset == call.region_offset;
  }
  return same_place;
}

void Barrier::meet() {
  patience_.reset();
  arrive();
  for (int step = 1; step < world_size(); ++step) {
    const int peer = (rank_ + step) % world_size();
    if (!has_arrived(peer) && !spin(peer)) {
      wait_slowly(peer);
    }
  }
}

void Barrier::arrive() {
  ControlPage& own = page(rank_);
  // Either a sleeper sees this arrival before it sleeps, or this rank sees the sleeper in
  // `sleepers`. That needs a total order of these four accesses.
  own.progress.arrivals.store(++arrivals_, std::memory_order_seq_cst);
  if (own.sleepers.count.load(std::memory_order_seq_cst) != 0) {
    own.sleepers.woken_ns.store(now_ns(), std::memory_order_relaxed);
    futex_wake_all(own.progress.arrivals);
  }
}

bool Barrier::has_arrived(int peer) const {
  const uint32_t theirs = page(peer).progress.arrivals.load(std::memory_order_acquire);
  return static_cast<int32_t>(theirs - arrivals_) >= 0;
}

bool Barrier::spin(int peer) {
  int64_t begin_ns = 0;
  int64_t limit_ns = 0;
  for (;;) {
    for (int look = 0; look < kLooksPerClock; ++look) {
      if (has_arrived(peer)) {
        return true;
      }
      pause_briefly();
    }
    const int64_t time_ns = now_ns();
    if (begin_ns == 0) {
      begin_ns = time_ns;
      limit_ns = spin_budget_.limit_ns(time_ns);
    } else if (time_ns - begin_ns >= limit_ns) {
      // Not the elapsed time, in which the processor may have run other programs.
      spin_budget_.spin_failed(limit_ns);
      return false;
    }
  }
}

void Barrier::wait_slowly(int peer) {
  if (!patience_) {
    patience_.emplace(timeout_);
  }
  while (!has_arrived(peer)) {
    sleep_until_arrival(peer);
    if (!has_arrived(peer)) {  // else it may have failed in its next call
      check_peers();
    }
  }
}

void Barrier::sleep_until_arrival(int peer) {
  ControlPage& theirs = page(peer);
  theirs.sleepers.count.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = theirs.progress.arrivals.load(std::memory_order_seq_cst);
  if (static_cast<int32_t>(seen - arrivals_) < 0) {
    const int64_t begin_ns = now_ns();
    syscall(SYS_futex, &theirs.progress.arrivals, FUTEX_WAIT, seen, &kCheckInterval, nullptr, 0);
    const int64_t woken_ns = theirs.sleepers.woken_ns.load(std::memory_order_relaxed);
    if (has_arrived(peer) && woken_ns > begin_ns) {
      spin_budget_.woken_after(now_ns() - woken_ns);
    }
  }
  theirs.sleepers.count.fetch_sub(1, std::memory_order_seq_cst);
}

const char* Barrier::how_gone(int peer) const {
  const Stop stop = page(peer).stop;
  if (stop > page(rank_).stop) {
    return how_stopped(stop);
  }
  const auto has_left = [&] { return page(peer).has_left != 0; };
  if (!has_left() && is_alive_(peer)) {
    return nullptr;
  }
  return has_left() ? "left during"
                    : "died during";  // it may have left and ended between the two checks
}

void Barrier::check_peers() {
  throw_if_failed();
  const bool late = patience_->is_over();
  std::vector<std::string> missing;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank_ || has_arrived(peer)) {
      continue;
    }
    const std::string name = fmt::format("rank {} (pid {})", peer, page(peer).pid.load());
    // The peer may have arrived between the two checks.
    if (const char* const gone = how_gone(peer); gone != nullptr && !has_arrived(peer)) {
      throw_if_failed();
      fail(fmt::format("{} {} {}", name, gone, to_string(call_)));
    }
    missing.push_back(name);
  }
  if (late && !missing.empty()) {
    fail(fmt::format("{}: {} did not arrive within {} s, expected all {} ranks", to_string(call_),
                     fmt::join(missing, ", "), in_seconds(timeout_), world_size()));
  }
}

void Barrier::fail(const std::string& reason) {
  ControlPage::Failure& failure = page(0).failure;
  uint32_t none = 0;
  if (!failure.state.compare_exchange_strong(none, 1)) {
    throw_if_failed();
  }
  failure.rank = rank_;
  std::strncpy(failure.reason.data(), reason.c_str(), failure.reason.size() - 1);
  failure.state = 2;
  for (int peer = 0; peer < world_size(); ++peer) {
    futex_wake_all(page(peer).progress.arrivals);
  }
  throw Error(ExitCode::kTrainingFailed, reason);
}

void Barrier::throw_if_failed() {
  const ControlPage::Failure& failure = page(0).failure;
  if (failure.state.load(std::memory_order_acquire) == 0) {
    return;
  }
  for (int attempt = 0; attempt < 1000 && failure.state != 2; ++attempt) {
    usleep(100);  // the failed rank is writing its reason
  }
  if (failure.state != 2) {
    throw Error(ExitCode::kTrainingFailed, to_string(call_) + ": another rank failed");
  }
  const std::string origin =
      failure.rank == rank_ ? "" : fmt::format("rank {} failed: ", failure.rank);
  throw Error(ExitCode::kTrainingFailed, origin + failure.reason.data());
}

}  // namespace ddp::shm
