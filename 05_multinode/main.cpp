// Stage 05: several nodes. A process has a global rank, among all, and a local rank, on its node.
//
//   run:  sbatch slurm/05_multinode.sh 50 10
//   run:  torchrun --nnodes=2 --nproc_per_node=8 --rdzv-backend=c10d --rdzv-endpoint=NODE0:29400
//           --no-python build/bin/05_multinode 50 10        (the same on both nodes)
//
// New here: the local rank picks the device, the global rank everything else.

#include <torch/torch.h>

#include "common/backends/device.hpp"
#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/fused/fused_step.hpp"
#include "common/launch/options.hpp"
#include "common/launch/spawn.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/distributed_data_parallel.hpp"
#include "common/parallel/distributed_sampler.hpp"
#include "common/parallel/process_group.hpp"
#include "common/training/optimizer.hpp"
#include "common/training/snapshot.hpp"
#include "common/training/training_log.hpp"

namespace {

void train(const ddp::Options& options, const ddp::LaunchEnvironment& environment) {
  // 1. Device. Rank 11 may well be the fourth process of the second node: there it has GPU 3.
  const torch::Device device = ddp::pick_device(options, environment.local_rank);
  ddp::ProcessGroup process_group = ddp::init_process_group(options, environment, device);

  // 2. Data. The seed fixes the samples and their order, so all stages read the same global
  // batches.
  const ddp::Dataset dataset = ddp::load_dataset(options);
  const int64_t batch_per_rank = ddp::resolve_batch_per_rank(options, environment.world_size);
  ddp::DistributedSampler sampler(dataset, process_group, options);
  ddp::DataLoader loader(dataset.train, sampler, {batch_per_rank, options.accumulate, device});

  // 3. Model. Seeded, so that all stages start from the same weights.
  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers, options.verbose);
  model->to(device);
  ddp::DistributedDataParallel parallel_model(model, process_group, options);

  // 4. Optimizer. With --speedup fused or graph, the step below is replaced by one without
  // autograd.
  ddp::Optimizer optimizer(*model, options, &process_group);
  ddp::FusedStep fused_step(options, model, optimizer, &process_group);

  // 5. Train.
  ddp::TrainingLog log(options, model, device, &process_group);
  ddp::Snapshot snapshot(options, environment, dataset, *model, optimizer);
  for (int64_t epoch = snapshot.load(&process_group); epoch < options.total_epochs; ++epoch) {
    loader.set_epoch(epoch);
    optimizer.set_epoch(epoch);
    log.begin_epoch(epoch);
    for (const ddp::Batch& batch : loader) {
      if (fused_step.run(batch, log)) {
        continue;
      }
      log.begin(ddp::Phase::kForward);
      // With --accumulate only the last batch of a step communicates.
      const ddp::NoSync no_sync = parallel_model.no_sync(!batch.completes_step);
      const torch::Tensor output = parallel_model.forward(batch.input);
      const torch::Tensor loss = ddp::loss(output, batch);
      log.begin(ddp::Phase::kBackward);
      loss.backward();
      if (batch.completes_step) {
        log.begin(ddp::Phase::kOptimizer);
        optimizer.step();
        optimizer.zero_grad();
      }
      log.end(batch, loss);
    }
    log.end_epoch();
    // The global rank 0, or every node would write the file.
    if (environment.rank == 0 && (epoch + 1) % options.save_every == 0) {
      snapshot.save(epoch + 1);
    }
    snapshot.leave_if(log.stop_asked(), epoch + 1);
  }

  // 6. Report. How far the weights moved is the same number in every stage, or the stage is wrong.
  log.report(dataset);
  ddp::destroy_process_group(process_group);
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::run_rank(argc, argv, train);
}
