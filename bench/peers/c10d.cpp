// The peer `c10d`: stage 03 with PyTorch's own engine, c10d::Reducer, instead of ours.
//   run:  build/bin/peer_c10d 50 10 --nprocs 2
// Model, data, optimizer, processes and backends are the stage's, so a difference in speed comes
// from the engine. bench/peers/README.md explains peers.

#include "bench/peers/reducer.hpp"
#include "common/stage.hpp"

namespace {

ddp::ExitCode train(const ddp::Options& options, const ddp::LaunchEnvironment& launch) {
  const torch::Device device = ddp::set_device(options, launch.rank);
  ddp::init_process_group(options, launch, device);

  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::DistributedSampler sampler(dataset.train.size(), launch.rank, launch.world_size,
                                  options.seed);
  ddp::DataLoader loader(dataset.train, sampler, options.batch_size, device);

  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers, options.verbose);
  model->to(device);
  for (const torch::Tensor& parameter : model->parameters()) {
    ddp::broadcast(parameter.detach());
  }
  ddp::ReducerPeer reducer(*model, ddp::default_process_group(), /*find_unused_parameters=*/false);
  const auto optimizer = ddp::make_optimizer(model->parameters(), options);

  ddp::Log log(options, *model);
  for (int64_t epoch = 0; epoch < options.total_epochs; ++epoch) {
    sampler.set_epoch(epoch);
    for (const ddp::Batch& batch : loader) {
      // Not by the optimizer, which detaches gradients: the Reducer's are views of its buckets.
      for (torch::Tensor parameter : model->parameters()) {
        parameter.mutable_grad().reset();
      }
      reducer.before_forward();
      const torch::Tensor output = model->forward(batch.input);
      const torch::Tensor loss = ddp::loss(output, batch.target, batch.weight);
      reducer.prepare_for_backward({output});
      loss.backward();
      optimizer->step();
      log.step(loss);
    }
    const torch::Tensor epoch_loss = log.epoch_loss();
    ddp::all_reduce(epoch_loss);
    epoch_loss.div_(launch.world_size);
    log.epoch(epoch, loader, epoch_loss);
  }

  ddp::expect_same_weights(*model);
  if (launch.rank == 0) {
    log.report(ddp::evaluate(*model, dataset.test));
  }
  ddp::destroy_process_group();
  return ddp::ExitCode::kDone;
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::spawn(argc, argv, train);
}
