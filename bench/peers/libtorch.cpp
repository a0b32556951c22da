// The peer `libtorch`: stage 02 with LibTorch's own data_parallel, which copies between CUDA
// devices only.
//
//   run:  build/bin/peer_libtorch 50 10 --nprocs 2
//
// See bench/peers/README.md for what a peer is.

#include <ATen/Parallel.h>
#include <torch/nn/parallel/data_parallel.h>

#include "bench/peers/run_peer.hpp"
#include "common/base/refuse.hpp"
#include "common/stage.hpp"

namespace {

void train(const ddp::Options& options, const ddp::LaunchEnvironment& launch) {
  if (options.speedup != "none") {
    ddp::refuse("--speedup is {}, expected none: peer_libtorch trains by autograd",
                options.speedup);
  }
  const std::vector<torch::Device> devices = ddp::set_devices(options);
  const torch::Device device = devices.front();
  if (!device.is_cuda()) {
    ddp::refuse("the device is {}, expected CUDA devices: LibTorch's data_parallel has no others",
                device.str());
  }
  // Its replicas run on the threads that operators would use.
  at::set_num_threads(static_cast<int>(devices.size()));

  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::RandomSampler sampler(dataset, options);
  ddp::DataLoader loader(dataset.train, sampler, options, device);

  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers, options.verbose);
  model->to(device);
  ddp::Optimizer optimizer(*model, options);

  ddp::Training training(options, launch, dataset, loader, model, optimizer, devices);
  for (const int64_t epoch : training.epochs()) {
    sampler.set_epoch(epoch);
    for (const ddp::Batch& batch : loader) {
      const torch::Tensor output = torch::nn::parallel::data_parallel(model, batch.input, devices);
      const torch::Tensor loss = ddp::loss(output, batch);
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  training.report();
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::run_peer(argc, argv,
                       {.name = "peer_libtorch",
                        .variant = "data_parallel",
                        .description = "torch::nn::parallel::data_parallel in stage 02's loop",
                        .min_processes = 2,
                        .devices = {"cuda"}},
                       train, ddp::run_alone);
}
