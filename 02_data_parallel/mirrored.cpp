// Stage 02 mirrored: the copies of the model are made once and kept equal, as TensorFlow's
// MirroredStrategy does it.
//
//   run:  build/bin/02_data_parallel_mirrored 50 10 --nprocs 2 --batch-size 64
//
// New here: every device computes the loss of its own share and has an optimizer of its own. What
// travels is the gradients: no weights, no outputs. With two replicas the result has the bits of
// stage 03, without its processes.

#include "common/stage.hpp"

namespace {

ddp::ExitCode train(const ddp::Options& options) {
  // 1. Device.
  const std::vector<torch::Device> devices = ddp::set_devices(options);
  const torch::Device device = devices.front();

  // 2. Data: 2048 samples of 20 features and one target, unless --dataset says otherwise.
  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::RandomSampler sampler(dataset.train.size(), options.seed);
  ddp::DataLoader loader(dataset.train, sampler, options.batch_size, device);

  // 3. Model and optimizers: one of each per device. The seed gives all stages the same first
  // weights.
  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers, options.verbose);
  model->to(device);
  ddp::Mirrored replicas(model, devices);
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
  for (size_t i = 0; i < replicas.size(); ++i) {
    optimizers.push_back(ddp::make_optimizer(replicas[i].parameters(), options));
  }

  // 4. Train. The log prints and times. It changes no weight, and ends a run that diverged.
  ddp::Log log(options, *model);
  int64_t epoch = 0;
  for (size_t i = 0; i < replicas.size(); ++i) {
    epoch = ddp::load_snapshot(options, replicas[i], *optimizers[i]);
  }
  for (bool stopping = false; epoch < options.total_epochs && !stopping; ++epoch) {
    sampler.set_epoch(epoch);  // another order
    for (const ddp::Batch& batch : loader) {
      std::vector<torch::Tensor> losses(replicas.size());
      replicas.parallel_apply([&](size_t i) {
        const ddp::Batch share = replicas.share(batch, i);
        optimizers[i]->zero_grad();
        const torch::Tensor output = replicas[i].forward(share.input);
        losses[i] = ddp::loss(output, share.target, share.weight);
        losses[i].backward();
      });
      replicas.average_gradients();  // over the replicas, who then all have the mean
      replicas.parallel_apply([&](size_t i) { optimizers[i]->step(); });
      log.step(replicas.mean(losses));
    }
    const torch::Tensor epoch_loss = log.epoch_loss();
    log.epoch(epoch, loader, epoch_loss);  // [CPU0] Epoch 0 | Batchsize: 32 | Steps: N | Loss: ...
    stopping = ddp::stop_requested();  // SIGTERM, SIGUSR1 or SIGUSR2 came
    if (stopping || (epoch + 1) % options.save_every == 0) {
      ddp::save_snapshot(options, epoch + 1, *model, *optimizers[0]);
    }
  }

  // 5. Report. At one --global-batch the losses of the first 20 steps agree to 1e-5 in all stages.
  const bool done = epoch >= options.total_epochs;
  replicas.expect_same_weights();
  if (done) {
    log.report(ddp::evaluate(*model, dataset.test));
  }
  return done ? ddp::ExitCode::kDone : ddp::ExitCode::kRunAgain;
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::run_alone(argc, argv, train);  // reads the options, prints errors
}
