// simulator/exercises/ring_all_reduce.cpp - an all-reduce as a ring of send and recv.
// Exercise 10 of docs/exercises leaves out the body of the function.
//
//   run:  build/bin/sim_ring_all_reduce

#include "simulator/exercises/ring_all_reduce.hpp"

using namespace ddp::sim;

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
