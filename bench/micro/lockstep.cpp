#include "bench/micro/lockstep.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <nlohmann/json.hpp>

#include "common/base/exit_codes.hpp"
#include "common/base/pause.hpp"

namespace ddp::micro {
Lockstep::Lockstep(const ProcessGroup& group, std::chrono::milliseconds timeout)
    : device_(group.device()), group_(&group), timeout_(timeout) {
  if (group.world_size() > 1 && group.environment().num_nodes == 1) {
    segment_ = shm::Segment::create([this](const std::string& text) { return all_gather(text); },
                                    rank(), world_size(), sizeof(StartLine));
    // Zeros are what a new StartLine holds, so it does not matter who is first.
    start_line_ = reinterpret_cast<StartLine*>(segment_->part(0));
  }
}

std::string Lockstep::next_key() {
  return fmt::format("lockstep/{}", messages_++);
}

std::string Lockstep::from_rank0(const std::string& text) {
  return world_size() == 1 ? text : group_->share(next_key(), text);
}

std::vector<std::string> Lockstep::gather(const std::string& text) {
  std::vector<std::string> texts = {text};
  if (world_size() == 1) {
    return texts;
  }
  const std::string key = next_key();
  const auto key_of = [&key](int rank) { return fmt::format("{}/{}", key, rank); };
  c10d::Store& store = *group_->store();
  if (rank() != 0) {
    store.set(key_of(rank()), std::vector<uint8_t>(text.begin(), text.end()));
    return {};
  }
  for (int peer = 1; peer < world_size(); ++peer) {
    const std::vector<uint8_t> bytes = store.get(key_of(peer));
    texts.emplace_back(bytes.begin(), bytes.end());
    store.deleteKey(key_of(peer));
  }
  return texts;
}

std::vector<std::string> Lockstep::all_gather(const std::string& text) {
  using nlohmann::json;
  return json::parse(from_rank0(json(gather(text)).dump())).get<std::vector<std::string>>();
}

void Lockstep::line_up() {
  using Clock = std::chrono::steady_clock;
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
      throw TransientError(
          fmt::format("a rank did not come to the start line within {} s, expected all {}",
                      timeout_.count() / 1000, world_size()));
    }
  }
}

void Lockstep::synchronize() const {
  if (!device_.is_cpu()) {
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }
}

}  // namespace ddp::micro
