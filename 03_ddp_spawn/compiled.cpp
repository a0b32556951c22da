// Stage 03 compiled: loss and gradients come from a graph that PyTorch's compiler made in Python.
//
//   make: tools/compile_step --layers 20,1 --output step.pt2
//   run:  build/bin/03_ddp_spawn_compiled 50 10 --nprocs 2 --step step.pt2
//
// New here: no autograd. A call computes loss and gradients of a model that was written in Python,
// and the gradients lie in one tensor, so a step needs one all-reduce.

#include "common/stage.hpp"

namespace {

ddp::ExitCode train(const ddp::Options& options, const ddp::LaunchEnvironment& launch) {
  const int rank = launch.rank;

  // 1. Device.
  const torch::Device device = ddp::set_device(options, rank);
  ddp::init_process_group(options, launch, device);  // collective

  // 2. Data: 2048 samples of 20 features and one target, unless --dataset says otherwise.
  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::DistributedSampler sampler(dataset.train.size(), launch.rank, launch.world_size,
                                  options.seed);
  ddp::DataLoader loader(dataset.train, sampler, options.batch_size, device);

  // 3. Model and weights of --step. Optimizer: by default torch::optim::SGD with a rate of 0.1.
  const auto model = std::make_shared<ddp::CompiledStep>(options.step, device, ddp::allocate);
  for (const torch::Tensor& parameter : model->parameters()) {
    ddp::broadcast(parameter.detach());  // collective: rank 0's weights
  }
  const auto optimizer = ddp::make_optimizer(model->parameters(), options);

  // 4. Train. The log prints and times. It changes no weight, and ends a run that diverged.
  ddp::Log log(options, *model);
  // collective: rank 0 reads the file
  int64_t epoch = ddp::load_snapshot(options, *model, *optimizer);  // 0, unless --resume finds one
  for (bool stopping = false; epoch < options.total_epochs && !stopping; ++epoch) {
    sampler.set_epoch(epoch);  // another order
    for (const ddp::Batch& batch : loader) {
      const torch::Tensor loss = (*model)(batch.input, batch.target, batch.weight);
      ddp::all_reduce(model->gradients(), c10d::ReduceOp::AVG);  // collective: all gradients' mean
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
  return ddp::spawn(argc, argv, train, {.step = true});
}
