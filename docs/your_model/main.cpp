// docs/your_model/main.cpp - a model of LibTorch's own layers, trained on the ranks of a launcher.
// Usage: torchrun --nproc-per-node 2 --no-python your_model FILE [epochs] [rate] [patience]
// FILE has images of 8x8 pixels from 0 to 16, and their digits: data/digits.safetensors.
#include <torch/torch.h>

#include <ddp_cpp/base/parse.hpp>
#include <ddp_cpp/data/data_loader.hpp>
#include <ddp_cpp/data/dataset.hpp>
#include <ddp_cpp/device/device.hpp>
#include <ddp_cpp/launch/spawn.hpp>
#include <ddp_cpp/parallel/default_group.hpp>
#include <ddp_cpp/parallel/distributed_data_parallel.hpp>
#include <ddp_cpp/parallel/distributed_sampler.hpp>

#include <cmath>
#include <filesystem>
#include <iostream>

namespace {

namespace nn = torch::nn;

constexpr int64_t kGlobalBatch = 64;  // over all ranks, so that any number of them trains alike
constexpr int64_t kWarmUpSteps = 20;

/// Sum over the samples: 0 without samples, where the mean would be NaN.
torch::Tensor sum_of_losses(const torch::Tensor& output, const torch::Tensor& target) {
  const auto sum = nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum);
  return nn::functional::cross_entropy(output, target, sum);
}

/// Collective. @return mean loss and accuracy over all ranks' samples
std::pair<double, double> evaluate(nn::Sequential& model, ddp::DataLoader& loader,
                                   const torch::Device& device) {
  const torch::NoGradGuard no_grad;
  torch::Tensor sums = torch::zeros({3}, device);  // losses, right answers, samples
  model->eval();
  for (const ddp::Batch& batch : loader) {
    const torch::Tensor output = model->forward(batch.input);  // not the wrapper's forward
    sums[0] += sum_of_losses(output, batch.target);
    sums[1] += output.argmax(1).eq(batch.target).sum();
    sums[2] += batch.size();
  }
  model->train();
  ddp::all_reduce(sums);  // collective: divide last, because ranks may have unequal parts
  return {(sums[0] / sums[2]).item<double>(), (sums[1] / sums[2]).item<double>()};
}

