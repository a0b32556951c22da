// Stage 04 through the accelerator: what a program of one device needs to train on many, in one
// object, as in Hugging Face's Accelerate.
//
//   run:  mpirun -np 2 build/bin/04_ddp_launcher_accelerated 50 10
//
// New here: model, optimizer and loader are those of one device; prepare() makes them this rank's.
// Same bits, same output: DistributedSampler, DistributedDataParallel and Training are still there.

#include "common/stage.hpp"

namespace {

void train(const ddp::Options& options, const ddp::LaunchEnvironment& launch) {
  // 1. Device.
  ddp::Accelerator accelerator(options, launch);

  // 2. Data. The seed fixes the samples and their order: all stages read the same samples.
  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::DataLoader loader(dataset, options);

  // 3. Model. Seeded, so that all stages start from the same weights.
  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers, options.verbose);

  // 4. Optimizer.
  ddp::Optimizer optimizer(*model, options);
  const auto parallel_model = accelerator.prepare(model, optimizer, loader);

  // 5. Train.
  for (const int64_t epoch : accelerator.epochs()) {
    loader.set_epoch(epoch);  // another order
    for (const ddp::Batch& batch : loader) {
      const torch::Tensor output = parallel_model->forward(batch.input);
      const torch::Tensor loss = ddp::loss(output, batch);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
    if ((epoch + 1) % options.save_every == 0) {
      accelerator.save_state();
    }
  }

  // 6. Report. With the same --global-batch the weights move as far in every stage, or it is wrong.
  accelerator.end_training();
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::run_rank(argc, argv, train);
}
