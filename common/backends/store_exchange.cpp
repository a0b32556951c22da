#include "common/backends/store_exchange.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "common/base/exit_codes.hpp"

namespace ddp {

Exchange exchange_through(const c10::intrusive_ptr<c10d::Store>& store, const std::string& backend,
                          const BackendOptions& options) {
  return [=, rank = options.rank, world_size = options.world_size, timeout = options.timeout,
          round = 0](const std::string& mine) mutable {
    std::vector<std::string> keys;
    for (int r = 0; r < world_size; ++r) {
      keys.push_back(fmt::format("{}/{}/{}", backend, round, r));
    }
    ++round;
    store->set(keys[static_cast<size_t>(rank)], mine + "\n");  // never empty
    try {
      store->wait(keys, timeout);
    } catch (const c10::Error&) {
      std::vector<int> missing;
      for (int r = 0; r < world_size; ++r) {
        if (!store->check({keys[static_cast<size_t>(r)]})) {
          missing.push_back(r);
        }
      }
      throw TransientError(fmt::format(
          "within {} s the start of --backend {} lacks rank {} of world size {}, expected all of "
          "them",
          in_seconds(timeout), backend, fmt::join(missing, ", "), world_size));
    }
    std::vector<std::string> texts;
    for (const std::string& key : keys) {
      const std::vector<uint8_t> bytes = store->get(key);
      texts.emplace_back(bytes.begin(), bytes.end() - 1);
    }
    return texts;
  };
}

void let_others_read(c10d::Store& store, const std::string& backend,
                     const BackendOptions& options) {
  constexpr std::chrono::milliseconds kPatience{10000};
  const auto key = [&](int r) { return fmt::format("{}/refused/{}", backend, r); };
  if (options.rank != 0) {
    store.set(key(options.rank), "read");
    return;
  }
  std::vector<std::string> others;
  for (int r = 1; r < options.world_size; ++r) {
    others.push_back(key(r));
  }
  try {
    store.wait(others, std::min(options.timeout, kPatience));
  } catch (const c10::Error&) {
    // Whoever was killed meanwhile reads nothing.
  }
}

}  // namespace ddp
