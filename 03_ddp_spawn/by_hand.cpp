// Stage 03 by hand: the same without the DDP class, whose work is two loops and a division.
//
//   run:  build/bin/03_ddp_spawn_by_hand 50 10 --nprocs 2
//
// New here: the weights are broadcast before training, the gradients all-reduced after backward.
// With two ranks the result has the same bits; what is lost is the overlap of communication with
// backward, and one message for many small gradients.

#include "common/stage.hpp"

namespace {

void train(const ddp::Options& options, const ddp::LaunchEnvironment& launch) {
  // 1. Device.
  const torch::Device device = ddp::set_device(options, launch.rank);
  ddp::init_process_group(options, launch, device);

  // 2. Data. The seed fixes the samples and their order: all stages read the same samples.
  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::DistributedSampler sampler(dataset, options);
  ddp::DataLoader loader(dataset.train, sampler, options, device);

  // 3. Model. Seeded, so that all stages start from the same weights.
  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers, options.verbose);
  model->to(device);
  ddp::expect_uncompressed(options);
  for (const torch::Tensor& parameter : model->parameters()) {
    ddp::broadcast(parameter.detach());
  }

  // 4. Optimizer.
  ddp::Optimizer optimizer(*model, options);

  // 5. Train.
  ddp::Training training(options, launch, dataset, loader, model, optimizer);
  for (const int64_t epoch : training.epochs()) {
    sampler.set_epoch(epoch);  // another order
    for (const ddp::Batch& batch : loader) {
      const torch::Tensor output = model->forward(batch.input);
      const torch::Tensor loss = ddp::loss(output, batch);
      loss.backward();
      if (batch.completes_step) {
        for (const torch::Tensor& parameter : model->parameters()) {
          ddp::all_reduce(parameter.grad());
          parameter.grad().div_(launch.world_size);
        }
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    if (launch.rank == 0 && (epoch + 1) % options.save_every == 0) {
      training.save_snapshot();
    }
  }

  // 6. Report. With the same --global-batch the weights move as far in every stage, or it is wrong.
  training.report();
  ddp::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::spawn(argc, argv, train);
}
