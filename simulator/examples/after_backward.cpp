// simulator/examples/after_backward.cpp - an all-reduce for each parameter after backward, as in
// 03_ddp_spawn/by_hand.cpp: no computation overlaps with communication.
//   run:  build/bin/sim_after_backward
#include "simulator/examples/mlp.hpp"

using namespace ddp::sim;

namespace {

void rank() {
  compute(kDataUs, "data");
  compute(kForwardUs, "forward");
  for (const Layer& layer : kLayers) {
    compute(layer.backward_us, "backward");
  }
  for (const Layer& layer : kLayers) {
    wait(all_reduce(layer.weight_bytes));
    wait(all_reduce(layer.bias_bytes));
  }
  compute(kOptimizerUs, "optimizer");
}

}  // namespace

int main(int argc, char** argv) {
  // 2050 us of compute; 6 all-reduces of 20 us and together 2.555 MiB of 100 us.
  return simulate(argc, argv, rank, {step_us <= 2430, messages == 12});
}
