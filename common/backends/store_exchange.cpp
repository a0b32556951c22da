#include "common/backends/store_exchange.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "common/base/patience.hpp"
#include "common/base/seconds_since.hpp"

namespace ddp {

std::vector<std::string> keys_of_ranks(const std::string& prefix, int world_size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < world_size; ++rank) {
    keys.push_back(fmt::format("{}/{}", prefix, rank));
  }
  return keys;
}

bool wait_patiently(c10d::Store& store, const std::vector<std::string>& keys,
                    std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kLook(500);
  for (Patience patience(timeout);;) {
    try {
      store.wait(keys, std::min(timeout, kLook));
      return true;
    } catch (const c10::DistNetworkError&) {
      throw;
    } catch (const c10::Error&) {
      if (patience.is_over()) {
        return false;
      }
    }
  }
}

void wait_for_ranks(c10d::Store& store, const std::vector<std::string>& keys,
                    const std::string& what, std::chrono::milliseconds timeout) {
  if (!wait_patiently(store, keys, timeout)) {
    constexpr size_t kMostNames = 16;
    std::vector<std::string> missing;
    for (size_t rank = 0; rank < keys.size() && missing.size() <= kMostNames; ++rank) {
      if (!store.check({keys[rank]})) {
        missing.push_back(missing.size() < kMostNames ? std::to_string(rank) : "...");
      }
    }
    throw TransientError(
        fmt::format("within {} s {} lacks rank {} of world size {}, expected all of them",
                    in_seconds(timeout), what, fmt::join(missing, ", "), keys.size()));
  }
}

void meet(c10d::Store& store, const std::string& event, int rank, int world_size,
          const std::string& what) {
  const std::vector<std::string> keys = keys_of_ranks(event, world_size);
  store.set(keys[static_cast<size_t>(rank)], "here");
  wait_for_ranks(store, keys, what, store.getTimeout());
}

Exchange exchange_through(const c10::intrusive_ptr<c10d::Store>& store, const std::string& backend,
                          const BackendOptions& options) {
  return [=, rank = options.rank, world_size = options.world_size, timeout = options.timeout,
          round = 0](const std::string& mine) mutable {
    const std::vector<std::string> keys =
        keys_of_ranks(fmt::format("{}/{}", backend, round++), world_size);
    store->set(keys[static_cast<size_t>(rank)], mine + "\n");  // never empty
    wait_for_ranks(*store, keys, "the start of --backend " + backend, timeout);
    std::vector<std::string> texts;
    for (const std::string& key : keys) {
      const std::vector<uint8_t> bytes = store->get(key);
      texts.emplace_back(bytes.begin(), bytes.end() - 1);
    }
    return texts;
  };
}

void let_others_read(c10d::Store& store, const std::string& prefix, int rank, int world_size,
                     std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kPatience{10000};
  const std::vector<std::string> keys = keys_of_ranks(prefix + "/read", world_size);
  try {
    store.set(keys[static_cast<size_t>(rank)], "read");
    wait_patiently(store, keys, std::min(timeout, kPatience));
  } catch (const c10::Error&) {
    // A rank that was killed meanwhile reads nothing. Or the server has left, when all had read.
  }
}

}  // namespace ddp
