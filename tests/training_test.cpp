// A loop without a line of measuring or accumulating is measured and accumulates: ddp::Training.
#include "common/training/training.hpp"

#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

#include "common/parallel/distributed_data_parallel.hpp"
#include "tests/catch.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace {

/// Writes down what it is told.
class Diary final : public ddp::StepObserver {
 public:
  void begin_epoch() override { text += "epoch:"; }
  void begin_batch(const ddp::Batch& batch) override {
    text += batch.completes_step ? " last" : " more";
  }
  void begin(ddp::Phase phase) override { text += "dfbo"[static_cast<size_t>(phase)]; }
  void add_loss(const torch::Tensor& loss) override { text += loss.dim() == 0 ? "L" : "?"; }
  void end_batch(const ddp::Batch&) override { text += "."; }
  void end_epoch() override { text += " end"; }

  std::string text;
};

ddp::Options small_run() {
  ddp::Options options;
  options.program = "training_test";
  options.layers = {3, 5, 2};
  options.dataset_size = 10;
  options.batch_per_rank = 3;
  options.accumulate = 2;
  options.total_epochs = 3;
  options.save_every = 4;  // never
  options.quiet = true;
  return options;
}

}  // namespace

TEST_CASE("loader, loss and optimizer tell their observer the phases of every batch",
          "[training]") {
  const ddp::Options options = small_run();
  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::RandomSampler sampler(dataset, options);
  ddp::DataLoader loader(dataset.train, sampler, options, torch::kCPU);
  ddp::Mlp model(dataset.layers);
  ddp::Optimizer optimizer(*model, options);
  Diary diary;
  loader.set_observer(&diary);
  optimizer.set_observer(&diary);
  for (const ddp::Batch& batch : loader) {
    optimizer.set_accumulating(!batch.completes_step);
    ddp::loss(model->forward(batch.input), batch).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  // 10 samples are a step of 3 + 3 and one of 3 + 1.
  CHECK(diary.text == "epoch: morefLbd. lastfLbod. morefLbd. lastfLbod. end");
}

TEST_CASE("accumulated micro-batches are one step of the sum of their batches", "[training]") {
  std::vector<torch::Tensor> weights;
  for (const int64_t accumulate : {1, 2, 3}) {
    ddp::Options options = small_run();
    options.dataset_size = 60;
    options.accumulate = accumulate;
    options.batch_per_rank = 6 / accumulate;
    const ddp::Dataset dataset = ddp::load_dataset(options);
    const ddp::LaunchEnvironment launch;
    ddp::RandomSampler sampler(dataset, options);
    ddp::DataLoader loader(dataset.train, sampler, options, torch::kCPU);
    torch::manual_seed(1);
    ddp::Mlp model(dataset.layers);
    ddp::Optimizer optimizer(*model, options);
    ddp::Training training(options, launch, dataset, loader, model, optimizer);
    std::vector<int64_t> epochs;
    for (const int64_t epoch : training.epochs()) {
      epochs.push_back(epoch);
      sampler.set_epoch(epoch);
      for (const ddp::Batch& batch : loader) {
        ddp::loss(model->forward(batch.input), batch).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
    }
    CHECK(epochs == std::vector<int64_t>{0, 1, 2});
    weights.push_back(ddp::parameter_vector(*model));
  }
  CHECK(torch::allclose(weights[1], weights[0], 1e-5, 1e-6));
  CHECK(torch::allclose(weights[2], weights[0], 1e-5, 1e-6));
}

TEST_CASE("with a speed-up epochs() trains inside and yields nothing", "[training]") {
  std::vector<torch::Tensor> weights;
  for (const std::string speedup : {"none", "fused"}) {
    ddp::Options options = small_run();
    options.speedup = speedup;
    const ddp::Dataset dataset = ddp::load_dataset(options);
    const ddp::LaunchEnvironment launch;
    ddp::RandomSampler sampler(dataset, options);
    ddp::DataLoader loader(dataset.train, sampler, options, torch::kCPU);
    torch::manual_seed(1);
    ddp::Mlp model(dataset.layers);
    ddp::Optimizer optimizer(*model, options);
    ddp::Training training(options, launch, dataset, loader, model, optimizer);
    int64_t yielded = 0;
    for (const int64_t epoch : training.epochs()) {
      ++yielded;
      sampler.set_epoch(epoch);
      for (const ddp::Batch& batch : loader) {
        ddp::loss(model->forward(batch.input), batch).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
    }
    CHECK(yielded == (speedup == "none" ? options.total_epochs : 0));
    weights.push_back(ddp::parameter_vector(*model));
  }
  CHECK(torch::allclose(weights[1], weights[0], 1e-5, 1e-6));
}

TEST_CASE("while its group accumulates, DistributedDataParallel all-reduces nothing",
          "[training]") {
  std::vector<double> gradients(2);
  std::vector<size_t> all_reduces(2);
  ddp::test::run_ranks(2, [&](ddp::ProcessGroup& process_group) {
    torch::nn::Linear model(1, 1);
    ddp::DistributedDataParallel parallel_model(model, process_group);
    process_group.enable_wait_timer();
    const auto rank = static_cast<size_t>(process_group.rank());
    for (const bool accumulating : {true, false}) {
      process_group.set_accumulating(accumulating);
      parallel_model.forward(torch::full({1, 1}, static_cast<double>(rank) + 1)).sum().backward();
      if (accumulating) {
        all_reduces[rank] = process_group.take_wait().all_reduce_bytes.size();
      }
    }
    gradients[rank] = model->weight.grad().item<double>();
  });
  CHECK(all_reduces == std::vector<size_t>{0, 0});
  CHECK(gradients == std::vector<double>{3, 3});  // (1 + 1 + 2 + 2) / 2
}

TEST_CASE("without init_process_group there is no default group", "[training]") {
  CHECK(ddp::find_default_process_group() == nullptr);
  CHECK_THROWS_AS(ddp::default_process_group(), c10::Error);
  CHECK_THROWS_AS(ddp::all_reduce(torch::ones({1})), c10::Error);
}

TEST_CASE("zero_grad() at the head of the loop accumulates as well", "[training]") {
  std::vector<torch::Tensor> weights;
  for (const int64_t accumulate : {1, 3}) {
    ddp::Options options = small_run();
    options.dataset_size = 60;
    options.accumulate = accumulate;
    options.batch_per_rank = 6 / accumulate;
    const ddp::Dataset dataset = ddp::load_dataset(options);
    const ddp::LaunchEnvironment launch;
    ddp::RandomSampler sampler(dataset, options);
    ddp::DataLoader loader(dataset.train, sampler, options, torch::kCPU);
    torch::manual_seed(1);
    ddp::Mlp model(dataset.layers);
    ddp::Optimizer optimizer(*model, options);
    ddp::Training training(options, launch, dataset, loader, model, optimizer);
    for (const int64_t epoch : training.epochs()) {
      sampler.set_epoch(epoch);
      for (const ddp::Batch& batch : loader) {
        optimizer.zero_grad();
        ddp::loss(model->forward(batch.input), batch).backward();
        optimizer.step();
      }
    }
    weights.push_back(ddp::parameter_vector(*model));
  }
  CHECK(torch::allclose(weights[1], weights[0], 1e-5, 1e-6));
}

TEST_CASE("a loop that leaves its loader early, or computes no loss, is told", "[training]") {
  for (const bool leaves_early : {true, false}) {
    const ddp::Options options = small_run();
    const ddp::Dataset dataset = ddp::load_dataset(options);
    const ddp::LaunchEnvironment launch;
    ddp::RandomSampler sampler(dataset, options);
    ddp::DataLoader loader(dataset.train, sampler, options, torch::kCPU);
    ddp::Mlp model(dataset.layers);
    ddp::Optimizer optimizer(*model, options);
    ddp::Training training(options, launch, dataset, loader, model, optimizer);
    const auto train = [&] {
      for ([[maybe_unused]] const int64_t epoch : training.epochs()) {
        for (const ddp::Batch& batch : loader) {
          if (leaves_early) {
            break;
          }
          model->forward(batch.input).sum().backward();
        }
      }
    };
    CHECK_THROWS_WITH(train(), Catch::Contains(leaves_early ? "read the loader to its end"
                                                            : "ddp::loss() to be called"));
  }
}

TEST_CASE("a loader of another batch than the options' is refused", "[training]") {
  const ddp::Options options = small_run();
  const ddp::Dataset dataset = ddp::load_dataset(options);
  const ddp::LaunchEnvironment launch;
  ddp::RandomSampler sampler(dataset, options);
  ddp::DataLoader loader(dataset.train, sampler, {options.batch_per_rank + 1, 2, torch::kCPU});
  ddp::Mlp model(dataset.layers);
  ddp::Optimizer optimizer(*model, options);
  CHECK_THROWS_WITH(ddp::Training(options, launch, dataset, loader, model, optimizer),
                    Catch::Contains("Expected a loader of 3 samples a batch"));
}
