// Stage 02 mirrored: the copies of the model are made once and kept equal, as TensorFlow's
// MirroredStrategy does it.
//
//   run:  build/bin/02_data_parallel_mirrored 50 10 --nprocs 2 --batch-size 64
//
// New here: every device computes the loss of its own share, and the optimizer runs on all of them.
// What travels is the gradients: no weights, no outputs. With two replicas the result has the bits
// of stage 03, without its processes.

#include "common/stage.hpp"

namespace {

void train(const ddp::Options& options, const ddp::LaunchEnvironment& launch) {
  // 1. Device.
  const std::vector<torch::Device> devices = ddp::set_devices(options);
  const torch::Device device = devices.front();

  // 2. Data. The seed fixes the samples and their order: all stages read the same samples.
  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::RandomSampler sampler(dataset, options);
  ddp::DataLoader loader(dataset.train, sampler, options, device);

  // 3. Model. Seeded, so that all stages start from the same weights.
  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers, options.verbose);
  model->to(device);
  ddp::Mirrored mirrored_model(model, devices);

  // 4. Optimizer.
  ddp::Optimizer optimizer(mirrored_model, options);

  // 5. Train.
  ddp::Training training(options, launch, dataset, loader, model, optimizer, devices);
  for (const int64_t epoch : training.epochs()) {
    sampler.set_epoch(epoch);  // another order
    for (const ddp::Batch& batch : loader) {
      // The backward of every replica's loss ends with an all-reduce of their gradients.
      const ddp::PerReplica output = mirrored_model.forward(batch.input);
      const ddp::PerReplica loss = ddp::loss(output, batch);
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    if ((epoch + 1) % options.save_every == 0) {
      training.save_snapshot();
    }
  }

  // 6. Report. With the same --global-batch the weights move as far in every stage, or it is wrong.
  training.report();
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::run_alone(argc, argv, train);
}
