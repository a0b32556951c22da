// Stage 04 through the accelerator: what a program of one device needs to train on many, in one
// object, as in Hugging Face's Accelerate.
//
//   run:  mpirun -np 2 build/bin/04_ddp_launcher_accelerated 50 10
//
// New here: the accelerator knows device, rank and process group. It makes this rank's sampler and
// wraps the model. The rest is nearly stage 01, with the same bits as stage 04.

#include "common/stage.hpp"

namespace {

ddp::ExitCode train(const ddp::Options& options, const ddp::LaunchEnvironment& launch) {
  // 1. Device.
  const ddp::Accelerator accelerator(options, launch);  // collective

  // 2. Data: 2048 samples of 20 features and one target, unless --dataset says otherwise.
  const ddp::Dataset dataset = ddp::load_dataset(options);
  auto sampler = accelerator.prepare_sampler(dataset.train.size(), options.seed);
  ddp::DataLoader loader(dataset.train, sampler, options.batch_size, accelerator.device());

  // 3. Model and optimizer: by default a linear layer, and torch::optim::SGD with a rate of 0.1.
  // The seed gives all stages the same first weights.
  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers, options.verbose);
  const auto parallel_model = accelerator.prepare_model(model);  // collective
  const auto optimizer = ddp::make_optimizer(model->parameters(), options);

  // 4. Train. The log prints and times. It changes no weight, and ends a run that diverged.
  ddp::Log log(options, *model);
  // collective: rank 0 reads the file
  int64_t epoch = ddp::load_snapshot(options, *model, *optimizer);  // 0, unless --resume finds one
  for (bool stopping = false; epoch < options.total_epochs && !stopping; ++epoch) {
    sampler.set_epoch(epoch);  // another order
    for (const ddp::Batch& batch : loader) {
      optimizer->zero_grad();
      const torch::Tensor output = parallel_model->forward(batch.input);
      const torch::Tensor loss = ddp::loss(output, batch.target, batch.weight);
      accelerator.backward(loss);  // collective
      optimizer->step();
      log.step(loss);
    }
    const torch::Tensor epoch_loss = accelerator.reduce_mean(log.epoch_loss());  // collective
    // collective: the log reads all ranks' step times
    log.epoch(epoch, loader, epoch_loss);  // [CPU0] Epoch 0 | Batchsize: 32 | Steps: N | Loss: ...
    // collective: all ranks stop, or none
    stopping = ddp::stop_requested();  // SIGTERM, SIGUSR1 or SIGUSR2 came
    if (accelerator.is_main_process() && (stopping || (epoch + 1) % options.save_every == 0)) {
      ddp::save_snapshot(options, epoch + 1, *model, *optimizer);
    }
  }

  // 5. Report. At one --global-batch the losses of the first 20 steps agree to 1e-5 in all stages.
  const bool done = epoch >= options.total_epochs;
  if (done && accelerator.is_main_process()) {
    log.report(ddp::evaluate(*model, dataset.test));
  }
  accelerator.end_training(*model);  // collective
  return done ? ddp::ExitCode::kDone : ddp::ExitCode::kRunAgain;
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::run_rank(argc, argv, train);
}