void train(const ddp::LaunchEnvironment& launch, const std::string& data_file, int64_t epochs,
           double rate, int64_t patience) {
  // 1. Device and ranks.
  const torch::Device device = ddp::set_device(launch.local_rank);
  const std::string same = c10::str("epochs ", epochs, "\nrate ", rate, "\npatience ", patience);
  ddp::init_process_group(launch, device, {.settings = same});  // collective

  // 2. Data: every rank reads its own part.
  TORCH_CHECK(kGlobalBatch % launch.world_size == 0, "ranks: got ", launch.world_size,
              ", expected a divisor of ", kGlobalBatch);
  const int64_t batch_size = kGlobalBatch / launch.world_size;
  ddp::Dataset data = ddp::load_data_file(data_file, {});
  for (ddp::Samples* part : {&data.train, &data.test}) {
    part->input = part->input / 16;
  }
  ddp::DistributedSampler sampler(data.train.size(), launch.rank, launch.world_size, /*seed=*/42);
  ddp::DataLoader loader(data.train, sampler, batch_size, device);
  ddp::DistributedSampler test_sampler(data.test.size(), launch.rank, launch.world_size, 0,
                                       /*shuffle=*/false);
  ddp::DataLoader test_loader(data.test, test_sampler, batch_size, device);

  // 3. Model and optimizer: on the device first, then wrapped. A batch has (samples, 64) pixels.
  torch::manual_seed(42);  // in braces, layers are made from first to last, as in model.py
  nn::Sequential model{nn::Unflatten(nn::UnflattenOptions(1, {1, 8, 8})),
                       nn::Conv2d(nn::Conv2dOptions(1, 16, 3).padding(1)),
                       nn::ReLU(),
                       nn::Conv2d(nn::Conv2dOptions(16, 32, 3).stride(2).padding(1)),
                       nn::ReLU(),
                       nn::Flatten(),
                       nn::Linear(32 * 4 * 4, 10)};
  model->to(device);
  const torch::Tensor initial = nn::utils::parameters_to_vector(model->parameters()).detach();
  ddp::DistributedDataParallel parallel_model(model);  // collective
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(rate).momentum(0.9));

  // 4. Train, until the held-out loss has not become better for `patience` epochs.
  const std::string file = "your_model.pt";
  double best_loss = std::numeric_limits<double>::infinity();
  int64_t step = 0, worse_epochs = 0;  // like best_loss, worse_epochs counts on rank 0 only
  torch::Tensor stop = torch::zeros({1}, device);
  for (int64_t epoch = 0; epoch < epochs && stop.item<float>() == 0; ++epoch) {
    sampler.set_epoch(epoch);
    torch::Tensor epoch_loss = torch::zeros({}, device);
    for (const ddp::Batch& batch : loader) {
      const double warm_up = std::min(1.0, double(++step) / kWarmUpSteps);
      for (auto& group : optimizer.param_groups()) {
        group.options().set_lr(rate * warm_up);
      }
      optimizer.zero_grad();
      // The weight is 1, except in the last step, where the ranks' numbers of samples may differ.
      const torch::Tensor loss = sum_of_losses(parallel_model.forward(batch.input), batch.target) *
                                 (batch.weight / double(std::max<int64_t>(batch.size(), 1)));
      loss.backward();  // collective: now the gradients, and so their norm, are equal on all ranks
      nn::utils::clip_grad_norm_(model->parameters(), /*max_norm=*/1);
      optimizer.step();
      epoch_loss += loss.detach();
    }
    ddp::all_reduce(epoch_loss, c10d::ReduceOp::AVG);  // on all ranks, outside of any if
    const auto [test_loss, accuracy] = evaluate(model, test_loader, device);  // collective
    TORCH_CHECK(std::isfinite(test_loss), "held-out loss: got ", test_loss, ", expected a number");
    ddp::expect_same_weights(*model);  // collective
    if (launch.rank == 0) {
      std::cout << "epoch " << epoch << " | loss " << epoch_loss.item<double>() / loader.steps()
                << " | held-out loss " << test_loss << " | accuracy " << accuracy << std::endl;
      worse_epochs = test_loss < best_loss ? 0 : worse_epochs + 1;
      best_loss = std::min(best_loss, test_loss);
      stop.fill_(worse_epochs == patience);
    }
    ddp::broadcast(stop);  // collective: rank 0 decides, so all ranks stop in the same epoch

    // 5. Save the best weights. The rename and the barrier keep all from reading half a file.
    if (launch.rank == 0 && worse_epochs == 0) {
      torch::save(model, file + ".tmp");
      std::filesystem::rename(file + ".tmp", file);
    }
  }
  ddp::barrier();  // collective
  torch::load(model, file, device);  // the device is Python's map_location
  const double accuracy = evaluate(model, test_loader, device).second;  // collective
  const auto moved = (nn::utils::parameters_to_vector(model->parameters()) - initial).norm();
  std::cout << c10::str("[rank ", launch.rank, "] moved ", moved.item<double>(), " | ", file,
                        " has accuracy ", accuracy, "\n");
  ddp::destroy_process_group();  // collective
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::run_rank([=](const ddp::LaunchEnvironment& launch) {
    TORCH_CHECK(argc > 1 && argc < 6, "arguments: got ", argc - 1,
                ", expected FILE [epochs] [rate] [patience]");
    train(launch, argv[1], argc > 2 ? ddp::parse_integer<int64_t>("epochs", argv[2], 1) : 6,
          argc > 3 ? ddp::parse_positive("rate", argv[3], 1000) : 0.1,
          argc > 4 ? ddp::parse_integer<int64_t>("patience", argv[4], 1) : 3);
  });
}
