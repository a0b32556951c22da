// docs/your_model/main.cpp - a model of LibTorch's own layers, trained on the ranks of a launcher.
// Usage: torchrun --nproc-per-node 2 --no-python your_model [epochs] [samples]
#include <torch/torch.h>

#include <ddp_cpp/data/data_loader.hpp>
#include <ddp_cpp/data/dataset.hpp>
#include <ddp_cpp/device/device.hpp>
#include <ddp_cpp/launch/spawn.hpp>
#include <ddp_cpp/parallel/default_group.hpp>
#include <ddp_cpp/parallel/distributed_data_parallel.hpp>
#include <ddp_cpp/parallel/distributed_sampler.hpp>

#include <filesystem>
#include <iostream>
#include <string>

namespace {

namespace nn = torch::nn;

constexpr int64_t kGlobalBatch = 64;  // over all ranks, so that any number of them trains alike

void train(const ddp::LaunchEnvironment& launch, int64_t epochs, int64_t samples) {
  // 1. Device and ranks.
  const torch::Device device = ddp::set_device(launch.local_rank);
  const std::string settings =
      "epochs " + std::to_string(epochs) + "\nsamples " + std::to_string(samples);
  ddp::init_process_group(launch, device, {.settings = settings});  // collective

  // 2. Data: every rank reads its own part.
  TORCH_CHECK(kGlobalBatch % launch.world_size == 0, "Expected a number of ranks that divides ",
              kGlobalBatch, ", got ", launch.world_size);
  const ddp::Samples part = ddp::load_dataset("fashion-mnist").train.slice(0, samples);
  ddp::DistributedSampler sampler(samples, launch.rank, launch.world_size, /*seed=*/42);
  ddp::DataLoader loader(part, sampler, kGlobalBatch / launch.world_size, device);

  // 3. Model and optimizer: on the device first, then wrapped. A batch has (samples, 784) pixels.
  torch::manual_seed(42);
  nn::Sequential model(nn::Unflatten(nn::UnflattenOptions(1, {1, 28, 28})),
                       nn::Conv2d(nn::Conv2dOptions(1, 8, 3).stride(2).padding(1)), nn::ReLU(),
                       nn::Conv2d(nn::Conv2dOptions(8, 16, 3).stride(2).padding(1)), nn::ReLU(),
                       nn::Flatten(), nn::Linear(16 * 7 * 7, 10));
  model->to(device);
  const torch::Tensor initial = nn::utils::parameters_to_vector(model->parameters()).detach();
  ddp::DistributedDataParallel parallel_model(model);  // collective
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));

  // 4. Train.
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(epoch);
    torch::Tensor epoch_loss = torch::zeros({}, device);
    for (const ddp::Batch& batch : loader) {
      optimizer.zero_grad();
      const torch::Tensor output = parallel_model.forward(batch.input);
      // The weight is 1, except in the last step, where the ranks' numbers of samples may differ.
      // Without samples the mean would be NaN.
      const torch::Tensor loss =
          batch.size() == 0 ? output.sum()
                            : nn::functional::cross_entropy(output, batch.target) * batch.weight;
      loss.backward();  // collective
      optimizer.step();
      epoch_loss += loss.detach();
    }
    ddp::all_reduce(epoch_loss);  // on all ranks; only then may one of them print
    if (launch.rank == 0) {
      std::cout << "epoch " << epoch << " | loss "
                << epoch_loss.item<double>() / double(launch.world_size * loader.steps())
                << std::endl;
    }
  }

  // 5. Save on rank 0 alone. The rename and the barrier keep everybody from reading half a file.
  ddp::expect_same_weights(*model);  // collective
  const std::string file = "your_model.pt";
  if (launch.rank == 0) {
    torch::save(model, file + ".tmp");
    std::filesystem::rename(file + ".tmp", file);
  }
  ddp::barrier();  // collective
  torch::load(model, file, device);  // the device is Python's map_location
  const torch::Tensor weights = nn::utils::parameters_to_vector(model->parameters()).detach();
  std::cout << c10::str("[rank ", launch.rank, "] moved ",
                        (weights - initial).norm().item<double>(), " | as ", file, " has it\n");
  ddp::destroy_process_group();  // collective
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::run_rank([=](const ddp::LaunchEnvironment& launch) {
    train(launch, argc > 1 ? std::stoll(argv[1]) : 3, argc > 2 ? std::stoll(argv[2]) : 60000);
  });
}
