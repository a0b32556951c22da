// The peer `c10d`: stage 03 with PyTorch's own engine, c10d::Reducer, instead of ours.
//
//   run:  build/bin/peer_c10d 50 10 --nprocs 2
//
// Model, data, processes and backends are the stages', so that a difference in speed is the
// engine's. See bench/peers/README.md for what a peer is.

#include <string_view>
#include <vector>

#include "bench/peers/reducer.hpp"
#include "common/base/refuse.hpp"
#include "common/stage.hpp"

namespace {

/// One call for all parameters, the fastest that LibTorch has for separate ones.
void step(const std::vector<torch::Tensor>& parameters, double learning_rate) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> weights;
  std::vector<torch::Tensor> gradients;
  for (const torch::Tensor& parameter : parameters) {
    weights.push_back(parameter.detach());
    gradients.push_back(parameter.grad());
  }
  at::_fused_sgd_(weights, gradients, /*momentum_buffer_list=*/{}, /*weight_decay=*/0.0,
                  /*momentum=*/0.0, learning_rate, /*dampening=*/0.0, /*nesterov=*/false,
                  /*maximize=*/false, /*is_first_step=*/false);
}

void train(const ddp::Options& options, const ddp::LaunchEnvironment& launch) {
  if (launch.world_size < 2) {
    ddp::refuse("--nprocs is {}, expected >= 2: one process has nothing to reduce",
                launch.world_size);
  }
  if (options.optimizer != "sgd" || options.accumulate != 1 || options.speedup != "none") {
    ddp::refuse(
        "got --optimizer, --accumulate or --speedup, expected the defaults: peer_c10d trains by "
        "plain SGD");
  }
  const torch::Device device = ddp::set_device(options, launch.rank);
  ddp::init_process_group(options, launch, device);

  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::DistributedSampler sampler(dataset, options);
  ddp::DataLoader loader(dataset.train, sampler, options, device);

  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers, options.verbose);
  model->to(device);
  const std::vector<torch::Tensor> parameters = model->parameters();
  for (const torch::Tensor& parameter : parameters) {
    ddp::broadcast(parameter.detach());
  }
  ddp::ReducerPeer reducer(*model, ddp::default_process_group(), /*find_unused_parameters=*/false);

  ddp::TrainingLog log(options, model, device, &ddp::default_process_group());
  log.begin_training(/*epochs_done=*/0);
  loader.set_observer(&log);
  for (int64_t epoch = 0; epoch < options.total_epochs; ++epoch) {
    sampler.set_epoch(epoch);
    log.set_epoch(epoch);
    for (const ddp::Batch& batch : loader) {
      reducer.before_forward();
      const torch::Tensor output = model->forward(batch.input);
      const torch::Tensor loss = ddp::loss(output, batch);
      reducer.prepare_for_backward({output});
      loss.backward();
      step(parameters, ddp::resolve_learning_rate(options));
      for (const torch::Tensor& parameter : parameters) {
        parameter.mutable_grad().reset();
      }
    }
  }
  log.report(dataset);
  ddp::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  // bench names the variant of every peer; this one has no other.
  std::vector<char*> arguments;
  for (int i = 0; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--variant" && i + 1 < argc &&
        std::string_view(argv[i + 1]) == "reducer") {
      ++i;
    } else {
      arguments.push_back(argv[i]);
    }
  }
  const int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  return ddp::spawn(count, arguments.data(), train);
}
