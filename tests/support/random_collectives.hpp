// tests/support/random_collectives.hpp - a random sequence of collectives over shared memory.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/backends/shm/shm_communicator.hpp"

namespace ddp::test {

/// Collective. Sums and copies of int32, of which every element is compared.
/// @param allocate gives a region, as Communicator::allocate() does; at most 400,000 bytes
/// @return which was the first wrong result, or nothing
inline std::string run_random_collectives(
    shm::Communicator& communicator, int calls,
    const std::function<std::shared_ptr<void>(size_t bytes)>& allocate) {
  const auto ranks = static_cast<size_t>(communicator.world_size());
  const auto own = static_cast<size_t>(communicator.rank());
  std::mt19937 random(static_cast<unsigned>(ranks));  // the same on every rank
  std::mt19937 delay(static_cast<unsigned>(own));
  std::vector<std::shared_ptr<void>> regions;
  for (int call = 0; call < calls; ++call) {
    // Around a slot, half a mailbox and a whole one, and what lies between.
    const auto edge = call % 16 == 15 ? size_t{524288} << random() % 2 : size_t{2048};
    const size_t any = random() % (size_t{1} << random() % 16);
    const size_t count = random() % 2 == 0 ? any : edge - 1 + random() % 3;
    const auto of_rank = [call](size_t rank) {
      return [call, rank](size_t i) { return static_cast<int32_t>(rank * 1000003 + i * 7) + call; };
    };
    const auto summed = [&](size_t i) {
      int32_t sum = 0;
      for (size_t rank = 0; rank < ranks; ++rank) {
        sum += of_rank(rank)(i);
      }
      return sum;
    };
    const auto holds = [](const int32_t* data, size_t size, const auto& expected) {
      size_t i = 0;
      while (i < size && data[i] == expected(i)) {
        ++i;
      }
      return i == size;
    };
    std::vector<int32_t> data(count);
    for (size_t i = 0; i < count; ++i) {
      data[i] = of_rank(own)(i);
    }
    std::vector<size_t> counts;  // of the ranks' different parts
    for (size_t rank = 0; rank < ranks; ++rank) {
      counts.push_back(count * (rank + 1) / ranks);
    }
    if (delay() % 16 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(delay() % 3000));
    }
    bool right = true;
    const auto kind = random() % 6;
    if (kind == 0) {
      const size_t root = random() % ranks;
      communicator.broadcast(data.data(), count, DType::kInt32, static_cast<int>(root));
      right = holds(data.data(), count, of_rank(root));
    } else if (kind <= 2) {
      const bool to_all = kind == 1;
      std::vector<std::vector<int32_t>> gathered;
      std::vector<void*> outputs;
      for (const size_t part : counts) {
        outputs.push_back(gathered.emplace_back(to_all ? part : count).data());
      }
      const size_t root = random() % ranks;
      if (to_all) {
        communicator.all_gather(data.data(), outputs.data(), counts.data(), DType::kInt32);
      } else {
        communicator.gather(data.data(), outputs.data(), count, DType::kInt32,
                            static_cast<int>(root));
      }
      for (size_t rank = 0; rank < ranks && (to_all || own == root); ++rank) {
        right = right && holds(gathered[rank].data(), gathered[rank].size(), of_rank(rank));
      }
    } else if (kind == 3) {
      const std::vector<const void*> inputs(ranks, data.data());
      std::vector<int32_t> output(counts[own]);
      communicator.reduce_scatter(inputs.data(), output.data(), counts.data(), DType::kInt32,
                                  ReduceOp::kSum);
      right = holds(output.data(), counts[own], summed);
    } else if (kind == 4) {
      const size_t in_region = std::min<size_t>(count, 100000);
      regions.push_back(allocate(in_region * sizeof(int32_t)));
      auto* const place = static_cast<int32_t*>(regions.back().get());
      std::copy_n(data.data(), in_region, place);
      communicator.all_reduce(place, in_region, DType::kInt32, ReduceOp::kSum);
      right = holds(place, in_region, summed);
      // Ranks free at different times, and at different places.
      if (delay() % 3 == 0) {
        regions.erase(regions.begin() + static_cast<std::ptrdiff_t>(delay() % regions.size()));
      }
    } else {
      communicator.all_reduce(data.data(), count, DType::kInt32, ReduceOp::kSum);
      right = holds(data.data(), count, summed);
    }
    if (!right) {
      return "call " + std::to_string(call) + ", kind " + std::to_string(kind);
    }
  }
  return "";
}

}  // namespace ddp::test
