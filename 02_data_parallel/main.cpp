// Stage 02: the same, in one process on several devices. DataParallel splits every batch over
// copies of the model.
//
//   run:  build/bin/02_data_parallel 50 10 --nprocs 2
//
// New here: devices instead of device, and a forward that scatters, replicates, applies in parallel
// and gathers.

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

  // 4. Optimizer.
  ddp::Optimizer optimizer(*model, options);

  // 5. Train.
  ddp::Training training(options, launch, dataset, loader, model, optimizer, devices);
  for (const int64_t epoch : training.epochs()) {
    sampler.set_epoch(epoch);  // another order
    for (const ddp::Batch& batch : loader) {
      // Every step copies the weights to all devices and gathers the outputs on the first: watch
      // the step time.
      const torch::Tensor output = ddp::data_parallel(model, batch.input, devices);
      const torch::Tensor loss = ddp::loss(output, batch);
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
