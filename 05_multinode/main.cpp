// Stage 05: several nodes. A process has a global rank, among all, and a local rank, on its node.
//
//   run:  sbatch slurm/05_multinode.sh 50 10
//   run:  torchrun --nnodes=2 --nproc_per_node=8 --rdzv-backend=c10d --rdzv-endpoint=NODE0:29400
//           --no-python build/bin/05_multinode 50 10        (one line, the same on both nodes)
//
// New here: the local rank picks the device, the global rank everything else.

#include "common/stage.hpp"

namespace {

void train(const ddp::Options& options, const ddp::LaunchEnvironment& launch) {
  // 1. Device. Rank 11 may well be the fourth process of the second node: there it has GPU 3.
  const torch::Device device = ddp::set_device(options, launch.local_rank);
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
    // The global rank 0, or every node would write the file.
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
