// simulator/examples/late_rank.cpp - a rank computes longer, and the other ranks wait for it in the
// all-reduce: the others look slow, the straggler does not.
//   run:  build/bin/sim_late_rank
#include "simulator/simulator.hpp"

using namespace ddp::sim;

namespace {

void rank() {
  const bool is_late = my_rank() == 1;
  compute(is_late ? 1500 : 900, "backward");
  wait(all_reduce(1 << 20));
  compute(100, "optimizer");
}

}  // namespace

int main(int argc, char** argv) {
  // The straggler's 1500, 4 messages of 10 us, 4/3 MiB of 100 us, 100: no rank ends before.
  return simulate(argc, argv, rank, {step_us <= 1774, waited_us >= 600}, 3);
}
