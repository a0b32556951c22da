// docs/your_model/main.cpp - a model of LibTorch's own layers, trained on the ranks of a launcher.
// Usage: torchrun --nproc-per-node 2 --no-python your_model [epochs] [samples]
#include <torch/torch.h>

#include <ddp_cpp/backends/device.hpp>
#include <ddp_cpp/data/data_loader.hpp>
#include <ddp_cpp/data/dataset.hpp>
#include <ddp_cpp/launch/spawn.hpp>
#include <ddp_cpp/model/flat_parameters.hpp>
#include <ddp_cpp/parallel/distributed_data_parallel.hpp>
#include <ddp_cpp/parallel/distributed_sampler.hpp>
#include <ddp_cpp/parallel/process_group.hpp>

#include <filesystem>
#include <iostream>
#include <string>

namespace {

namespace nn = torch::nn;

constexpr int64_t kGlobalBatch = 64;  // over all ranks, so that any number of them trains alike

struct CnnImpl : nn::Module {
  /// @param pixels (batch, 784)
  torch::Tensor forward(const torch::Tensor& pixels) {
    return layers->forward(pixels.view({-1, 1, 28, 28}));
  }
  nn::Sequential layers = register_module(
      "layers",
      nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 8, 3).stride(2).padding(1)), nn::ReLU(),
                     nn::Conv2d(nn::Conv2dOptions(8, 16, 3).stride(2).padding(1)), nn::ReLU(),
                     nn::Flatten(), nn::Linear(16 * 7 * 7, 10)));
};
TORCH_MODULE(Cnn);

void train(const ddp::LaunchEnvironment& launch, int64_t epochs, int64_t samples) {
  // 1. Device and ranks.
  const torch::Device device = ddp::set_device(launch.local_rank);
  const ddp::Dataset dataset = ddp::load_dataset("fashion-mnist");
  ddp::init_process_group(
      launch, device, {.settings = dataset.fingerprint + "\nsamples " + std::to_string(samples)});

  // 2. Data: every rank reads its own part.
  TORCH_CHECK(kGlobalBatch % launch.world_size == 0, "Expected a number of ranks that divides ",
              kGlobalBatch, ", got ", launch.world_size);
  const ddp::Samples part = dataset.train.slice(0, samples);
  ddp::DistributedSampler sampler({.dataset_size = samples,
                                   .num_replicas = launch.world_size,
                                   .rank = launch.rank,
                                   .seed = 42});
  ddp::DataLoader loader(part, sampler,
                         {.batch_per_rank = kGlobalBatch / launch.world_size, .device = device});

  // 3. Model and optimizer: on the device first, then wrapped.
  torch::manual_seed(42);
  Cnn model;
  model->to(device);
  const torch::Tensor initial = ddp::parameter_vector(*model);
  ddp::DistributedDataParallel parallel_model(model);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));

  // 4. Train.
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(epoch);
    torch::Tensor epoch_loss = torch::zeros({}, device);
    for (const ddp::Batch& batch : loader) {
      optimizer.zero_grad();
      // Not the batch's own mean: in the last step ranks may have unequally many samples.
      const torch::Tensor loss =
          nn::functional::cross_entropy(
              parallel_model.forward(batch.input), batch.target,
              nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum)) /
          batch.step_samples_per_rank;
      loss.backward();
      optimizer.step();
      epoch_loss += loss.detach() * batch.step_samples_per_rank;
    }
    ddp::all_reduce(epoch_loss);  // on all ranks; only then may one of them print
    if (launch.rank == 0) {
      std::cout << "epoch " << epoch << " | loss " << epoch_loss.item<double>() / double(samples)
                << std::endl;
    }
  }

  // 5. Save on rank 0 alone. The rename and the barrier keep everybody from reading half a file.
  const std::string file = "your_model.pt";
  if (launch.rank == 0) {
    torch::save(model, file + ".tmp");
    std::filesystem::rename(file + ".tmp", file);
  }
  ddp::default_process_group().barrier();
  Cnn loaded;
  torch::load(loaded, file, device);  // the device is Python's map_location

  const double moved = (ddp::parameter_vector(*loaded) - initial).norm().item<double>();
  std::cout << c10::str("[rank ", launch.rank, "] moved ", moved, " | digest ",
                        ddp::parameter_hash(*model), "\n");
  ddp::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::run_rank(argc, argv, [=](const ddp::LaunchEnvironment& launch) {
    train(launch, argc > 1 ? std::stoll(argv[1]) : 3, argc > 2 ? std::stoll(argv[2]) : 60000);
  });
}
