// simulator/examples/deadlock.cpp - a collective under `if (my_rank() == 0)`: rank 0 waits for a
// broadcast that the other ranks never start.
//   run:  build/bin/sim_deadlock
#include "simulator/simulator.hpp"

using namespace ddp::sim;

namespace {

void rank() {
  compute(500, "backward");
  if (my_rank() == 0) {
    wait(broadcast(4096));
  }
  wait(all_reduce(1 << 20));
}

}  // namespace

int main(int argc, char** argv) {
  return simulate(argc, argv, rank, {}, 3);
}
