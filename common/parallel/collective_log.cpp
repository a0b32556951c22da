#include "common/parallel/collective_log.hpp"

#include "common/base/patience.hpp"
#include "common/meet/board.hpp"

namespace ddp {

std::string CallSite::text() const {
  // Folder of this project, as the compiler writes it in the paths of source files.
  constexpr std::string_view kHere = __FILE__;
  constexpr std::string_view kPath = "common/parallel/collective_log.cpp";
  const size_t root = kHere.ends_with(kPath) ? kHere.size() - kPath.size() : 0;
  std::string_view path = file;
  if (path.starts_with(kHere.substr(0, root))) {
    path.remove_prefix(root);
  }
  return fmt::format("called {}at {}:{}{}", *caller == 0 ? "" : fmt::format("by {} ", caller), path,
                     line, bucket < 0 ? "" : fmt::format(", bucket {} of gradients", bucket));
}

void CollectiveLog::begin(const char* kind, const torch::Tensor& tensor,
                          const CallSite& site) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_[++count_ % entries_.size()] = {kind, tensor.numel(), tensor.scalar_type(), site};
}

void CollectiveLog::started(const c10d::Work* work) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_[count_ % entries_.size()].work = work;
}

uint64_t CollectiveLog::count() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return count_;
}

uint64_t CollectiveLog::number_of(const c10d::Work& work) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  // From the newest, because the memory of an older work may be in use again.
  for (uint64_t number = count_; number > 0 && number + entries_.size() > count_; --number) {
    if (entry(number).work == &work) {
      return number;
    }
  }
  return count_;
}

std::string CollectiveLog::of(const c10d::Work& work) const {
  const uint64_t number = number_of(work);
  const std::lock_guard<std::mutex> lock(mutex_);
  return text(number);
}

std::string CollectiveLog::last() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return count_ == 0 ? "" : text(count_);
}

std::string CollectiveLog::last_call() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return count_ == 0 ? "" : fmt::format("collective {}, {}", count_, entry(count_).site.text());
}

std::string CollectiveLog::text(uint64_t number) const {
  const Entry& one = entry(number);
  return fmt::format("{} of {} {} (collective {}), {}", one.kind, one.elements,
                     c10::getDtypeNames(one.dtype).first, number, one.site.text());
}

std::vector<int> late_ranks(const c10::intrusive_ptr<c10d::Store>& store,
                            const LaunchEnvironment& launch, bool timed_out) {
  constexpr std::chrono::milliseconds kOthersNotice(300);
  // Within this time every waiting rank notices that another rank has given up, and says so.
  constexpr std::chrono::milliseconds kOthersTime(1000);
  constexpr std::chrono::seconds kStoreAnswers{1};
  const auto ask = [=, board = Board(store, launch.rank, launch.world_size,
                                     store->getTimeout())]() mutable -> std::vector<int> {
    const std::string kWaits = "late/waits";
    const std::string kTimedOut = "late/timed out";  // one key for all ranks: a single question
    board.leave(kWaits);
    if (timed_out) {
      store->set(kTimedOut, "yes");
    }
    std::this_thread::sleep_for(kOthersNotice);
    if (!store->check({kTimedOut})) {
      return {};
    }
    std::this_thread::sleep_for(kOthersTime);
    return board.missing(kWaits);
  };
  try {
    if (auto late = ask_in_time(ask, kOthersNotice + kOthersTime + kStoreAnswers)) {
      return *std::move(late);
    }
  } catch (const std::exception&) {
    return {};  // the store is gone, or no thread can be started
  }
  const int server = launch.store.server;
  return server >= 0 && server != launch.rank ? std::vector<int>{server} : std::vector<int>();
}

}  // namespace ddp
