// simulator/examples/ring_all_reduce.cpp - an all-reduce as a ring of send and recv.
// Exercise 10 of docs/exercises leaves out the body of ring_all_reduce().
//
//   run:  build/bin/sim_ring_all_reduce

#include <random>

#include "simulator/simulator.hpp"

using namespace ddp::sim;

namespace {

constexpr std::size_t kPart = 65536;  // values that one message carries

/// Part `index` of `values`, which has as many as there are ranks; any integer: -1 is the last.
std::span<float> part(std::span<float> values, int index) {
  const int n = world_size();
  return values.subspan(static_cast<std::size_t>((index % n + n) % n) * kPart, kPart);
}

/// Afterwards every rank has the sum of all ranks' `values`, element by element. A rank sends to
/// the next one and receives from the one before, in 2 (n - 1) messages of a part each.
void ring_all_reduce(std::span<float> values) {
  const int n = world_size();
  const int next = (my_rank() + 1) % n;
  const int previous = (my_rank() + n - 1) % n;
  std::vector<float> received(kPart);
  // Round by round a part goes on to the next rank, which adds its own: after n - 1 rounds rank r
  // has the whole sum of part r + 1.
  for (int round = 0; round < n - 1; ++round) {
    const Handle sent = send(next, part(values, my_rank() - round));
    wait(recv(previous, received));
    wait(sent);
    const std::span<float> own = part(values, my_rank() - round - 1);
    for (std::size_t i = 0; i < kPart; ++i) {
      own[i] += received[i];
    }
  }
  // The sums go round once more.
  for (int round = 0; round < n - 1; ++round) {
    const Handle sent = send(next, part(values, my_rank() + 1 - round));
    wait(recv(previous, part(values, my_rank() - round)));
    wait(sent);
  }
}

// The rest decides: are the sums there, and did they take no more messages, bytes and time than a
// ring needs?

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
