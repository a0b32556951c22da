// Stage 03 fused: the step written out for the one model that it trains, without autograd.
//
//   run:  build/bin/03_ddp_spawn_fused 50 10 --nprocs 2
//
// New here: the gradients lie in one tensor, so a step needs one all-reduce, and the step allocates
// nothing. On a GPU --graph captures the step once, the all-reduce too, and then repeats it.

#include "common/stage.hpp"

namespace {

ddp::ExitCode train(const ddp::Options& options, const ddp::LaunchEnvironment& launch) {
  if (options.optimizer != "sgd") {
    throw ddp::UsageError("--optimizer: got " + options.optimizer + ", expected sgd");
  }
  // 1. Device.
  const torch::Device device = ddp::set_device(options, launch.rank);
  ddp::init_process_group(options, launch, device);  // collective

  // 2. Data: 2048 samples of 20 features and one target, unless --dataset says otherwise.
  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::DistributedSampler sampler(dataset.train.size(), launch.rank, launch.world_size,
                                  options.seed);
  ddp::DataLoader loader(dataset.train, sampler, options.batch_size, device);

  // 3. Model. Its parameters become views of fused->weights(). collective: ddp::allocate
  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers);
  model->to(device);
  const auto fused = ddp::make_fused_mlp(model, loader.max_batch(), options.threads, ddp::allocate);
  ddp::broadcast(fused->weights());  // collective: rank 0's weights
  const auto step = [&] {
    fused->forward();
    fused->backward();
    ddp::all_reduce(fused->gradients());  // collective: the sum over the ranks
    fused->step(options.learning_rate.value_or(0.1) / launch.world_size);  // by the mean
  };
  std::optional<ddp::StepGraph> graph;
  if (options.graph) graph.emplace(ddp::cuda_module()->make_graph_stream(device));

  // 4. Train. The log prints and times. It changes no weight, and ends a run that diverged.
  ddp::Log log(options, *model);
  int64_t epoch = ddp::load_snapshot(options, *model);  // collective: rank 0 reads the file
  for (bool stopping = false; epoch < options.total_epochs && !stopping; ++epoch) {
    sampler.set_epoch(epoch);  // another order
    for (const ddp::Batch& batch : loader) {
      fused->load(batch);
      // A graph repeats whole batches; a smaller last batch takes the ordinary step.
      const bool is_whole = batch.size() == loader.max_batch() && batch.weight == 1;
      graph.has_value() && is_whole ? graph->run(step) : step();
      log.step(fused->loss());
    }
    const torch::Tensor epoch_loss = log.epoch_loss();
    ddp::all_reduce(epoch_loss);  // collective: the sum over the ranks
    epoch_loss.div_(launch.world_size);
    // collective: the log reads all ranks' step times
    log.epoch(epoch, loader, epoch_loss);
    stopping = ddp::stop_requested();  // collective: all ranks stop, or none
    if (launch.rank == 0 && (stopping || (epoch + 1) % options.save_every == 0)) {
      ddp::save_snapshot(options, epoch + 1, *model);
    }
  }
  graph.reset();  // before the process group whose connections it uses

  // 5. Report. At one --global-batch the losses of the first 20 steps agree to 1e-5 in all stages.
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
  return ddp::spawn(argc, argv, train, {.graph = true});
}
