// common/backends/store_exchange.hpp - how ranks that share only a store exchange texts.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/backends/backend.hpp"
#include "common/backends/shm/communicator.hpp"

namespace ddp {

/// "prefix/0", "prefix/1" and so on: what the ranks set, by rank.
std::vector<std::string> keys_of_ranks(const std::string& prefix, int world_size);

/// Waits until every rank has set its key.
/// @throws TransientError naming those that `what` lacks
void wait_for_ranks(c10d::Store& store, const std::vector<std::string>& keys,
                    const std::string& what, std::chrono::milliseconds timeout);

/// Between options.world_size ranks. Every call is a round of its own. It throws TransientError
/// naming the ranks that did not come within options.timeout.
/// @param backend as --backend has it, for messages; its keys in the store begin with it
Exchange exchange_through(const c10::intrusive_ptr<c10d::Store>& store, const std::string& backend,
                          const BackendOptions& options);

/// For ranks that have all learnt from the store that they must end. Rank 0, who may serve it, ends
/// last, or the others would report a broken connection instead.
/// @param prefix of keys of their own @param timeout at most; never over 10 s
void let_others_read(c10d::Store& store, const std::string& prefix, int rank, int world_size,
                     std::chrono::milliseconds timeout);

}  // namespace ddp
