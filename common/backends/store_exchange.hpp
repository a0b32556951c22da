// common/backends/store_exchange.hpp - exchange of texts between ranks that share only a store.
#pragma once

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/backends/backend.hpp"
#include "common/backends/shm/communicator.hpp"
#include "common/base/patience.hpp"

namespace ddp {

/// For c10d's own clocks, which run on while a process is stopped: then a wait around them has the
/// limit.
inline constexpr std::chrono::milliseconds kNoLimit = std::chrono::hours(24 * 365);

/// Keys that the ranks set, by rank: "prefix/0", "prefix/1" and so on.
std::vector<std::string> keys_of_ranks(const std::string& prefix, int world_size);

/// Waits for all keys. @return false if one is not there within `timeout`; time in which this
/// process is stopped does not count
/// @throws c10::DistNetworkError if the connection to the store breaks
bool wait_patiently(c10d::Store& store, const std::vector<std::string>& keys,
                    std::chrono::milliseconds timeout);

/// Waits until every rank has set its key.
/// @throws TransientError naming the ranks that did not set theirs within `timeout`
void wait_for_ranks(c10d::Store& store, const std::vector<std::string>& keys,
                    const std::string& what, std::chrono::milliseconds timeout);

/// Collective. Sets this rank's key of `event`, and waits for the keys of all ranks.
/// @param what name of the event for messages
/// @throws TransientError naming the ranks that did not come within the store's timeout
void meet(c10d::Store& store, const std::string& event, int rank, int world_size,
          const std::string& what);

/// Exchange between options.world_size ranks, which throws TransientError naming the ranks that did
/// not come within options.timeout.
/// @param backend value of --backend, for messages and as prefix of the keys in the store
Exchange exchange_through(const c10::intrusive_ptr<c10d::Store>& store, const std::string& backend,
                          const BackendOptions& options);

/// Waits until all ranks have read what was last set. If the rank that serves the store ended
/// earlier, others would report a broken connection.
/// @param prefix prefix of the keys @param timeout limit of the wait; never over 10 s
void let_others_read(c10d::Store& store, const std::string& prefix, int rank, int world_size,
                     std::chrono::milliseconds timeout);

/// Calls `ask` in a thread, which is left behind after `limit`: a call to a store whose process was
/// stopped never returns. Time in which this process is stopped does not count.
/// @return the answer, or nothing @throws the exceptions of `ask`
template <typename Ask>
auto ask_in_time(Ask ask, std::chrono::milliseconds limit) -> std::optional<decltype(ask())> {
  std::packaged_task<decltype(ask())()> task(std::move(ask));
  auto answer = task.get_future();
  std::thread(std::move(task)).detach();
  constexpr std::chrono::milliseconds kLook(250);
  for (Patience patience(limit);
       answer.wait_for(std::min(limit, kLook)) != std::future_status::ready;) {
    if (patience.is_over()) {
      return std::nullopt;
    }
  }
  return answer.get();
}

}  // namespace ddp
