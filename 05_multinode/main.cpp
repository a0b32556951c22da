// Stage 05: several nodes. A process has a global rank, among all, and a local rank, on its node.
//
//   run:  sbatch slurm/05_multinode.sh 50 10
//   run:  torchrun --nnodes=2 --nproc_per_node=8 --rdzv-backend=c10d --rdzv-endpoint=NODE0:29400
//           --no-python build/bin/05_multinode 50 10        (one line, the same on both nodes)
//
// New here: the local rank picks the device. The global rank prints and saves, or every node would
// write the file.

#include "common/stage.hpp"

namespace {

ddp::ExitCode train(const ddp::Options& options, const ddp::LaunchEnvironment& launch) {
  const int rank = launch.rank;

  // 1. Device. Rank 11 may be the fourth process of the second node: there it takes GPU 3.
  const torch::Device device = ddp::set_device(options, launch.local_rank);
  ddp::init_process_group(options, launch, device);  // collective

  // 2. Data: 2048 samples of 20 features and one target, unless --dataset says otherwise.
  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::DistributedSampler sampler(dataset.train.size(), launch.rank, launch.world_size,
                                  options.seed);
  ddp::DataLoader loader(dataset.train, sampler, options.batch_size, device);

  // 3. Model and optimizer: by default a linear layer, and torch::optim::SGD with a rate of 0.1.
  // The seed gives all stages the same first weights.
  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers, options.verbose);
  model->to(device);
  ddp::DistributedDataParallel parallel_model(model, options.bucket_mib);  // collective
  const auto optimizer = ddp::make_optimizer(model->parameters(), options);

  // 4. Train. The log prints and times. It changes no weight, and ends a run that diverged.
  ddp::Log log(options, *model);
  // collective: rank 0 reads the file
  int64_t epoch = ddp::load_snapshot(options, *model, *optimizer);  // 0, unless --resume finds one
  for (bool stopping = false; epoch < options.total_epochs && !stopping; ++epoch) {
    sampler.set_epoch(epoch);  // another order
    for (const ddp::Batch& batch : loader) {
      optimizer->zero_grad();
      const torch::Tensor output = parallel_model.forward(batch.input);
      const torch::Tensor loss = ddp::loss(output, batch.target, batch.weight);
      // collective: the gradients become their mean over the ranks
      loss.backward();
      optimizer->step();
      log.step(loss);
    }
    const torch::Tensor epoch_loss = log.epoch_loss();
    ddp::all_reduce(epoch_loss);  // collective: the sum over the ranks
    epoch_loss.div_(launch.world_size);
    // collective: the log reads all ranks' step times
    log.epoch(epoch, loader, epoch_loss);  // [CPU0] Epoch 0 | Batchsize: 32 | Steps: N | Loss: ...
    // collective: all ranks stop, or none
    stopping = ddp::stop_requested();  // SIGTERM, SIGUSR1 or SIGUSR2 came
    if (rank == 0 && (stopping || (epoch + 1) % options.save_every == 0)) {
      ddp::save_snapshot(options, epoch + 1, *model, *optimizer);
    }
  }

  // 5. Report. At one --global-batch the losses of the first 20 steps agree to 1e-5 in all stages.
  const bool done = epoch >= options.total_epochs;
  ddp::expect_same_weights(*model);  // collective
  if (done && rank == 0) {
    log.report(ddp::evaluate(*model, dataset.test));
  }
  ddp::destroy_process_group();  // collective
  return done ? ddp::ExitCode::kDone : ddp::ExitCode::kRunAgain;
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::run_rank(argc, argv, train);
}
