// Stage 02: the same, in one process on several devices. DataParallel splits every batch over
// copies of the model.
//
//   run:  build/bin/02_data_parallel 50 10 --nprocs 2
//
// New here: devices instead of device, and a forward that scatters, replicates, applies in parallel
// and gathers.

#include <torch/torch.h>

#include "common/backends/device.hpp"
#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/fused/fused_step.hpp"
#include "common/launch/options.hpp"
#include "common/launch/spawn.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/data_parallel.hpp"
#include "common/training/optimizer.hpp"
#include "common/training/snapshot.hpp"
#include "common/training/training_log.hpp"

namespace {

void train(const ddp::Options& options, const ddp::LaunchEnvironment& environment) {
  // 1. Device.
  const std::vector<torch::Device> devices = ddp::pick_devices(options);
  const torch::Device device = devices.front();

  // 2. Data. The seed fixes the samples and their order, so all stages read the same global
  // batches.
  const ddp::Dataset dataset = ddp::load_dataset(options);
  const int64_t batch_per_rank = ddp::resolve_batch_per_rank(options, environment.world_size);
  ddp::RandomSampler sampler(dataset.train.size(), options.seed);
  ddp::DataLoader loader(dataset.train, sampler, {batch_per_rank, options.accumulate, device});

  // 3. Model. Seeded, so that all stages start from the same weights.
  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers, options.verbose);
  model->to(device);

  // 4. Optimizer. With --speedup fused or graph, the step below is replaced by one without
  // autograd.
  ddp::Optimizer optimizer(*model, options);
  ddp::FusedStep fused_step(options, model, optimizer, devices);

  // 5. Train.
  ddp::TrainingLog log(options, model, device);
  ddp::Snapshot snapshot(options, environment, dataset, *model, optimizer);
  for (int64_t epoch = snapshot.load(); epoch < options.total_epochs; ++epoch) {
    loader.set_epoch(epoch);
    optimizer.set_epoch(epoch);
    log.begin_epoch(epoch);
    for (const ddp::Batch& batch : loader) {
      if (fused_step.run(batch, log)) {
        continue;
      }
      log.begin(ddp::Phase::kForward);
      // Every step copies the weights to all devices and gathers the outputs on the first: watch
      // the step time.
      const torch::Tensor output = ddp::data_parallel(model, batch.input, devices);
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
    if ((epoch + 1) % options.save_every == 0) {
      snapshot.save(epoch + 1);
    }
    snapshot.leave_if(log.stop_asked(), epoch + 1);
  }

  // 6. Report. How far the weights moved is the same number in every stage, or the stage is wrong.
  log.report(dataset);
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::run_alone(argc, argv, train);
}
