// common/data/prefetcher.hpp - threads that fill batches ahead of the one who takes them, in order.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

namespace ddp {

/// A ring of slots: batch b goes into slot b % slots, once whoever took batch b - slots has given
/// it back. Which thread fills a batch is chance, what is in it and the order in which they are
/// taken are not.
class Prefetcher {
 public:
  /// Called on a thread of this object's, for different slots at the same time. May leave a batch
  /// as it is once `stops` is true.
  using Fill = std::function<void(int64_t batch, size_t slot, const std::atomic<bool>& stops)>;

  /// @param slots more than are taken at a time, or nothing is ever filled ahead
  Prefetcher(int workers, int64_t slots, Fill fill)
      : fill_(std::move(fill)), slots_(slots), states_(static_cast<size_t>(slots)) {
    for (int i = 0; i < workers; ++i) {
      threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    }
  }

  ~Prefetcher() { stop(); }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Forgets what was not taken, and waits until no thread fills.
  void stop() {
    stops_ = true;
    std::unique_lock lock(mutex_);
    batches_ = 0;
    changed_.wait(lock, [this] { return filling_ == 0; });
  }
  /// Fills batches 0 to `batches` - 1 from now on. After stop().
  void start(int64_t batches) {
    const std::lock_guard lock(mutex_);
    begun_ = taken_ = given_back_ = 0;
    for (State& state : states_) {
      state = {};
    }
    batches_ = batches;
    stops_ = false;
    changed_.notify_all();
  }

  /// Waits for the next batch. @return its slot, until give_back() @throws what filling it threw
  size_t take() {
    std::unique_lock lock(mutex_);
    const auto slot = static_cast<size_t>(taken_ % slots_);
    State& state = states_[slot];
    changed_.wait(lock, [&state] { return state.filled; });
    if (state.error) {
      std::rethrow_exception(state.error);
    }
    ++taken_;
    return slot;
  }
  /// The slot that was taken longest ago may be filled again.
  void give_back() {
    const std::lock_guard lock(mutex_);
    states_[static_cast<size_t>(given_back_++ % slots_)] = {};
    changed_.notify_all();
  }

 private:
  struct State {
    bool filled = false;
    std::exception_ptr error;
  };

  void work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const auto has_work = [this] { return begun_ < batches_ && begun_ < given_back_ + slots_; };
    while (changed_.wait(lock, stop, has_work)) {
      const int64_t batch = begun_++;
      const auto slot = static_cast<size_t>(batch % slots_);
      ++filling_;
      lock.unlock();
      std::exception_ptr error;
      try {
        fill_(batch, slot, stops_);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      --filling_;
      states_[slot] = {true, std::move(error)};
      changed_.notify_all();
    }
  }

  const Fill fill_;
  const int64_t slots_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<State> states_;  // of the slots
  int64_t batches_ = 0;
  int64_t begun_ = 0;
  int64_t taken_ = 0;
  int64_t given_back_ = 0;
  int filling_ = 0;
  std::atomic<bool> stops_ = false;
  std::vector<std::jthread> threads_;  // last: they end before what they use
};

}  // namespace ddp
