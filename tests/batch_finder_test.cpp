// --batch-size auto: the search, trials that leave nothing behind, limits that are kept.
#include "common/training/batch_finder.hpp"

#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/training/training.hpp"
#include "tests/catch.hpp"
#include "tests/support/held_port.hpp"
#include "tests/support/run_program.hpp"

namespace {

using ddp::test::Program;
using ddp::test::RunResult;

/// Something to train, 300 samples of it.
struct Run {
  explicit Run(const ddp::Options& run_options) : options(run_options) {
    torch::manual_seed(1);
    model = ddp::Mlp(dataset.layers);
    optimizer.emplace(*model, options);
  }
  std::unique_ptr<ddp::BatchTrials> trials() {
    return std::make_unique<ddp::BatchTrials>(options, loader, model, *optimizer,
                                              std::vector<torch::Device>(replicas, torch::kCPU),
                                              nullptr);
  }
  /// The tutorial's loop. @return samples per micro-batch and step of an epoch's first ones
  std::pair<int64_t, int64_t> train() {
    std::pair<int64_t, int64_t> samples{0, 0};
    ddp::Training training(options, launch, dataset, loader, model, *optimizer,
                           std::vector<torch::Device>(replicas, torch::kCPU));
    for (const int64_t epoch : training.epochs()) {
      sampler.set_epoch(epoch);
      for (const ddp::Batch& batch : loader) {
        if (samples.first == 0) {
          samples = {batch.input.size(0), static_cast<int64_t>(batch.step_samples_per_rank)};
        }
        ddp::loss(model->forward(batch.input), batch).backward();
        optimizer->step();
        optimizer->zero_grad();
      }
    }
    return samples;
  }

  ddp::Options options;
  size_t replicas = 1;
  ddp::LaunchEnvironment launch;
  ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::RandomSampler sampler{dataset, options};
  ddp::DataLoader loader{dataset.train, sampler, options, torch::kCPU};
  ddp::Mlp model{nullptr};
  std::optional<ddp::Optimizer> optimizer;
};

ddp::Options small_run() {
  ddp::Options options;
  options.program = "batch_finder_test";
  options.layers = {16, 64, 4};
  options.dataset_size = 300;
  options.optimizer = "adam";
  options.total_epochs = 2;
  options.save_every = 4;  // never
  options.quiet = true;
  return options;
}

/// The least that allow() must be given for a step of so many samples.
int64_t bytes_needed(ddp::BatchTrials& trials, int64_t batch) {
  int64_t too_little = 0;
  int64_t enough = int64_t{1} << 30;
  while (enough - too_little > 1) {
    const int64_t middle = (too_little + enough) / 2;
    trials.allow(middle);
    (trials.fits(batch) ? enough : too_little) = middle;
  }
  return enough;
}

/// Programs in a folder of their own.
class Folder {
 public:
  /// @param prefix of a shell's command, e.g. "ulimit -v 1000;"
  Program start(const std::string& line, const std::string& prefix = "") const {
    ddp::test::RunOptions options;
    options.cwd = folder_.path();
    options.environment = {{"CUDA_VISIBLE_DEVICES", ""}};
    return Program({"/bin/sh", "-c", prefix + " exec " DDP_BIN_DIR "/" + line}, options);
  }
  RunResult run(const std::string& line, const std::string& prefix = "") const {
    return start(line, prefix).wait();
  }
  /// A value of the last line of a metrics file.
  nlohmann::json summary(const std::string& name) const {
    std::ifstream in(folder_.path() + "/" + name);
    std::string last;
    for (std::string line; std::getline(in, line);) {
      last = line;
    }
    return nlohmann::json::parse(last).at("summary");
  }

