// A loop without a line of measuring or accumulating is measured and accumulates: ddp::Training.
#include "common/training/training.hpp"

#include <fmt/format.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <string>
#include <vector>

#include "common/parallel/distributed_data_parallel.hpp"
#include "common/parallel/mirrored.hpp"
#include "tests/catch.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace {

/// Writes down what it is told.
class Diary final : public ddp::StepObserver {
 public:
  void begin_epoch(int64_t steps) override { text += fmt::format("epoch of {}:", steps); }
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

/// 60 samples in steps of 6.
ddp::Options accumulating_run(int64_t accumulate) {
  ddp::Options options = small_run();
  options.dataset_size = 60;
  options.accumulate = accumulate;
  options.batch_per_rank = 6 / accumulate;
  return options;
}

/// All that a stage has made when its loop begins.
struct Run {
  explicit Run(const ddp::Options& run_options) : options(run_options) {
    torch::manual_seed(1);
    model = ddp::Mlp(dataset.layers);
    optimizer.emplace(*model, options);
  }

  /// @return the epochs of the loop
  std::vector<int64_t> train(const std::function<void(const ddp::Batch&)>& step) {
    ddp::Training training(options, launch, dataset, loader, model, *optimizer);
    std::vector<int64_t> epochs;
    for (const int64_t epoch : training.epochs()) {
      epochs.push_back(epoch);
      sampler.set_epoch(epoch);
      for (const ddp::Batch& batch : loader) {
        step(batch);
      }
    }
    return epochs;
  }
  void backward(const ddp::Batch& batch) {
    ddp::loss(model->forward(batch.input), batch).backward();
  }
  /// The tutorial's loop. @return as train()
  std::vector<int64_t> train() {
    return train([this](const ddp::Batch& batch) {
      backward(batch);
      optimizer->step();
      optimizer->zero_grad();
    });
  }
  torch::Tensor weights() const { return ddp::parameter_vector(*model); }

  ddp::Options options;
  ddp::LaunchEnvironment launch;
  ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::RandomSampler sampler{dataset, options};
  ddp::DataLoader loader{dataset.train, sampler, options, torch::kCPU};
  ddp::Mlp model{nullptr};
  std::optional<ddp::Optimizer> optimizer;
};

const std::vector<int64_t> kAllEpochs = {0, 1, 2};

}  // namespace

TEST_CASE("loader, loss and optimizer tell their observer the phases of every batch",
          "[training]") {
  Run run(small_run());
  Diary diary;
  run.loader.set_observer(&diary);
  run.optimizer->set_observer(&diary);
  for (const ddp::Batch& batch : run.loader) {
    run.optimizer->set_accumulating(!batch.completes_step);
    run.backward(batch);
    run.optimizer->step();
    run.optimizer->zero_grad();
  }
  // 10 samples are a step of 3 + 3 and one of 3 + 1.
  CHECK(diary.text == "epoch of 2: morefLbd. lastfLbod. morefLbd. lastfLbod. end");
}

TEST_CASE(
    "accumulated micro-batches are one step of the sum of their batches, wherever "
    "zero_grad() stands",
    "[training]") {
  Run whole(accumulating_run(1));
  CHECK(whole.train() == kAllEpochs);
  for (const int64_t accumulate : {2, 3}) {
    Run parts(accumulating_run(accumulate));
    CHECK(parts.train() == kAllEpochs);
    CHECK(torch::allclose(parts.weights(), whole.weights(), 1e-5, 1e-6));
    Run at_the_head(accumulating_run(accumulate));
    at_the_head.train([&](const ddp::Batch& batch) {
      at_the_head.optimizer->zero_grad();
      at_the_head.backward(batch);
      at_the_head.optimizer->step();
    });
    CHECK(torch::equal(at_the_head.weights(), parts.weights()));
  }
}

TEST_CASE("replicas whose weights differ end the run, where ranks' would", "[training]") {
  for (const bool every_step : {false, true}) {
    Run run(small_run());
    run.options.check_weights_every = every_step ? 1 : 0;
    ddp::Mirrored mirrored(run.model, std::vector<torch::Device>(2, torch::kCPU));
    run.optimizer.emplace(mirrored, run.options);
    int64_t steps = 0;
    ddp::Training training(run.options, run.launch, run.dataset, run.loader, run.model,
                           *run.optimizer);
    const auto train = [&] {
      for ([[maybe_unused]] const int64_t epoch : training.epochs()) {
        for (const ddp::Batch& batch : run.loader) {
          ddp::loss(mirrored.forward(batch.input), batch).backward();
          run.optimizer->step();
          run.optimizer->zero_grad();
          if (++steps == 2) {
            mirrored.module(1).parameters()[0].detach()[0][0] += 1;
          }
        }
      }
      training.report();
    };
    CHECK_THROWS_WITH(train(), Catch::Matchers::Contains("replica 1 have digest"));
    CHECK((steps == 2) == every_step);
  }
}

TEST_CASE("with a speed-up epochs() trains inside and yields nothing", "[training]") {
  Run plain(small_run());
  CHECK(plain.train() == kAllEpochs);
  ddp::Options options = small_run();
  options.speedup = "fused";
  Run fused(options);
  CHECK(fused.train().empty());
  CHECK(torch::allclose(fused.weights(), plain.weights(), 1e-5, 1e-6));
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

TEST_CASE("a loop that leaves its loader early, or computes no loss, is told", "[training]") {
  Run early(small_run());
  ddp::Training training(early.options, early.launch, early.dataset, early.loader, early.model,
                         *early.optimizer);
  early.loader.begin();  // reads a batch
  CHECK_THROWS_WITH(++training.epochs(), Catch::Contains("read the loader to its end"));
  Run lossless(small_run());
  CHECK_THROWS_WITH(lossless.train([&](const ddp::Batch& batch) {
    lossless.model->forward(batch.input).sum().backward();
  }),
                    Catch::Contains("ddp::loss() to be called"));
}

TEST_CASE("a loader of another batch than the options' is refused", "[training]") {
  Run run(small_run());
  run.options.batch_per_rank = 4;
  CHECK_THROWS_WITH(run.train(), Catch::Contains("Expected a loader of 4 samples a batch"));
}
