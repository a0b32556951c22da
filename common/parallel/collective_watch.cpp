#include "common/parallel/collective_watch.hpp"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <future>
#include <regex>
#include <utility>

#include "common/backends/store_exchange.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/seconds_since.hpp"
#include "common/base/sleep.hpp"
#include "common/launch/spawn.hpp"

namespace ddp {
namespace {

constexpr std::chrono::milliseconds kLook{100};  // between two of them

/// NCCL's watchdog knows the collective's name, and is to speak first.
constexpr std::chrono::seconds kWatchdogsTurn{1};

const std::string kNotEnded = "did not end within";

/// What did not end, for people, out of the text of ProcessGroupNCCL's watchdog; else nothing.
std::string collective_of(const std::string& what) {
  static const std::regex work("timeout: WorkNCCL\\(SeqNum=\\d+, OpType=(\\w+), NumelIn=(\\d+)");
  std::smatch match;
  return std::regex_search(what, match, work)
             ? fmt::format("NCCL's {} of {} elements", match.str(1), match.str(2))
             : "";
}

std::string explain_timeout(const c10::intrusive_ptr<c10d::Store>& store,
                            const std::string& timeout, const LaunchEnvironment& environment,
                            const CollectiveLog& log, const std::string& what) {
  const std::string collective = collective_of(what);
  const bool timed_out = !collective.empty() || what.find(kNotEnded) != std::string::npos;
  std::string plain =
      collective.empty() ? what : fmt::format("{} {} {} s", collective, kNotEnded, timeout);
  if (const std::string last = log.last(); timed_out && !last.empty()) {
    plain += "; called last: " + last;
  }
  const std::vector<int> late = late_ranks(store, environment, timed_out);
  return late.empty() ? plain
                      : fmt::format("rank {} did not arrive within {} s, expected all {} ranks: {}",
                                    fmt::join(late, ", "), timeout, environment.world_size, plain);
}

}  // namespace

std::vector<int> late_ranks(const c10::intrusive_ptr<c10d::Store>& store,
                            const LaunchEnvironment& environment, bool timed_out) {
  static constexpr std::chrono::milliseconds kOthersNotice(100);
  static constexpr std::chrono::milliseconds kOthersTime(500);  // clocks begin nearly together
  constexpr std::chrono::seconds kStoreAnswers{1};
  const std::string kTimedOut = "timed out";
  const int rank = environment.rank;
  const int world_size = environment.world_size;
  const bool rank_0_serves = environment.store.is_served_by_rank_0();
  std::packaged_task<std::vector<int>()> ask([=] {
    const std::vector<std::string> keys = keys_of_ranks("late", world_size);
    store->set(keys[static_cast<size_t>(rank)], timed_out ? kTimedOut : "lost a connection");
    std::this_thread::sleep_for(kOthersNotice);
    std::vector<int> silent;
    if (std::ranges::any_of(keys, [&](const std::string& key) {
          return store->check({key}) && store->get_to_str(key) == kTimedOut;
        })) {
      std::this_thread::sleep_for(kOthersTime);
      for (int other = 0; other < world_size; ++other) {
        if (!store->check({keys[static_cast<size_t>(other)]})) {
          silent.push_back(other);
        }
      }
    }
    return silent;
  });
  std::future<std::vector<int>> answer = ask.get_future();
  try {
    std::thread(std::move(ask)).detach();  // as no call returns from a store that is stopped
    if (answer.wait_for(kOthersNotice + kOthersTime + kStoreAnswers) == std::future_status::ready) {
      return answer.get();
    }
  } catch (const std::exception&) {
    return {};  // the store is gone, or no thread is to be had
  }
  return rank_0_serves && rank != 0 ? std::vector<int>{0} : std::vector<int>();
}

void explain_timeouts(const c10::intrusive_ptr<c10d::Store>& store,
                      const LaunchEnvironment& environment,
                      std::shared_ptr<const CollectiveLog> log) {
  // A connection of its own: the other one may be in use for as long as it likes.
  explain_thread_errors([store = store->clone(), timeout = in_seconds(store->getTimeout()),
                         environment, log = std::move(log)](const std::string& what) {
    return explain_timeout(store, timeout, environment, *log, what);
  });
}

CollectiveWatch::CollectiveWatch(std::chrono::milliseconds timeout, GetsFurther gets_further)
    : watchdog_(
          timeout + kWatchdogsTurn, timeout + kWatchdogsTurn, [] {},
          [this, timeout](uint64_t) {
            throw Error(
                ExitCode::kTrainingFailed,
                fmt::format("{} {} {} s", calls_ % 2 == 1 ? "a call to NCCL" : "the device's work",
                            kNotEnded, in_seconds(timeout)));
          }),
      looks_([this, gets_further = std::move(gets_further)](const std::stop_token& stop) {
        look(gets_further, stop);
      }) {}

void CollectiveWatch::look(const GetsFurther& gets_further, const std::stop_token& stop) {
  const Watchdog::Watch watch(watchdog_);
  uint64_t last_call = calls_;
  while (sleep_unless_stopped(stop, kLook)) {
    const uint64_t call = calls_;
    if (gets_further() && (call % 2 == 0 || call != last_call)) {
      watchdog_.progress();
    }
    last_call = call;
  }
}

CollectiveWatch::GetsFurther progress_of(const torch::Device& device) {
  // Many at once: a healthy device may be many seconds behind the host, and reaches one after the
  // other.
  return [device, moments = std::make_shared<std::deque<c10::Event>>()] {
    try {
      const c10::impl::VirtualGuardImpl impl(device.type());
      impl.setDevice(device);
      bool further = moments->empty();
      for (; !moments->empty() && moments->front().query(); moments->pop_front()) {
        further = true;
      }
      moments->emplace_back(device.type());
      moments->back().record(impl.getStream(device));
      return further;
    } catch (const c10::Error&) {
      return true;  // The device is broken, which the main thread is told as well.
    }
  };
}

}  // namespace ddp
