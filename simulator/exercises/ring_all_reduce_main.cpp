// simulator/exercises/ring_all_reduce_main.cpp - runs an answer, and decides: are the sums there,
// and did they take no more messages, bytes and time than a ring needs?

#include "simulator/exercises/ring_all_reduce.hpp"

using namespace ddp::sim;

namespace {

constexpr int kRanks = 4;

void rank() {
  const auto n = static_cast<std::size_t>(world_size());
  std::vector<float> values(n * kPart);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(my_rank() + 1) * static_cast<float>(i % 1000);
  }
  ring_all_reduce(values);
  bool is_sum = true;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t factors = n * (n + 1) / 2;  // 1 + 2 + ... + n
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