 private:
  ddp::ScratchFolder folder_{"ddp-batch"};
};

/// A control group that kills whoever takes more memory, of version 1 or 2.
class MemoryGroup {
 public:
  explicit MemoryGroup(int64_t bytes) {
    const std::string version1 = "/sys/fs/cgroup/memory";
    const bool is_version1 = std::filesystem::exists(version1);
    std::string name = (is_version1 ? version1 : "/sys/fs/cgroup") + "/ddp-batch-XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
    std::ofstream(path_ + (is_version1 ? "/memory.limit_in_bytes" : "/memory.max")) << bytes;
    if (!is_version1) {
      std::ofstream(path_ + "/memory.swap.max") << 0;
    }
  }
  ~MemoryGroup() {
    // Of a program that was killed the kernel has the memory back a moment later.
    while (rmdir(path_.c_str()) != 0 && errno == EBUSY) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;
  /// Of a shell's command.
  std::string prefix() const { return "echo $$ > " + path_ + "/cgroup.procs;"; }

 private:
  std::string path_;
};

/// The number behind `words` in what a program has said; 0: there is none.
int64_t number_after(const std::string& text, const std::string& words) {
  const size_t place = text.find(words);
  return place == std::string::npos ? 0 : std::atoll(text.c_str() + place + words.size());
}

std::string digest(const RunResult& result) {
  const size_t place = result.out.find("digest ");
  return place == std::string::npos ? "none" : result.out.substr(place, 23);
}

}  // namespace

TEST_CASE("the largest size that fits is found for every limit, in few trials", "[search]") {
  const std::vector<std::vector<int64_t>> all_sizes = {
      {},
      {1},
      ddp::batch_sizes(1000, 0, true),
      ddp::batch_sizes(1000, 720, false),
      ddp::batch_sizes(1000, 997, false),  // a prime: nothing between 1 and all
      ddp::batch_sizes(100, 96, true),
      {1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 700, 900}};
  for (const std::vector<int64_t>& sizes : all_sizes) {
    for (int64_t limit = 0; limit <= 1001; ++limit) {
      int64_t largest_fitting = 0;
      size_t trials = 0;
      bool careful = true;
      const ddp::BatchSearch found = ddp::find_largest(sizes, [&](int64_t size) {
        ++trials;
        const auto above = std::ranges::upper_bound(sizes, largest_fitting);
        careful = careful && (size <= 2 * largest_fitting || size == *above);
        largest_fitting = size <= limit ? size : largest_fitting;
        return size <= limit;
      });
      const auto above = std::ranges::upper_bound(sizes, limit);
      CHECK(found.fits == (above == sizes.begin() ? 0 : *std::prev(above)));
      CHECK(found.too_large == (above == sizes.end() ? 0 : *above));
      CHECK(trials <= 16);
      CHECK(careful);
    }
  }
}

TEST_CASE("where larger sizes may fit though smaller ones do not, what is found does", "[search]") {
  std::mt19937 random(1);
  const std::vector<int64_t> sizes = ddp::batch_sizes(1 << 20, 720720, false);
  for (int attempt = 0; attempt < 500; ++attempt) {
    std::map<int64_t, bool> tried;
    const ddp::BatchSearch found = ddp::find_largest(sizes, [&](int64_t size) {
      CHECK(!tried.contains(size));
      return tried[size] = random() % 4 != 0;
    });
    CHECK((found.fits == 0 || tried.at(found.fits)));
    CHECK((found.too_large == 0 || !tried.at(found.too_large)));
    CHECK(tried.size() < 30);
  }
}

TEST_CASE("sizes are powers of two, or what divides a step", "[search]") {
  using Sizes = std::vector<int64_t>;
  CHECK(ddp::batch_sizes(1, 0, true) == Sizes{1});
  CHECK(ddp::batch_sizes(9, 0, true) == Sizes{1, 2, 4, 8});
  CHECK(ddp::batch_sizes(8, 0, true) == Sizes{1, 2, 4, 8});
  CHECK(ddp::batch_sizes(100, 24, true) == Sizes{1, 2, 4, 8});
  CHECK(ddp::batch_sizes(7, 24, false) == Sizes{1, 2, 3, 4, 6});
  for (int64_t step = 1; step < 400; ++step) {
    for (const int64_t most : {int64_t{1}, int64_t{10}, step, 2 * step}) {
      Sizes divisors;
      for (int64_t size = 1; size <= std::min(step, most); ++size) {
        if (step % size == 0) {
          divisors.push_back(size);
        }
      }
      CHECK(ddp::batch_sizes(most, step, false) == divisors);
    }
  }
}

TEST_CASE("errors that say that memory is exhausted are known, others go on", "[trial]") {
  const auto is_known = [](const auto& fail) {
    try {
      fail();
    } catch (const std::exception& error) {
      return ddp::is_out_of_memory(error);
    }
    throw std::logic_error("expected an exception");
  };
  CHECK(is_known([] { torch::empty({int64_t{1} << 60}, torch::kUInt8); }));  // LibTorch's own
  CHECK(is_known([] { throw std::bad_alloc(); }));
  CHECK(is_known([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA"); }));
  CHECK(is_known([] { TORCH_CHECK(false, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED"); }));
  CHECK(!is_known([] { TORCH_CHECK(false, "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"); }));
  CHECK(!is_known([] { throw ddp::UsageError("--lr"); }));
}

TEST_CASE("a limit is kept to the byte, whatever makes the step", "[trial]") {
  for (const std::string speedup : {"none", "fused"}) {
    for (const size_t replicas : {1U, 3U}) {
      if (speedup == "none" && replicas == 3) {
        continue;  // what threads of autograd's take at a time is another sum each time
      }
      INFO(speedup << ", " << replicas << " replicas");
      ddp::Options options = small_run();
      options.speedup = speedup;
      Run run(options);
      run.replicas = replicas;
      const auto trials = run.trials();
      const int64_t bytes_of_64 = bytes_needed(*trials, 64);
      const int64_t bytes_of_128 = bytes_needed(*trials, 128);
      CHECK(bytes_of_64 < bytes_of_128);
      if (speedup == "none") {
        // The input, what each layer made, and what ReLU made of it.
        CHECK(bytes_of_64 >= 64 * 4 * (16 + 64 + 64 + 4));
        CHECK(10 * bytes_of_128 > 18 * bytes_of_64);
      }
      for (const auto& [bytes, batch] : std::map<int64_t, int64_t>{{bytes_of_64 - 1, 32},
                                                                   {bytes_of_64, 64},
                                                                   {bytes_of_128 - 1, 64},
                                                                   {bytes_of_128, 128}}) {
        trials->allow(bytes);
        CHECK(ddp::find_largest(ddp::batch_sizes(300, 0, true), [&](int64_t size) {
                return trials->fits(size);
              }).fits == batch);
      }
    }
  }
}

TEST_CASE("trials change nothing but gradients, which are zero again", "[trial]") {
  Run run(small_run());
  const auto state = [&run] {
    std::vector<torch::Tensor> all = {ddp::parameter_vector(*run.model),
                                      at::detail::getDefaultCPUGenerator().get_state()};
    for (const auto& [name, tensor] : run.optimizer->state()) {
      all.push_back(tensor.clone());
    }
    for (const torch::Tensor& parameter : run.model->parameters()) {
      all.push_back(parameter.grad().clone());
    }
    for (const ddp::Batch& batch : run.loader) {
      all.push_back(batch.input.clone());
    }
    return all;
  };
  const std::vector<torch::Tensor> before = state();
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  {
    const auto trials = run.trials();
    trials->allow(1 << 17);
    CHECK(trials->fits(32));
    CHECK(!trials->fits(256));
    CHECK(trials->fits(64));
    CHECK(c10::GetCPUAllocator() != allocator);
  }
  CHECK(c10::GetCPUAllocator() == allocator);
  run.loader.set_batch(run.options.batch_per_rank, 1);
  const std::vector<torch::Tensor> after = state();
  REQUIRE(after.size() == before.size());
  for (size_t i = 0; i < before.size(); ++i) {
    INFO(i);
    CHECK(torch::equal(after[i], before[i]));
  }
}

TEST_CASE("training with a found batch ends on the bits of that batch given", "[training]") {
  for (const std::string speedup : {"none", "fused"}) {
    for (const int64_t global_batch : {0, 900}) {
      INFO(speedup << ", global batch " << global_batch);
      ddp::Options options = small_run();
      options.speedup = speedup;
      Run given(options);
      options.find_batch = true;
      if (global_batch > 0) {
        options.global_batch = global_batch;
      }
      Run found(options);
      const auto samples = found.train();
      // 300 samples: the largest power of two among them, the largest divisor of 900.
      const int64_t batch = global_batch == 0 ? 256 : 300;
      CHECK(found.loader.batch_per_rank() == batch);
      given.options.batch_per_rank = batch;
      given.options.accumulate = global_batch == 0 ? 1 : 3;
      given.loader.set_batch(batch, given.options.accumulate);
      CHECK(given.train() == samples);
      CHECK(torch::equal(ddp::parameter_vector(*found.model), ddp::parameter_vector(*given.model)));
    }
  }
}

TEST_CASE("--scale-lr makes the learning rate follow the batch, nothing else does", "[training]") {
  for (const auto& [scale, rate] : std::map<std::string, double>{
           {"none", 0.01}, {"linear", 0.08}, {"sqrt", 0.01 * std::sqrt(8)}}) {
    for (const int64_t accumulate : {1, 2}) {  // in the step that is the measure, too
      INFO(scale << ", " << accumulate << " micro-batches");
      ddp::Options options = small_run();
      options.find_batch = true;
      options.learning_rate = 0.01;
      options.scale_lr = scale;
      options.accumulate = accumulate;
      Run run(options);
      run.train();
      CHECK(std::abs(run.optimizer->learning_rate() - rate) < 1e-12);
    }
  }
}

namespace {

/// 128 KiB of activations and more for each sample.
const std::string kWide = " 1 1 --lr 1e-5 --layers 8,8192,1 --dataset-size 8192 --device cpu ";

}  // namespace

TEST_CASE("--memory-limit: what is resident stays below it, twice the batch would not",
          "[measured][program]") {
  const Folder folder;
  constexpr double kLimitMib = 400;
  const RunResult found =
      folder.run("01_single_gpu" + kWide + "--batch-size auto --memory-limit 400MiB --metrics m");
  INFO(found.err);
  REQUIRE(found.exit_code == 0);
  const int64_t batch = number_after(found.err, "01_single_gpu: note: --batch-size auto: ");
  CHECK(batch >= 256);
  CHECK(number_after(found.err, "samples per rank; ") == 2 * batch);
  CHECK(number_after(found.out, "Batchsize: ") == batch);
  CHECK(folder.summary("m").at("batch_per_rank") == batch);
  CHECK(folder.summary("m").at("peak_rss_mib").at(0).get<double>() <= kLimitMib);

  const std::string given = "01_single_gpu" + kWide + "--batch-size ";
  CHECK(digest(folder.run(given + std::to_string(batch))) == digest(found));
  CHECK(folder.run(given + std::to_string(2 * batch) + " --metrics m").exit_code == 0);
  CHECK(folder.summary("m").at("peak_rss_mib").at(0).get<double>() > 0.9 * kLimitMib);

  const RunResult none =
      folder.run("01_single_gpu" + kWide + "--batch-size auto --memory-limit 1MiB");
  CHECK(none.exit_code == 2);
  CHECK(none.err ==
        "01_single_gpu: error: --batch-size auto: one sample needs more than the 0.0 MiB of memory "
        "that --memory-limit leaves, expected room for it\n");
}

TEST_CASE("ulimit -v: what is found trains, a tenth more than the next size does not",
          "[measured][program]") {
  const Folder folder;
  const std::string limit = "ulimit -v 1500000;";
  const std::string command =
      "01_single_gpu 1 1 --lr 1e-5 --layers 8,8192,1 --dataset-size 16000 --device cpu ";
  // So many divisors that one is near.
  const RunResult found =
      folder.run(command + "--batch-size auto --global-batch 720720 --quiet", limit);
  INFO(found.err);
  REQUIRE(found.exit_code == 0);
  REQUIRE(found.err.find(" that ulimit -v leaves\n") != std::string::npos);
  const int64_t too_large = number_after(found.err, " times a step; ");
  REQUIRE(too_large > 0);
  const RunResult more =
      folder.run(command + "--quiet --batch-size " + std::to_string(too_large * 11 / 10), limit);
  CHECK(more.exit_code == 1);
  CHECK(more.err.find("can't allocate memory") != std::string::npos);
}

TEST_CASE("a control group kills nobody who asked it first, but a tenth more than the next size",
          "[.][cgroup]") {
  const Folder folder;
  const MemoryGroup group(500'000'000);
  const std::string command =
      "01_single_gpu 1 1 --lr 1e-5 --layers 8,8192,1 --dataset-size 16000 --device cpu --quiet ";
  const RunResult found =
      folder.run(command + "--batch-size auto --global-batch 720720", group.prefix());
  INFO(found.err);
  REQUIRE(found.exit_code == 0);
  REQUIRE(found.err.find(" that the control group leaves\n") != std::string::npos);
  const int64_t too_large = number_after(found.err, " times a step; ");
  REQUIRE(too_large > 0);
  const RunResult more =
      folder.run(command + "--batch-size " + std::to_string(too_large * 11 / 10), group.prefix());
  CHECK(more.exit_code == -1);  // killed
}

TEST_CASE("ranks with unequal memory agree, whatever makes the step", "[measured][program]") {
  const Folder folder;
  for (const std::string speedup : {"none", "fused"}) {
    const ddp::test::HeldPort port;
    const auto start = [&](int rank, const std::string& limit) {
      return folder.start(
          fmt::format("04_ddp_launcher{}--batch-size auto --memory-limit {} --speedup {} --rank {} "
                      "--local-rank {} --world-size 2 --local-world-size 2 --master-addr 127.0.0.1 "
                      "--master-port {} --optimizer adam --metrics m",
                      kWide, limit, speedup, rank, rank, port.number()));
    };
    Program ample = start(0, "1GiB");
    Program scarce = start(1, "400MiB");
    const RunResult result = ample.wait();
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    const RunResult other = scarce.wait();
    CHECK(other.exit_code == 0);
    CHECK(other.err.empty());
    const int64_t batch = number_after(result.out, "Batchsize: ");
    CHECK(number_after(other.out, "Batchsize: ") == batch);
    CHECK(folder.summary("m").at("global_batch") == 2 * batch);
    CHECK(folder.summary("m").at("peak_rss_mib").at(1).get<double>() <= 400);
    if (speedup == "none") {
      CHECK(number_after(result.err, "samples per rank; ") == 2 * batch);
    } else {
      CHECK(batch == 4096);  // activations do not grow with the batch
    }
    const RunResult given =
        folder.run("03_ddp_spawn" + kWide + "--nprocs 2 --optimizer adam --speedup " + speedup +
                   " --batch-size " + std::to_string(batch));
    CHECK(digest(given) == digest(result));
  }
}

TEST_CASE("mirrored replicas all have the batch and the rate that were found", "[program]") {
  const Folder folder;
  const std::string command =
      "02_data_parallel_mirrored 2 1 --device cpu --nprocs 2 --layers 8,64,1 --dataset-size 1024 ";
  const RunResult found = folder.run(command + "--batch-size auto --scale-lr linear --lr 0.0001");
  INFO(found.err);
  REQUIRE(found.exit_code == 0);
  CHECK(number_after(found.out, "Batchsize: ") == 1024);
  CHECK(digest(folder.run(command + "--batch-size 1024 --lr 0.0032")) == digest(found));
}

TEST_CASE("a snapshot's global batch that the ranks cannot share is refused", "[program]") {
  const Folder folder;
  const std::string command =
      "03_ddp_spawn --save-every 1 --device cpu --layers 8,4,1 --dataset-size 512 --resume auto ";
  REQUIRE(folder.run(command + "--total-epochs 1 --nprocs 1 --batch-size 33").exit_code == 0);
  const RunResult refused = folder.run(command + "--total-epochs 2 --nprocs 2 --batch-size auto");
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("--batch-size auto: the global batch of 03_ddp_spawn.safetensors is 33, "
                         "expected a multiple of 2 ranks") != std::string::npos);
}

TEST_CASE("a resumed run keeps the snapshot's global batch with less memory", "[program]") {
  const Folder folder;
  const std::string command =
      "02_data_parallel --save-every 1 --lr 1e-5 --layers 8,8192,1 --dataset-size 4096 --device "
      "cpu "
      "--batch-size auto --scale-lr sqrt --resume auto --total-epochs ";
  REQUIRE(folder.run(command + "1").exit_code == 0);
  const RunResult resumed = folder.run(command + "2 --memory-limit 400MiB --metrics m");
  INFO(resumed.err);
  CHECK(resumed.exit_code == 0);
  CHECK(resumed.out.find("Epoch 1 | Batchsize: ") != std::string::npos);
  CHECK(number_after(resumed.out, "Batchsize: ") < 4096);
  CHECK(folder.summary("m").at("global_batch") == 4096);
}
