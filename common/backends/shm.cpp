#include "common/backends/shm.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "common/exit_codes.hpp"

namespace ddp {
namespace {

/// The store may be served by rank 0, and what is read may be a reason to give up: rank 0 must not
/// be gone before the others know.
void stay_until_all_have_read(c10d::Store& store, const std::string& prefix,
                              const BackendOptions& options) {
  constexpr std::chrono::milliseconds kLongest{5000};
  store.set(prefix + std::to_string(options.rank), std::string("1"));
  if (options.rank != 0) {
    return;
  }
  std::vector<std::string> keys;
  for (int rank = 0; rank < options.world_size; ++rank) {
    keys.push_back(prefix + std::to_string(rank));
  }
  try {
    store.wait(keys, std::min(options.timeout, kLongest));
  } catch (const c10::Error&) {
    // Who did not come is found out by what follows.
  }
}

/// Texts go through the store, under a key for every round and rank.
shm::Exchange exchange_through(const c10::intrusive_ptr<c10d::Store>& store,
                               const BackendOptions& options) {
  return [store, options, round = 0](const std::string& mine) mutable {
    const std::string prefix = "shm/" + std::to_string(round++) + "/";
    std::vector<std::string> keys;
    for (int rank = 0; rank < options.world_size; ++rank) {
      keys.push_back(prefix + std::to_string(rank));
    }
    store->set(keys[static_cast<size_t>(options.rank)], mine + "\n");  // never empty
    try {
      store->wait(keys, options.timeout);
    } catch (const c10::Error&) {
      std::string missing;
      for (int rank = 0; rank < options.world_size; ++rank) {
        if (!store->check({keys[static_cast<size_t>(rank)]})) {
          missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
        }
      }
      throw TransientError("within " + std::to_string(options.timeout.count() / 1000) +
                           " s the start of --backend shm lacks rank " + missing +
                           " of world size " + std::to_string(options.world_size) +
                           ", expected all of them");
    }
    std::vector<std::string> texts;
    for (const std::string& key : keys) {
      const std::vector<uint8_t> bytes = store->get(key);
      texts.emplace_back(bytes.begin(), bytes.end() - 1);
    }
    stay_until_all_have_read(*store, prefix + "read/", options);
    return texts;
  };
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_shm_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const BackendOptions& options,
                                                   const shm::HostIdentity& identity) {
  return c10::make_intrusive<ShmBackend>(
      shm::Communicator::connect({.rank = options.rank,
                                  .world_size = options.world_size,
                                  .timeout = options.timeout,
                                  .identity = identity,
                                  .ways = {shm::Sharing::kDescriptor, shm::Sharing::kName}},
                                 exchange_through(store, options)));
}

}  // namespace ddp
