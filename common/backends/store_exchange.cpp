#include "common/backends/store_exchange.hpp"

#include <algorithm>
#include <vector>

#include "common/base/exit_codes.hpp"

namespace ddp {
namespace {

constexpr std::chrono::milliseconds kPatience{10000};

}  // namespace

Exchange exchange_through(const c10::intrusive_ptr<c10d::Store>& store, const std::string& backend,
                          int rank, int world_size, std::chrono::milliseconds timeout) {
  return [=, round = 0](const std::string& mine) mutable {
    const std::string prefix = backend + "/" + std::to_string(round++) + "/";
    std::vector<std::string> keys;
    for (int r = 0; r < world_size; ++r) {
      keys.push_back(prefix + std::to_string(r));
    }
    store->set(keys[static_cast<size_t>(rank)], mine + "\n");  // never empty
    try {
      store->wait(keys, timeout);
    } catch (const c10::Error&) {
      std::string missing;
      for (int r = 0; r < world_size; ++r) {
        if (!store->check({keys[static_cast<size_t>(r)]})) {
          missing += (missing.empty() ? "" : ", ") + std::to_string(r);
        }
      }
      throw TransientError("within " + in_seconds(timeout) + " s the start of --backend " +
                           backend + " lacks rank " + missing + " of world size " +
                           std::to_string(world_size) + ", expected all of them");
    }
    std::vector<std::string> texts;
    for (const std::string& key : keys) {
      const std::vector<uint8_t> bytes = store->get(key);
      texts.emplace_back(bytes.begin(), bytes.end() - 1);
    }
    return texts;
  };
}

void let_others_read(c10d::Store& store, const std::string& backend, int rank, int world_size,
                     std::chrono::milliseconds timeout) {
  const auto key = [&](int r) { return backend + "/refused/" + std::to_string(r); };
  if (rank != 0) {
    store.set(key(rank), "read");
    return;
  }
  std::vector<std::string> others;
  for (int r = 1; r < world_size; ++r) {
    others.push_back(key(r));
  }
  try {
    store.wait(others, std::min(timeout, kPatience));
  } catch (const c10::Error&) {
    // Whoever was killed meanwhile reads nothing.
  }
}

}  // namespace ddp
