// simulator/examples/buckets.cpp - gradients in two buckets, as 03_ddp_spawn/main.cpp sends them:
// the first bucket is sent while backward computes the rest.
//   run:  build/bin/sim_buckets
#include "simulator/examples/mlp.hpp"

using namespace ddp::sim;

namespace {

void rank() {
  const double first_bucket_bytes = parameter("first_bucket_mib", 1) * 1024 * 1024;
  compute(kDataUs, "data");
  compute(kForwardUs, "forward");
  std::vector<Handle> buckets;
  int64_t bytes = 0;
  for (const Layer& layer : kLayers) {
    compute(layer.backward_us, "backward");
    bytes += layer.weight_bytes + layer.bias_bytes;
    if (static_cast<double>(bytes) >= first_bucket_bytes || &layer == &kLayers.back()) {
      buckets.push_back(all_reduce(bytes));
      bytes = 0;
    }
  }
  for (const Handle& bucket : buckets) {
    wait(bucket);
  }
  compute(kOptimizerUs, "optimizer");
}

}  // namespace

int main(int argc, char** argv) {
  return simulate(argc, argv, rank, {step_us <= 2230, messages == 4});
}
