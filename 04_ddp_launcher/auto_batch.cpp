// Stage 04 with `--batch-size auto`: the largest batch that fits is found before training.
//
//   run:  mpirun -np 2 build/bin/04_ddp_launcher_auto_batch 50 10 --batch-size auto
//
// New here: a step of several micro-batches. no_sync() keeps all but the last from communicating.

#include "common/stage.hpp"

namespace {

ddp::ExitCode train(const ddp::Options& options, const ddp::LaunchEnvironment& launch) {
  const torch::Device device = ddp::set_device(options, launch.local_rank);
  ddp::init_process_group(options, launch, device);  // collective
  const ddp::Dataset dataset = ddp::load_dataset(options);
  const int64_t size = dataset.train.size();
  ddp::DistributedSampler sampler(size, launch.rank, launch.world_size, options.seed);
  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers, options.verbose);
  model->to(device);
  ddp::DistributedDataParallel parallel_model(model, options.bucket_mib);  // collective
  const auto optimizer = ddp::make_optimizer(model->parameters(), options);

  // Find the largest batch. collective: all ranks take the smallest of their sizes.
  // At most the rank's part of a --global-batch, else of all samples.
  const int64_t of_rank = (size - 1) / launch.world_size + 1;
  const int64_t most = options.global_batch ? options.batch_size : of_rank;
  const int64_t micro_batch = ddp::find_batch_size(options, most, device, [&](int64_t samples) {
    const auto no_sync = parallel_model.no_sync();  // while it lives, backward stays local
    optimizer->zero_grad();
    ddp::DataLoader loader(dataset.train, sampler, samples, device);
    const ddp::Batch& batch = *loader.begin();
    ddp::loss(parallel_model.forward(batch.input), batch.target).backward();
  });
  const int64_t step_batch = options.global_batch ? options.batch_size : micro_batch;
  ddp::DataLoader loader(dataset.train, sampler, step_batch, device);
  ddp::Log log(options, *model);
  int64_t epoch = ddp::load_snapshot(options, *model, *optimizer);  // collective
  for (bool stopping = false; epoch < options.total_epochs && !stopping; ++epoch) {
    sampler.set_epoch(epoch);
    for (const ddp::Batch& batch : loader) {
      optimizer->zero_grad();
      torch::Tensor step_loss = torch::zeros({}, device);
      const std::vector<ddp::Batch> micro_batches = batch.split(micro_batch);
      for (const ddp::Batch& part : micro_batches) {
        const auto no_sync = parallel_model.no_sync(&part != &micro_batches.back());
        const torch::Tensor output = parallel_model.forward(part.input);
        const torch::Tensor loss = ddp::loss(output, part.target, part.weight);
        loss.backward();  // collective for the last micro-batch: the mean over the ranks
        step_loss += loss.detach();
      }
      optimizer->step();
      log.step(step_loss);
    }
    const torch::Tensor epoch_loss = log.epoch_loss();
    ddp::all_reduce(epoch_loss);  // collective
    epoch_loss.div_(launch.world_size);
    log.epoch(epoch, loader, epoch_loss);  // collective
    stopping = ddp::stop_requested();  // collective
    if (launch.rank == 0 && (stopping || (epoch + 1) % options.save_every == 0)) {
      ddp::save_snapshot(options, epoch + 1, *model, *optimizer);
    }
  }
  const bool done = epoch >= options.total_epochs;
  ddp::expect_same_weights(*model);  // collective
  if (done && launch.rank == 0) {
    log.report(ddp::evaluate(*model, dataset.test));
  }
  ddp::destroy_process_group();  // collective
  return done ? ddp::ExitCode::kDone : ddp::ExitCode::kRunAgain;
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::run_rank(argc, argv, train, {.batch_finder = true});
}
