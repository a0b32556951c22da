// What each call of the accelerator does, on one and on several ranks: the same bits as without it.
#include "common/training/accelerator.hpp"

#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "common/base/scratch_folder.hpp"
#include "tests/catch.hpp"
#include "tests/support/peak_memory.hpp"
#include "tests/support/threads_as_ranks.hpp"
#include "tests/support/train_on_ranks.hpp"

namespace {

using ddp::ProcessGroup;
using ddp::test::run_ranks;

ddp::Options small_run() {
  ddp::Options options;
  options.program = "accelerator_test";
  options.layers = {3, 5, 2};
  options.dataset_size = 61;  // no multiple of anything
  options.batch_per_rank = 6;
  options.total_epochs = 3;
  options.save_every = 4;  // never
  options.optimizer = "adam";
  options.quiet = true;
  return options;
}

/// What a program of one device makes, on a rank. torch::manual_seed() is for the whole process,
/// and ranks are threads.
struct Program {
  Program(const ddp::Options& run_options, ProcessGroup& group)
      : options(run_options), process_group(group), accelerator(options, group) {
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    torch::manual_seed(options.seed);
    model = ddp::Mlp(dataset.layers);
    optimizer.emplace(*model, options);
  }
  void prepare() { parallel_model = accelerator.prepare(model, *optimizer, loader); }
  void step(const ddp::Batch& batch) {
    accelerator.backward(ddp::loss(parallel_model->forward(batch.input), batch));
    optimizer->step();
    optimizer->zero_grad();
  }
  /// @return the epochs that were trained
  std::vector<int64_t> train() {
    std::vector<int64_t> epochs;
    for (const int64_t epoch : accelerator.epochs()) {
      epochs.push_back(epoch);
      loader.set_epoch(epoch);
      for (const ddp::Batch& batch : loader) {
        step(batch);
      }
      if ((epoch + 1) % options.save_every == 0) {
        accelerator.save_state();
      }
    }
    return epochs;
  }
  torch::Tensor weights() const { return ddp::parameter_vector(*model); }

  ddp::Options options;
  ProcessGroup& process_group;
  ddp::Accelerator accelerator;
  ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::DataLoader loader{dataset, options};
  ddp::Mlp model{nullptr};
  std::optional<ddp::Optimizer> optimizer;
  std::shared_ptr<ddp::DistributedDataParallel<ddp::Mlp>> parallel_model;
};

/// On every rank. @return rank 0's
torch::Tensor on_ranks(const ddp::Options& options, int world_size,
                       const std::function<void(Program&)>& body) {
  std::vector<torch::Tensor> weights(static_cast<size_t>(world_size));
  run_ranks(
      world_size,
      [&](ProcessGroup& process_group) {
        Program program(options, process_group);
        program.prepare();
        body(program);
        weights[static_cast<size_t>(process_group.rank())] = program.weights();
      },
      "shm");
  for (const torch::Tensor& of_rank : weights) {
    CHECK(torch::equal(of_rank, weights.front()));
  }
  return weights.front();
}

/// @throws c10::Error unless `call` does, with this in its message; Catch's own is not for threads
void expect_refusal(const std::function<void()>& call, const std::string& part) {
  try {
    call();
  } catch (const c10::Error& error) {
    TORCH_CHECK(ddp::test::contains(error.what(), part), "Expected ", part, ", got ", error.what());
    return;
  }
  TORCH_CHECK(false, "Expected a refusal: ", part);
}

torch::Tensor trained(const ddp::Options& options, int world_size) {
  return on_ranks(options, world_size, [](Program& program) { program.train(); });
}

}  // namespace

TEST_CASE("through the accelerator a loop ends on the bits of stage 03's", "[accelerator]") {
  for (const int world_size : {1, 2, 3}) {
    for (const bool shard : {false, true}) {
      ddp::Options options = small_run();
      options.shard_optimizer = shard;
      INFO(world_size << " ranks, sharded: " << shard);
      CHECK(torch::equal(trained(options, world_size),
                         ddp::test::train_on_ranks(options, world_size).weights));
    }
  }
}

