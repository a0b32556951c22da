// Stage 04: torchrun, mpirun or srun starts the processes; the program only asks which one it is.
//
//   run:  torchrun --standalone --nproc_per_node=2 --no-python build/bin/04_ddp_launcher 50 10
//   run:  mpirun -np 2 build/bin/04_ddp_launcher 50 10
//
// New here: nothing starts processes any more. Rank and world size come from the launcher's
// environment.

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
  ddp::DistributedDataParallel parallel_model(model, options);

  // 4. Optimizer.
  ddp::Optimizer optimizer(*model, options);

  // 5. Train.
  ddp::Training training(options, launch, dataset, loader, model, optimizer);
  for (const int64_t epoch : training.epochs()) {
    sampler.set_epoch(epoch);  // another order
    for (const ddp::Batch& batch : loader) {
      const torch::Tensor output = parallel_model.forward(batch.input);
      const torch::Tensor loss = ddp::loss(output, batch);
      loss.backward();
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
  return ddp::run_rank(argc, argv, train);
}
