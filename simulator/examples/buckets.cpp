// simulator/examples/buckets.cpp - gradients in two buckets, as 03_ddp_spawn/main.cpp sends them:
// the first is under way while backward computes the rest.
//
//   run:  build/bin/sim_buckets
#include "simulator/examples/mlp.hpp"

using namespace ddp::sim;

namespace {

void rank() {
  const Mlp model;
  allocate(2 * model.bytes());  // weights, gradients
  const auto first_bucket_bytes =
      static_cast<int64_t>(parameter("first_bucket_mib", 1) * 1024 * 1024);
  compute(model.data_us, "data");
  compute(model.forward_us, "forward");
  std::vector<Handle> buckets;
  int64_t bytes = 0;
  for (const Layer& layer : model.backward()) {
    compute(layer.backward_us, "backward");
    bytes += layer.bytes;
    if (bytes >= first_bucket_bytes || layer.is_last) {
      buckets.push_back(all_reduce(bytes));
      bytes = 0;
    }
  }
  for (const Handle& bucket : buckets) {
    wait(bucket);
  }
  compute(model.optimizer_us, "optimizer");
}

}  // namespace

int main(int argc, char** argv) {
  return simulate(argc, argv, rank, {step_us <= 2230, messages == 4});
}