TEST_CASE("prepare() gives every rank rank 0's weights and its own samples, and copies none",
          "[accelerator]") {
  ddp::Options options = small_run();
  const ddp::Dataset dataset = ddp::load_dataset(options);
  std::vector<int64_t> samples(2);
  double sum = 0;
  run_ranks(
      2,
      [&](ProcessGroup& process_group) {
        const int rank = process_group.rank();
        Program program(options, process_group);
        {
          const torch::NoGradGuard no_grad;
          program.model->parameters().front().fill_(rank + 1.0);
        }
        program.prepare();
        TORCH_CHECK(program.model->parameters().front().eq(1).all().item<bool>());
        TORCH_CHECK(program.loader.samples().input.data_ptr() ==
                    program.dataset.train.input.data_ptr());
        TORCH_CHECK(program.loader.samples().target.data_ptr() ==
                    program.dataset.train.target.data_ptr());
        static std::mutex mutex;
        for (const ddp::Batch& batch : program.loader) {
          const std::lock_guard<std::mutex> lock(mutex);
          samples[static_cast<size_t>(rank)] += batch.input.size(0);
          sum += batch.input.sum(torch::kFloat64).item<double>();
        }
      },
      "shm");
  CHECK(samples == std::vector<int64_t>{31, 30});
  CHECK(sum == Approx(dataset.train.input.sum(torch::kFloat64).item<double>()));
}

TEST_CASE("prepare() needs no memory for the samples", "[accelerator][measured]") {
  ddp::Options options = small_run();
  options.layers = {1024, 4, 2};
  options.dataset_size = 32768;  // 128 MiB
  run_ranks(1, [&](ProcessGroup& process_group) {
    Program program(options, process_group);
    const double mib = ddp::test::peak_growth_mib([&] { program.prepare(); });
    TORCH_CHECK(mib < 32, "Expected less than 32 MiB, got ", mib);
  });
}

TEST_CASE("the backend's memory holds the gradients, so that it sums them without a copy",
          "[accelerator]") {
  run_ranks(
      2,
      [](ProcessGroup& process_group) {
        Program program(small_run(), process_group);
        const void* const before = program.model->parameters().front().grad().data_ptr();
        program.prepare();
        TORCH_CHECK(program.model->parameters().front().grad().data_ptr() != before);
      },
      "shm");
}

TEST_CASE("accumulate() in a loop of one's own: a sum over the ranks a step, and the large batch",
          "[accelerator]") {
  for (const int world_size : {1, 2}) {
    const torch::Tensor whole = trained(small_run(), world_size);
    for (const int64_t accumulate : {2, 3}) {
      ddp::Options options = small_run();
      options.accumulate = accumulate;
      options.batch_per_rank = 6 / accumulate;
      INFO(world_size << " ranks, " << accumulate << " micro-batches");
      const torch::Tensor weights = on_ranks(options, world_size, [&](Program& program) {
        ProcessGroup& process_group = program.process_group;
        process_group.enable_wait_timer();
        process_group.take_wait();
        size_t steps = 0;
        for (int64_t epoch = 0; epoch < options.total_epochs; ++epoch) {
          program.loader.set_epoch(epoch);
          for (const ddp::Batch& batch : program.loader) {
            const ddp::Accumulation scope = program.accelerator.accumulate(batch);
            program.step(batch);
            steps += batch.completes_step ? 1 : 0;
          }
        }
        const size_t sums = process_group.take_wait().all_reduce_bytes.size();
        TORCH_CHECK(sums == (world_size == 1 ? 0 : steps), "Expected a sum a step, got ", sums,
                    " in ", steps, " steps");
      });
      CHECK(torch::allclose(weights, whole, 1e-5, 1e-6));
      // As --accumulate in a loop over epochs(), which is main.cpp's.
      CHECK(torch::equal(weights, trained(options, world_size)));
    }
  }
}

