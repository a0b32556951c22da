#include "common/parallel/signs_of_life.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <system_error>

#include "common/backends/store_exchange.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/seconds_since.hpp"
#include "common/base/sleep.hpp"
#include "common/launch/spawn.hpp"
#include "common/launch/stop_request.hpp"
#include "common/parallel/rendezvous.hpp"

namespace ddp {
namespace {

/// How long rank 0 may be silent for ranks that were asked to stop: a launcher that has lost rank 0
/// asks the others, and kills them only much later (torchrun after 30 s). That counts where the
/// backend does not notice lost ranks, and for a rank 0 that stands still.
constexpr std::chrono::milliseconds kPatienceWhenAsked(3000);
/// Before its first sign rank 0 may be busy elsewhere.
constexpr std::chrono::milliseconds kPatienceForFirstSign(8000);

std::chrono::milliseconds sign_interval(const c10d::Store& store) {
  constexpr int kSigns = 4;  // in --timeout; enough of them in the patience, too
  return std::clamp(store.getTimeout() / kSigns, std::chrono::milliseconds(1),
                    kPatienceWhenAsked / (2 * kSigns));
}

const std::string kNoFurtherSign = "and no further one";

/// What signs begin with that are given until `key` is set: there may be older ones.
std::string sign_of(const std::string& key) {
  return key + " ";
}

void give_signs(c10d::Store& store, const std::string& key, const std::string& sign,
                const std::stop_token& stop) {
  for (int64_t count = 1; !stop.stop_requested(); ++count) {
    try {
      store.set(sign, sign_of(key) + std::to_string(count));
    } catch (const std::exception&) {
      return;  // the launcher's store is gone, and so will be this process
    }
    sleep_unless_stopped(stop, sign_interval(store));
  }
}

}  // namespace

SignsOfLife::SignsOfLife(const ProcessGroup* process_group, const std::string& key,
                         const std::string& sign) {
  if (process_group == nullptr || process_group->world_size() == 1) {
    return;
  }
  try {
    thread_ =
        std::jthread([store = process_group->store(), key, sign](const std::stop_token& stop) {
          give_signs(*store, key, sign, stop);
        });
  } catch (const std::system_error&) {
    // No thread is to be had: it must be done within --timeout then.
    process_group->store()->set(sign, sign_of(key) + kNoFurtherSign);
  }
}

std::string wait_for_rank_0(const c10::intrusive_ptr<c10d::Store>& store, const std::string& key,
                            const std::string& sign, const std::string& activity,
                            const std::function<std::string()>& lost_rank) {
  using Clock = std::chrono::steady_clock;
  struct Progress {
    std::promise<std::string> done;
    std::atomic<int> signs{0};
    std::atomic<bool> further_signs{true};  // are to be expected
  };
  const std::chrono::milliseconds timeout = store->getTimeout();
  const std::chrono::milliseconds interval = sign_interval(*store);
  const auto progress = std::make_shared<Progress>();
  const auto listen = [store, key, sign, interval, progress] {
    const auto is_done = [&] {
      try {
        store->wait({key}, interval);
        return true;
      } catch (const c10::DistStoreError&) {
        return false;
      }
    };
    try {
      std::string last_sign;
      while (!is_done()) {
        const std::string now = store->check({sign}) ? store->get_to_str(sign) : "";
        if (now != last_sign && now.starts_with(sign_of(key))) {
          last_sign = now;
          progress->further_signs = now != sign_of(key) + kNoFurtherSign;
          ++progress->signs;
        }
      }
      progress->done.set_value(store->get_to_str(key));
    } catch (...) {
      progress->done.set_exception(std::current_exception());
    }
  };
  // In a thread, as the store may be served by rank 0: if that is stopped, no call returns.
  std::thread listener(listen);
  std::future<std::string> done = progress->done.get_future();
  int signs = 0;
  Clock::time_point heard = Clock::now();  // or asked to stop, which begins the clock anew
  bool asked = false;
  const auto done_within_interval = [&done, interval] {
    return done.wait_for(interval) == std::future_status::ready;
  };
  const auto give_up = [&listener](const std::string& reason) {
    listener.detach();
    skip_destructors_at_exit();  // for the listener still uses the store
    throw Error(ExitCode::kTrainingFailed, reason);
  };
  while (!done_within_interval()) {
    if (!asked && stop_request() != 0) {
      asked = true;
      heard = Clock::now();
    }
    if (const int now = progress->signs; now != signs) {
      signs = now;
      heard = Clock::now();
    }
    const std::chrono::milliseconds patience =
        !asked || !progress->further_signs
            ? timeout
            : std::min(timeout, signs == 0 ? kPatienceForFirstSign : kPatienceWhenAsked);
    const std::string silence = fmt::format("rank 0 gave no sign of life for {} s while it {}",
                                            in_seconds(patience), activity);
    const auto silent = Clock::now() - heard;
    if (silent > patience) {
      give_up(silence);
    }
    // The answer may have come before the loss.
    if (const std::string lost = lost_rank(); !lost.empty() && !done_within_interval()) {
      // Whoever has just given rank 0 up is lost, too, and not to blame.
      give_up(silent > patience - 2 * interval ? silence
                                               : fmt::format("{} while rank 0 {}", lost, activity));
    }
  }
  listener.join();
  try {
    return done.get();
  } catch (const c10::DistNetworkError&) {
    throw Error(ExitCode::kTrainingFailed,
                fmt::format("the store was lost while rank 0 {}", activity));
  }
}

std::string wait_for_rank_0(const ProcessGroup& process_group, const std::string& key,
                            const std::string& sign, const std::string& activity) {
  return wait_for_rank_0(process_group.store(), key, sign, activity,
                         [&process_group] { return process_group.lost_rank(); });
}

void part_after_failure(const ProcessGroup& process_group, const std::string& key) {
  const auto part = [store = process_group.store(), key, rank = process_group.rank(),
                     world_size = process_group.world_size()] {
    try {
      if (rank == 0) {
        store->set(key, "failed");
      }
      let_others_read(*store, key, rank, world_size, store->getTimeout());
    } catch (const std::exception&) {
      // They learn it from the launcher.
    }
  };
  if (process_group.rank() == 0) {
    at_train_end(part);
  } else {
    part();
    wait_for_launcher();
  }
}

}  // namespace ddp
