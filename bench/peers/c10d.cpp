// The peer `c10d`: stage 03 with PyTorch's own engine, c10d::Reducer, instead of ours.
//
//   run:  build/bin/peer_c10d 50 10 --nprocs 2 --variant reducer
//
// Model, data, processes and backends are the stages', so that a difference in speed is the
// engine's. See bench/peers/README.md for what a peer is.

#include <torch/types.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/peers/reducer.hpp"
#include "bench/peers/run_peer.hpp"
#include "common/backends/device.hpp"
#include "common/base/exit_codes.hpp"
#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/launch/options.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/distributed_sampler.hpp"
#include "common/parallel/process_group.hpp"
#include "common/training/optimizer.hpp"
#include "common/training/training_log.hpp"

namespace {

constexpr const char* kVariant = "reducer";

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

/// The Reducer does not tell when it waits: what the log cannot know becomes null.
void mark_unknown(const std::string& metrics) {
  std::vector<nlohmann::json> lines;
  {
    std::ifstream file(metrics);
    for (std::string line; std::getline(file, line);) {
      lines.push_back(nlohmann::json::parse(line));
    }
  }
  std::ofstream file(metrics);
  for (nlohmann::json& line : lines) {
    if (line.contains("summary")) {
      nlohmann::json& summary = line["summary"];
      summary["program"] = "peer_c10d";
      summary["variant"] = kVariant;
      summary["bytes_per_step"] = 4 * summary.at("parameters").get<int64_t>();
      summary.erase("all_reduce_bytes");
    } else {
      line["exposed_comm_ms"] = nullptr;
    }
    file << line.dump() << '\n';
  }
  if (!file.flush()) {
    throw ddp::Error(ddp::ExitCode::kTrainingFailed,
                     "--metrics: cannot write " + metrics + ", expected a writable file");
  }
}

void train(const ddp::Options& options, const ddp::LaunchEnvironment& environment) {
  if (environment.world_size < 2) {
    throw ddp::UsageError("--nprocs is 1, expected >= 2: one process has nothing to reduce");
  }
  if (options.optimizer != "sgd" || options.accumulate != 1 || options.speedup != "none") {
    throw ddp::UsageError(
        "got --optimizer, --accumulate or --speedup, expected the defaults: peer_c10d trains by "
        "plain SGD");
  }
  const torch::Device device = ddp::set_device(options, environment.rank);
  ddp::init_process_group(options, environment, device);

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
      log.begin(ddp::Phase::kForward);
      reducer.prepare_for_backward({output});
      log.begin(ddp::Phase::kBackward);
      loss.backward();
      log.begin(ddp::Phase::kOptimizer);
      step(parameters, ddp::resolve_learning_rate(options));
      for (const torch::Tensor& parameter : parameters) {
        parameter.mutable_grad().reset();
      }
      log.begin(ddp::Phase::kData);
    }
  }
  log.report(dataset);
  if (environment.rank == 0 && !options.metrics.empty()) {
    mark_unknown(options.metrics);
  }
  ddp::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::run_peer(argc, argv,
                       {.name = "peer_c10d",
                        .variant = kVariant,
                        .description = "c10d::Reducer with bucket views, fused SGD",
                        .min_processes = 2,
                        .devices = {"cpu", "cuda"}},
                       train, ddp::spawn);
}
