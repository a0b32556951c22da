#include "bench/micro/ranks.hpp"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <utility>

#include "common/backends/device.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/pause.hpp"
#include "common/base/seconds_since.hpp"

namespace ddp::micro {
namespace {

using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

Ranks::Ranks(const MicroOptions& options, LaunchEnvironment environment)
    : options_(options),
      environment_(std::move(environment)),
      device_(set_device(options.stage, environment_.local_rank)) {}

Ranks::Ranks(const MicroOptions& options, const ProcessGroup& group)
    : options_(options),
      environment_(group.environment()),
      device_(group.device()),
      group_(&group) {
  share_start_line();
}

void Ranks::connect(const std::string& backend) {
  if (size() == 1 || (group_ != nullptr && group_->backend_name() == backend)) {
    return;
  }
  if (group_ != nullptr) {
    disconnect();
    environment_.store.prefix += "/next";  // each group has a part of the store to itself
  }
  // No make_unique: a process group can be neither copied nor moved.
  own_group_.reset(new ProcessGroup(
      create_process_group(stage_options(options_, backend), environment_, device_)));
  group_ = own_group_.get();
  share_start_line();
}

void Ranks::disconnect() {
  if (own_group_ != nullptr) {
    destroy_process_group(*own_group_);
    own_group_.reset();
    group_ = nullptr;
  }
}

void Ranks::share_start_line() {
  if (environment_.num_nodes > 1) {
    return;
  }
  const auto exchange = [this](const std::string& text) {
    const std::string key = group_->exchange_key("start line");
    const auto key_of = [&key](int rank) { return fmt::format("{}/{}", key, rank); };
    group_->store()->set(key_of(rank()), std::vector<uint8_t>(text.begin(), text.end()));
    std::vector<std::string> texts;
    for (int peer = 0; peer < size(); ++peer) {
      const std::vector<uint8_t> bytes = group_->store()->get(key_of(peer));
      texts.emplace_back(bytes.begin(), bytes.end());
    }
    return texts;
  };
  segment_ = shm::Segment::create(exchange, rank(), size(), sizeof(StartLine));
  // Zeros are what a new StartLine holds, so it does not matter which rank is first.
  start_line_ = reinterpret_cast<StartLine*>(segment_->part(0));
}

void Ranks::line_up() const {
  constexpr int kSpins = 4000;  // then the core may be needed by the rank that is waited for
  synchronize();
  if (start_line_ == nullptr) {
    if (group_ != nullptr) {
      group_->barrier();
      synchronize();
    }
    return;
  }
  const uint32_t round = start_line_->round.load(std::memory_order_acquire);
  const auto everyone = static_cast<uint32_t>(size());
  if (start_line_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == everyone) {
    start_line_->arrived.store(0, std::memory_order_relaxed);
    start_line_->round.store(round + 1, std::memory_order_release);
    return;
  }
  for (int look = 0; start_line_->round.load(std::memory_order_acquire) == round; ++look) {
    look < kSpins ? pause_briefly() : static_cast<void>(sched_yield());
  }
}

void Ranks::synchronize() const {
  if (!device_.is_cpu()) {
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }
}

std::vector<double> Ranks::repeat_queued(const Piece& piece, int64_t times) const {
  constexpr int64_t kQueued = 10;  // between two times at which the ranks meet
  const c10::impl::VirtualGuardImpl guard(device_.type());
  const auto record = [&](std::deque<c10::Event>& events) {
    events.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    events.back().record(guard.getStream(device_));
  };
  std::vector<double> seconds;
  while (std::ssize(seconds) < times) {
    std::deque<c10::Event> begins, ends;
    line_up();
    for (int64_t i = 0; i < kQueued; ++i) {
      piece.prepare();
      record(begins);
      piece.run();
      record(ends);
    }
    synchronize();
    for (size_t i = 0; i < begins.size(); ++i) {
      seconds.push_back(begins[i].elapsedTime(ends[i]) / 1e3);
    }
  }
  return seconds;
}

std::vector<double> Ranks::repeat(const Piece& piece, int64_t times) const {
  if (!device_.is_cpu()) {
    return repeat_queued(piece, times);
  }
  std::vector<double> seconds;
  for (int64_t i = 0; i < times; ++i) {
    piece.prepare();
    line_up();
    const Clock::time_point begin = Clock::now();
    piece.run();
    seconds.push_back(seconds_since(begin));
  }
  return seconds;
}

double Ranks::largest(double value) const {
  return size() == 1 ? value
                     : group_->all_gather(torch::full({1}, value, device_)).max().item<double>();
}

void Ranks::agree_that_right(const Piece& piece) const {
  const std::string wrong = piece.check();
  if (largest(wrong.empty() ? 0 : 1) > 0) {
    // A rank without a message ends in silence: another rank has the message.
    throw Error(ExitCode::kTrainingFailed, wrong);
  }
}

double Ranks::measure(const Piece& piece) {
  constexpr int64_t kWarmups = 5;
  constexpr double kFewest = 10;
  constexpr double kMost = 10'000;
  repeat(piece, kWarmups);
  agree_that_right(piece);
  // Preparing and lining up take time too. A rank that repeated once less would leave the others
  // waiting, so they agree on the slowest rank's time.
  const Clock::time_point begin = Clock::now();
  repeat(piece, kWarmups);
  const double once = largest(seconds_since(begin) / kWarmups);
  const auto times =
      static_cast<int64_t>(std::clamp(std::ceil(options_.min_seconds / once), kFewest, kMost));
  repeat(piece, times / 10);  // caches, pages and frequencies settle
  const std::vector<double> seconds = repeat(piece, times);
  agree_that_right(piece);
  return largest(median(seconds));
}

}  // namespace ddp::micro
