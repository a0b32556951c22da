#include "common/backends/shm.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "common/exit_codes.hpp"

namespace ddp {
namespace {

constexpr std::chrono::seconds kPatience{10};

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
    return texts;
  };
}

/// All ranks learn at once that it cannot be done, and end. The one who serves the store ends last,
/// or the others would report a broken connection instead.
void let_others_read(c10d::Store& store, const BackendOptions& options) {
  const auto key = [](int rank) { return "shm/refused/" + std::to_string(rank); };
  if (options.rank != 0) {
    store.set(key(options.rank), "read");
    return;
  }
  std::vector<std::string> others;
  for (int rank = 1; rank < options.world_size; ++rank) {
    others.push_back(key(rank));
  }
  try {
    store.wait(others, std::min<std::chrono::milliseconds>(options.timeout, kPatience));
  } catch (const c10::Error&) {
    // Whoever was killed meanwhile reads nothing.
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_shm_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const BackendOptions& options,
                                                   const shm::HostIdentity& identity) {
  const shm::Communicator::Settings settings{.rank = options.rank,
                                             .world_size = options.world_size,
                                             .timeout = options.timeout,
                                             .identity = identity};
  try {
    return c10::make_intrusive<ShmBackend>(
        shm::Communicator::connect(settings, exchange_through(store, options)));
  } catch (const shm::SegmentError&) {
    let_others_read(*store, options);
    throw;
  }
}

}  // namespace ddp
