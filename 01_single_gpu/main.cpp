// Stage 01: train an MLP on one device. With the same global batch every later stage computes the
// same gradients, up to rounding.
//
//   run:  build/bin/01_single_gpu 50 10
//
// New here: nothing is distributed yet. Learn the five paragraphs; the later stages keep them.

#include "common/stage.hpp"

namespace {

ddp::ExitCode train(const ddp::Options& options) {
  // 1. Device.
  const torch::Device device = ddp::set_device(options);

  // 2. Data: 2048 samples of 20 features and one target, unless --dataset says otherwise.
  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::RandomSampler sampler(dataset.train.size(), options.seed);
  ddp::DataLoader loader(dataset.train, sampler, options.batch_size, device);

  // 3. Model and optimizer: by default a linear layer, and torch::optim::SGD with a rate of 0.1.
  // The seed gives all stages the same first weights.
  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers, options.verbose);
  model->to(device);
  const auto optimizer = ddp::make_optimizer(model->parameters(), options);

  // 4. Train. The log prints and times. It changes no weight, and ends a run that diverged.
  ddp::Log log(options, *model);
  int64_t epoch = ddp::load_snapshot(options, *model, *optimizer);  // 0, unless --resume finds one
  for (bool stopping = false; epoch < options.total_epochs && !stopping; ++epoch) {
    sampler.set_epoch(epoch);  // another order
    for (const ddp::Batch& batch : loader) {
      optimizer->zero_grad();
      const torch::Tensor output = model->forward(batch.input);
      const torch::Tensor loss = ddp::loss(output, batch.target);
      loss.backward();
      optimizer->step();
      log.step(loss);
    }
    const torch::Tensor epoch_loss = log.epoch_loss();
    log.epoch(epoch, loader, epoch_loss);  // [CPU0] Epoch 0 | Batchsize: 32 | Steps: N | Loss: ...
    stopping = ddp::stop_requested();  // SIGTERM, SIGUSR1 or SIGUSR2 came
    if (stopping || (epoch + 1) % options.save_every == 0) {
      ddp::save_snapshot(options, epoch + 1, *model, *optimizer);
    }
  }

  // 5. Report. At one --global-batch the losses of the first 20 steps agree to 1e-5 in all stages.
  const bool done = epoch >= options.total_epochs;
  if (done) {
    log.report(ddp::evaluate(*model, dataset.test));
  }
  return done ? ddp::ExitCode::kDone : ddp::ExitCode::kRunAgain;
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::run_alone(argc, argv, train);  // reads the options, prints errors
}
