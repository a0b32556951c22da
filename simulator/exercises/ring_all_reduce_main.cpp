// simulator/exercises/ring_all_reduce_main.cpp - runs an answer, and decides: are the sums there,
// and did they take no more messages, bytes and time than a ring needs?

#include <random>

#include "simulator/exercises/ring_all_reduce.hpp"

using namespace ddp::sim;

namespace {

constexpr int kRanks = 4;

/// Random, so that only messages tell a rank what the others have. All ranks' factors add up to at
/// most 2^14, so that float has every sum exactly.
std::size_t factor(int rank) {
  static const unsigned seed = std::random_device()();
  const std::size_t most = 16384 / static_cast<std::size_t>(world_size());
  return 1 + std::mt19937(seed + static_cast<unsigned>(rank))() % most;
}

void rank() {
  const auto n = static_cast<std::size_t>(world_size());
  std::vector<float> values(n * kPart);
  const std::size_t own = factor(my_rank());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(own * (i % 1000));
  }
  ring_all_reduce(values);
  std::size_t factors = 0;
  for (int other = 0; other < world_size(); ++other) {
    factors += factor(other);
  }
  bool is_sum = true;
  for (std::size_t i = 0; i < values.size(); ++i) {
    is_sum = is_sum && values[i] == static_cast<float>(factors * (i % 1000));
  }
  check(is_sum, "has the sum of all ranks' values");
}

}  // namespace

int main(int argc, char** argv) {
  // The ring's formula for 1 MiB over 4 ranks: 6 messages of 10 us and 0.25 MiB of 100 us a MiB.
  constexpr double kMessages = 2 * (kRanks - 1);
  return simulate(argc, argv, rank,
                  {messages == kMessages, sent_bytes == kMessages * kPart * sizeof(float),
                   step_us <= kMessages * (10 + 0.25 * 100)},
                  kRanks);
}