TEST_CASE("gather_for_metrics() gives every sample of an epoch once", "[accelerator]") {
  struct Case {
    int world_size;
    int64_t dataset_size;
    std::string sampler;
    torch::ScalarType type;
  };
  for (const auto& [world_size, dataset_size, sampler, type] :
       {Case{1, 13, "distributed", torch::kInt64}, Case{2, 13, "distributed", torch::kInt64},
        Case{2, 13, "padded", torch::kFloat32}, Case{3, 13, "padded", torch::kInt64},
        Case{3, 13, "distributed", torch::kFloat64}, Case{3, 13, "distributed", torch::kBool},
        Case{3, 2, "padded", torch::kInt64}, Case{2, 12, "distributed", torch::kInt64},
        Case{2, 13, "none", torch::kInt64}}) {
    ddp::Options options = small_run();
    options.dataset_size = dataset_size;
    options.batch_per_rank = 2;
    options.sampler = sampler;
    const ddp::Dataset dataset = ddp::load_dataset(options);
    const torch::Tensor expected = std::get<0>(dataset.train.input.select(1, 0).sort());
    INFO(world_size << " ranks, " << dataset_size << " samples, " << sampler);
    run_ranks(world_size, [&](ProcessGroup& process_group) {
      Program program(options, process_group);
      program.prepare();
      program.loader.set_epoch(1);
      std::vector<torch::Tensor> all;
      int64_t positive = 0;
      for (const ddp::Batch& batch : program.loader) {
        all.push_back(program.accelerator.gather_for_metrics(batch.input.clone().requires_grad_()));
        TORCH_CHECK(!all.back().requires_grad());  // or it would keep the step's graph
        const torch::Tensor more =
            program.accelerator.gather_for_metrics(batch.input.select(1, 0).gt(0).to(type));
        TORCH_CHECK(more.scalar_type() == type && more.size(0) == all.back().size(0));
        positive += more.to(torch::kInt64).sum().item<int64_t>();
      }
      const torch::Tensor gathered = torch::cat(all).select(1, 0);
      TORCH_CHECK(torch::equal(std::get<0>(gathered.sort()), expected), "got ", gathered.sizes());
      TORCH_CHECK(positive == expected.gt(0).sum().item<int64_t>());
    });
  }
}

TEST_CASE("gather_for_metrics() has rank 0's samples first, and refuses what it cannot line up",
          "[accelerator]") {
  ddp::Options options = small_run();
  options.dataset_size = 5;
  options.batch_per_rank = 2;
  run_ranks(2, [&](ProcessGroup& process_group) {
    Program program(options, process_group);
    program.prepare();
    for (const ddp::Batch& batch : program.loader) {
      const torch::Tensor rank =
          torch::full({batch.input.size(0)}, process_group.rank(), torch::kInt64);
      const torch::Tensor all = program.accelerator.gather_for_metrics(rank);
      TORCH_CHECK(all.size(0) != 4 ||
                  torch::equal(all, torch::tensor({0, 0, 1, 1}, torch::kInt64)));
    }
    program.loader.begin();
    for (const torch::Tensor& wrong : {torch::zeros({}), torch::zeros({3}), torch::zeros({1, 2})}) {
      expect_refusal([&] { program.accelerator.gather_for_metrics(wrong); },
                     "a row for each of the 2 samples");
    }
  });
  options.accumulate = 2;
  run_ranks(2, [&](ProcessGroup& process_group) {
    Program program(options, process_group);
    program.prepare();
    program.loader.begin();
    expect_refusal([&] { program.accelerator.gather_for_metrics(torch::zeros({2})); },
                   "got --accumulate 2 and 5 samples over 2 ranks");
  });
}

TEST_CASE("print() is rank 0's", "[accelerator]") {
  std::ostringstream printed;
  std::streambuf* const stdout_buffer = std::cout.rdbuf(printed.rdbuf());
  std::vector<int> main(2);
  run_ranks(2, [&](ProcessGroup& process_group) {
    const ddp::Accelerator accelerator(small_run(), process_group);
    accelerator.print("rank " + std::to_string(process_group.rank()));
    main[static_cast<size_t>(process_group.rank())] = accelerator.is_main_process() ? 1 : 0;
  });
  std::cout.rdbuf(stdout_buffer);
  CHECK(printed.str() == "rank 0\n");
  CHECK(main == std::vector<int>{1, 0});
}

