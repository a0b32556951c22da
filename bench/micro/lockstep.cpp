#include "bench/micro/lockstep.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "common/base/exit_codes.hpp"

namespace ddp::micro {
namespace {

using Clock = std::chrono::steady_clock;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

Error cannot_share(const std::string& path) {
  return {ExitCode::kTrainingFailed,
          "cannot share memory with the other ranks at " + path + ": " + std::strerror(errno)};
}

}  // namespace

Lockstep::Lockstep(const ProcessGroup& group, std::chrono::milliseconds timeout)
    : device_(group.device()), group_(&group), timeout_(timeout) {
  if (group.world_size() > 1 && group.environment().num_nodes == 1) {
    share_start_line();
  }
}

Lockstep::~Lockstep() {
  if (start_line_ != nullptr) {
    munmap(start_line_, sizeof(StartLine));
  }
}

/// A file without a name, which the others open as one of rank 0's descriptors: nothing is left of
/// it, however the ranks end.
void Lockstep::share_start_line() {
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
  int fd = -1;
  std::string path;
  if (rank() == 0) {
    fd = memfd_create("bench_micro", MFD_CLOEXEC);
    path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd);
    if (fd < 0 || ftruncate(fd, sizeof(StartLine)) != 0) {
      throw cannot_share("a new file in memory");
    }
  }
  path = from_rank0(path);
  fd = rank() == 0 ? fd : open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* const memory =
      fd < 0 ? MAP_FAILED
             : mmap(nullptr, sizeof(StartLine), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    throw cannot_share(path);
  }
  // Zeros are what a new StartLine holds, so it does not matter who is first.
  start_line_ = static_cast<StartLine*>(memory);
  gather("mapped");  // before rank 0 closes what the others open
  close(fd);
}

std::string Lockstep::next_key() {
  return "lockstep/" + std::to_string(messages_++);
}

std::string Lockstep::from_rank0(const std::string& text) {
  return world_size() == 1 ? text : group_->share(next_key(), text);
}

std::vector<std::string> Lockstep::gather(const std::string& text) {
  if (world_size() == 1) {
    return {text};
  }
  const std::string key = next_key() + "/";
  c10d::Store& store = *group_->store();
  if (rank() != 0) {
    store.set(key + std::to_string(rank()), std::vector<uint8_t>(text.begin(), text.end()));
    return {};
  }
  std::vector<std::string> texts = {text};
  for (int peer = 1; peer < world_size(); ++peer) {
    const std::string peer_key = key + std::to_string(peer);
    const std::vector<uint8_t> bytes = store.get(peer_key);
    texts.emplace_back(bytes.begin(), bytes.end());
    store.deleteKey(peer_key);
  }
  return texts;
}

void Lockstep::line_up() {
  constexpr int kSpins = 4000;  // then the core may be needed by the rank that is waited for
  constexpr int kYieldsPerLook = 1000;
  if (world_size() == 1) {
    return;
  }
  if (start_line_ == nullptr) {
    group_->barrier();
    synchronize();
    return;
  }
  const std::uint32_t round = start_line_->round.load(std::memory_order_acquire);
  const auto everyone = static_cast<std::uint32_t>(world_size());
  if (start_line_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == everyone) {
    start_line_->arrived.store(0, std::memory_order_relaxed);
    start_line_->round.store(round + 1, std::memory_order_release);
    return;
  }
  const auto go = [&] { return start_line_->round.load(std::memory_order_acquire) != round; };
  for (int spin = 0; spin < kSpins; ++spin) {
    if (go()) {
      return;
    }
    pause_briefly();
  }
  const Clock::time_point deadline = Clock::now() + timeout_;
  for (int yield = 1; !go(); ++yield) {
    sched_yield();
    if (yield % kYieldsPerLook == 0 && Clock::now() > deadline) {
      throw TransientError("a rank did not come to the start line within " +
                           std::to_string(timeout_.count() / 1000) + " s, expected all " +
                           std::to_string(world_size()));
    }
  }
}

void Lockstep::synchronize() const {
  if (!device_.is_cpu()) {
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }
}

}  // namespace ddp::micro
