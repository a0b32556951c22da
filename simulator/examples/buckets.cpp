// simulator/examples/buckets.cpp - gradients in buckets, as 03_ddp_spawn/main.cpp sends them: a
// bucket is sent as soon as it has bucket_mib MiB, while backward computes the rest. The last one
// is sent at the end of backward. --set bucket_mib=0.000001 is a hook and a message per parameter,
// and --set bucket_mib=1000 is one message after backward.
//   run:  build/bin/sim_buckets
#include <utility>

#include "simulator/examples/mlp.hpp"

using namespace ddp::sim;

namespace {

void rank() {
  const double bucket_bytes = parameter("bucket_mib", 1, {0.000001, 0.01, 1000}) * 1024 * 1024;
  compute(kDataUs, "data");
  compute(kForwardUs, "forward");
  std::vector<Handle> buckets;
  int64_t bytes = 0;
  for (const Layer& layer : kLayers) {
    compute(layer.backward_us, "backward");
    for (const int64_t gradient_bytes : {layer.bias_bytes, layer.weight_bytes}) {
      bytes += gradient_bytes;
      if (static_cast<double>(bytes) >= bucket_bytes) {
        buckets.push_back(all_reduce(std::exchange(bytes, 0)));
      }
    }
  }
  if (bytes > 0) {
    buckets.push_back(all_reduce(bytes));
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