TEST_CASE("load_state() goes on from save_state() with the bits of an unbroken run",
          "[accelerator]") {
  for (const int world_size : {1, 2}) {
    for (const bool shard : {false, true}) {
      const ddp::ScratchFolder folder("ddp-accelerator");
      ddp::Options options = small_run();
      options.shard_optimizer = shard;
      options.save_every = 2;
      options.total_epochs = 4;
      options.snapshot = folder.path() + "/whole";
      INFO(world_size << " ranks, sharded: " << shard);
      const torch::Tensor unbroken = trained(options, world_size);
      options.snapshot = folder.path() + "/halves";
      options.resume = "never";  // load_state() was asked for
      ddp::Options half = options;
      half.total_epochs = 2;
      on_ranks(half, world_size, [](Program& program) {
        TORCH_CHECK(program.accelerator.load_state() == 0);
        TORCH_CHECK(program.train() == std::vector<int64_t>({0, 1}));
      });
      CHECK(std::filesystem::exists(options.snapshot));
      CHECK(torch::equal(unbroken, on_ranks(options, world_size, [](Program& program) {
                           TORCH_CHECK(program.accelerator.load_state() == 2);
                           TORCH_CHECK(program.train() == std::vector<int64_t>({2, 3}));
                         })));
    }
  }
}

TEST_CASE("a damaged state is refused on all ranks", "[accelerator]") {
  const ddp::ScratchFolder folder("ddp-accelerator");
  ddp::Options options = small_run();
  options.snapshot = folder.path() + "/damaged";
  std::ofstream(options.snapshot) << "no snapshot";
  std::vector<int> codes(2);
  const auto load = [&](ProcessGroup& process_group) {
    Program program(options, process_group);
    program.prepare();
    try {
      program.accelerator.load_state();
    } catch (const ddp::Error& error) {
      codes[static_cast<size_t>(process_group.rank())] = static_cast<int>(error.code());
      throw;
    }
  };
  CHECK_THROWS_AS(run_ranks(2, load), ddp::Error);
  CHECK(codes == std::vector<int>{3, 3});
}

TEST_CASE("state is loaded before the epochs and saved within them, or that is told",
          "[accelerator]") {
  run_ranks(1, [](ProcessGroup& process_group) {
    const ddp::ScratchFolder folder("ddp-accelerator");
    ddp::Options options = small_run();
    options.snapshot = folder.path() + "/snapshot";
    Program program(options, process_group);
    program.prepare();
    expect_refusal([&] { program.accelerator.save_state(); }, "inside the loop over epochs()");
    TORCH_CHECK(!std::filesystem::exists(options.snapshot));
    TORCH_CHECK(program.accelerator.load_state() == 0);
    expect_refusal([&] { program.accelerator.load_state(); }, "once, before epochs()");
  });
}

TEST_CASE("what was not prepared is named", "[accelerator]") {
  run_ranks(1, [](ProcessGroup& process_group) {
    Program program(small_run(), process_group);
    expect_refusal([&] { program.accelerator.epochs(); }, "Expected prepare() to have been called");
    ddp::RandomSampler sampler(program.dataset, program.options);
    ddp::DataLoader of_samples(program.dataset.train, sampler, program.options, torch::kCPU);
    expect_refusal(
        [&] {
          program.parallel_model =
              program.accelerator.prepare(program.model, *program.optimizer, of_samples);
        },
        "Expected a loader of a whole dataset");
    // The loader and the optimizer may go before the accelerator does: training ended with this.
    program.prepare();
    program.train();
    program.parallel_model.reset();
    expect_refusal([&] { program.accelerator.epochs(); }, "its model to be there");
  });
}
