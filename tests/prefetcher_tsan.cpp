// The ring of batches under the thread sanitizer: its threads, and the one who takes. Compiled with
// all that it uses.
//
//   prefetcher_tsan          must be silent
//   prefetcher_tsan --race   reads a batch that was given back: the sanitizer must report it
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/data/prefetcher.hpp"

namespace {

constexpr int kWorkers = 3;
constexpr size_t kSlots = 4;
constexpr int64_t kBatches = 500;

/// Gives a batch back and looks at it when others have filled its slot.
void race() {
  std::vector<int64_t> slots(kSlots);
  std::atomic<int64_t> filled = 0;
  ddp::Prefetcher ring(kWorkers, kSlots, [&](int64_t batch, size_t slot, const auto& /*stops*/) {
    slots[slot] = batch;
    filled.fetch_add(1, std::memory_order_relaxed);
  });
  ring.start(kBatches);
  const size_t slot = ring.take();
  ring.give_back();
  while (filled.load(std::memory_order_relaxed) <= static_cast<int64_t>(kSlots)) {
  }
  std::printf("slot 0 holds batch %ld\n", slots[slot]);
}

void take_epochs() {
  std::vector<std::vector<int64_t>> slots(kSlots, std::vector<int64_t>(16));
  std::vector<int64_t> order;  // as the loader's, written between epochs
  ddp::Prefetcher ring(kWorkers, kSlots, [&](int64_t batch, size_t slot, const auto& /*stops*/) {
    slots[slot].assign(16, order[static_cast<size_t>(batch)]);
  });
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    ring.stop();
    order.clear();
    for (int64_t batch = 0; batch < kBatches; ++batch) {
      order.push_back(batch * 10 + epoch);
    }
    ring.start(kBatches);
    for (int64_t batch = 0; batch < (epoch == 1 ? kBatches / 2 : kBatches); ++batch) {
      const size_t slot = ring.take();
      if (slots[slot].back() != batch * 10 + epoch) {
        std::printf("batch %ld of epoch %ld is another one\n", batch, epoch);
        std::exit(1);
      }
      ring.give_back();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  argc > 1 && std::string(argv[1]) == "--race" ? race() : take_epochs();
  std::printf("done\n");
}
