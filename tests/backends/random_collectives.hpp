// tests/backends/random_collectives.hpp - a random sequence of collectives over shared memory.
#pragma once

#include <random>

#include "common/backends/shm/shm_collectives.hpp"

namespace ddp::test {

/// Collective. Sums and copies int64, and compares every element.
/// @param allocate returns a region, like Collectives::allocate(); at most 400,000 bytes
/// @return description of the first wrong result, or an empty text
inline std::string run_random_collectives(
    shm::Collectives& communicator, int calls,
    const std::function<std::shared_ptr<void>(size_t bytes)>& allocate) {
  const auto ranks = static_cast<size_t>(communicator.world_size());
  const auto own = static_cast<size_t>(communicator.rank());
  std::mt19937 random(static_cast<unsigned>(ranks));  // the same on every rank
  std::mt19937 delay(static_cast<unsigned>(own));
  std::vector<std::shared_ptr<void>> regions;
  for (int call = 0; call < calls; ++call) {
    // Sizes around a slot, half a mailbox and a mailbox, and between them.
    const auto edge = call % 16 == 15 ? size_t{262144} << random() % 2 : size_t{1024};
    const size_t any = random() % (size_t{1} << random() % 16);
    const size_t count = random() % 2 == 0 ? any : edge - 1 + random() % 3;
    const auto of_rank = [call, count](size_t rank) {
      std::vector<int64_t> values(count);
      for (size_t i = 0; i < count; ++i) {
        values[i] = static_cast<int64_t>(rank * 1000003 + i * 7) + call;
      }
      return values;
    };
    const auto summed = [&] {
      std::vector<int64_t> sum(count);
      for (size_t rank = 0; rank < ranks; ++rank) {
        std::ranges::transform(sum, of_rank(rank), sum.begin(), std::plus<>());
      }
      return sum;
    };
    std::vector<int64_t> data = of_rank(own);
    if (delay() % 16 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(delay() % 3000));
    }
    bool right = true;
    const auto kind = random() % 4;
    if (kind == 0) {
      const size_t root = random() % ranks;
      communicator.broadcast(data.data(), count * sizeof(int64_t), static_cast<int>(root));
      right = data == of_rank(root);
    } else if (kind == 1) {
      std::vector<std::vector<int64_t>> gathered(ranks, std::vector<int64_t>(count));
      std::vector<void*> outputs;
      for (auto& one : gathered) {
        outputs.push_back(one.data());
      }
      communicator.all_gather(data.data(), outputs.data(), count * sizeof(int64_t));
      for (size_t rank = 0; rank < ranks; ++rank) {
        right = right && gathered[rank] == of_rank(rank);
      }
    } else if (kind == 2) {
      const size_t in_region = std::min<size_t>(count, 50000);
      regions.push_back(allocate(in_region * sizeof(int64_t)));
      auto* const place = static_cast<int64_t*>(regions.back().get());
      std::copy_n(data.data(), in_region, place);
      communicator.all_reduce(place, in_region, DType::kInt64, ReduceOp::kSum);
      right = std::equal(place, place + in_region, summed().begin());
      // Ranks free their memory at different times and places.
      if (delay() % 3 == 0) {
        regions.erase(regions.begin() + static_cast<std::ptrdiff_t>(delay() % regions.size()));
      }
    } else {
      communicator.all_reduce(data.data(), count, DType::kInt64, ReduceOp::kSum);
      right = data == summed();
    }
    if (!right) {
      return "call " + std::to_string(call) + ", kind " + std::to_string(kind);
    }
  }
  return "";
}

}  // namespace ddp::test
