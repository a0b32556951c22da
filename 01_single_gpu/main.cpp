// Stage 01: train an MLP on one device. With the same global batch every later stage ends on
// the same weights.
//
//   run:  build/bin/01_single_gpu 50 10
//
// New here: nothing is distributed yet. Learn the six paragraphs; the later stages keep them.

#include "common/stage.hpp"

namespace {

void train(const ddp::Options& options, const ddp::LaunchEnvironment& launch) {
  // 1. Device.
  const torch::Device device = ddp::set_device(options, launch.rank);

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
  ddp::Training training(options, launch, dataset, loader, model, optimizer);
  for (const int64_t epoch : training.epochs()) {
    sampler.set_epoch(epoch);  // another order
    for (const ddp::Batch& batch : loader) {
      const torch::Tensor output = model->forward(batch.input);
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
