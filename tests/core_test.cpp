// The pieces, one by one: sampler, loader, loss, optimizer, data, snapshot, data_parallel.
#include <ATen/CPUGeneratorImpl.h>
#include <fcntl.h>
#include <sys/file.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/samplers/distributed.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "common/base/exit_codes.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/data_parallel.hpp"
#include "common/parallel/distributed_sampler.hpp"
#include "common/parallel/mirrored.hpp"
#include "common/training/optimizer.hpp"
#include "common/training/snapshot.hpp"
#include "tests/catch.hpp"
#include "tests/support/peak_memory.hpp"

namespace {

namespace fs = std::filesystem;

/// A folder that goes with the test, and a path in it.
struct TemporaryFolder : ddp::ScratchFolder {
  TemporaryFolder() : ScratchFolder("ddp-core-test") {}
  fs::path file(const std::string& name) const { return fs::path(path()) / name; }
};

std::vector<int64_t> to_vector(const torch::Tensor& indices) {
  return {indices.const_data_ptr<int64_t>(), indices.const_data_ptr<int64_t>() + indices.numel()};
}

ddp::DistributedSampler sampler(int64_t size, int world_size, int rank,
                                ddp::Sharding sharding = ddp::Sharding::kExact) {
  return ddp::DistributedSampler({.dataset_size = size,
                                  .num_replicas = world_size,
                                  .rank = rank,
                                  .seed = 7,
                                  .sharding = sharding});
}

ddp::Options options_for(const std::string& optimizer) {
  ddp::Options options;
  options.optimizer = optimizer;
  return options;
}

}  // namespace

TEST_CASE("every sample is read exactly once, at any size and world size", "[sampler]") {
  for (const int64_t size : {1, 2, 3, 7, 16, 31, 100, 1437}) {
    for (int world_size = 1; world_size <= 9; ++world_size) {
      std::vector<int64_t> all;
      for (int rank = 0; rank < world_size; ++rank) {
        const auto part = to_vector(sampler(size, world_size, rank).indices());
        CHECK(static_cast<int64_t>(part.size()) - size / world_size <= 1);
        all.insert(all.end(), part.begin(), part.end());
      }
      std::sort(all.begin(), all.end());
      std::vector<int64_t> expected(static_cast<size_t>(size));
      std::iota(expected.begin(), expected.end(), 0);
      INFO("size " << size << ", world size " << world_size);
      CHECK(all == expected);
    }
  }
}

TEST_CASE("padded sharding gives every rank the same number and misses no sample", "[sampler]") {
  for (const int64_t size : {1, 3, 7, 100}) {
    for (int world_size = 1; world_size <= 9; ++world_size) {
      const int64_t per_rank = (size + world_size - 1) / world_size;
      std::set<int64_t> seen;
      for (int rank = 0; rank < world_size; ++rank) {
        const auto part =
            to_vector(sampler(size, world_size, rank, ddp::Sharding::kPadded).indices());
        CHECK(static_cast<int64_t>(part.size()) == per_rank);
        seen.insert(part.begin(), part.end());
      }
      CHECK(static_cast<int64_t>(seen.size()) == size);
    }
  }
}

TEST_CASE("set_epoch reshuffles, and the order depends on seed and epoch alone", "[sampler]") {
  ddp::DistributedSampler first = sampler(100, 2, 0);
  const torch::Tensor epoch0 = first.indices().clone();
  first.set_epoch(1);
  const torch::Tensor epoch1 = first.indices().clone();
  CHECK_FALSE(torch::equal(epoch0, epoch1));
  first.set_epoch(0);
  CHECK(torch::equal(first.indices(), epoch0));
  ddp::DistributedSampler second = sampler(100, 2, 0);
  second.set_epoch(1);
  CHECK(torch::equal(second.indices(), epoch1));
}

namespace {

/// What LibTorch's own sampler has rank `rank` read in `epoch`.
std::vector<int64_t> libtorch_indices(size_t size, int world_size, int rank, bool allow_duplicates,
                                      size_t epoch = 0) {
  torch::data::samplers::DistributedRandomSampler sampler(
      size, static_cast<size_t>(world_size), static_cast<size_t>(rank), allow_duplicates);
  sampler.set_epoch(epoch);
  sampler.reset();
  const std::vector<size_t> indices = sampler.next(size).value_or(std::vector<size_t>{});
  return {indices.begin(), indices.end()};
}

void append(std::vector<int64_t>& to, const std::vector<int64_t>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

size_t distinct(const std::vector<int64_t>& indices) {
  return std::set<int64_t>(indices.begin(), indices.end()).size();
}

}  // namespace

TEST_CASE("padded as LibTorch's sampler pads; exact where that leaves samples out",
          "[sampler][libtorch]") {
  for (const int64_t size : {9, 16, 31, 100}) {
    for (int world_size = 1; world_size <= 9; ++world_size) {
      std::vector<int64_t> padded, exact, their_padded, their_truncated;
      for (int rank = 0; rank < world_size; ++rank) {
        const auto unsigned_size = static_cast<size_t>(size);
        append(padded,
               to_vector(sampler(size, world_size, rank, ddp::Sharding::kPadded).indices()));
        append(exact, to_vector(sampler(size, world_size, rank).indices()));
        append(their_padded, libtorch_indices(unsigned_size, world_size, rank, true));
        append(their_truncated, libtorch_indices(unsigned_size, world_size, rank, false));
        CHECK(padded.size() == their_padded.size());  // rank by rank
      }
      INFO("size " << size << ", world size " << world_size);
      CHECK(distinct(padded) == static_cast<size_t>(size));
      CHECK(distinct(their_padded) == static_cast<size_t>(size));
      CHECK(std::ssize(exact) == size);
      CHECK(std::ssize(their_truncated) == size / world_size * world_size);
      CHECK(distinct(their_truncated) == their_truncated.size());
    }
  }
}

TEST_CASE("our ranks' first batches are one process's; LibTorch's shares are contiguous",
          "[sampler][libtorch]") {
  constexpr int64_t kSize = 12;
  constexpr ptrdiff_t kShare = kSize / 3;
  const std::vector<int64_t> order = to_vector(ddp::shuffled_indices(kSize, 7, 0));
  const std::vector<int64_t> their_order = libtorch_indices(kSize, 1, 0, true);
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<int64_t> strided;
    for (size_t i = static_cast<size_t>(rank); i < order.size(); i += 3) {
      strided.push_back(order[i]);
    }
    CHECK(to_vector(sampler(kSize, 3, rank).indices()) == strided);
    const auto begin = their_order.begin() + rank * kShare;
    CHECK(libtorch_indices(kSize, 3, rank, true) == std::vector<int64_t>(begin, begin + kShare));
  }
}

TEST_CASE("a seed gives the order that it has always given", "[sampler]") {
  const std::vector<int64_t> order = {6, 3, 0, 7, 10, 15, 2, 12, 14, 9, 8, 5, 4, 13, 11, 1};
  CHECK(to_vector(ddp::shuffled_indices(16, 42, 0)) == order);
}

TEST_CASE("set_epoch reaches our loader; not LibTorch's, pytorch#73141", "[sampler][libtorch]") {
  constexpr int64_t kSize = 100;
  const torch::Tensor numbers = torch::arange(kSize);
  // By themselves both samplers know epochs.
  CHECK(libtorch_indices(kSize, 1, 0, true, 1) != libtorch_indices(kSize, 1, 0, true, 0));

  torch::data::samplers::DistributedRandomSampler their_sampler(kSize);
  const auto their_loader =
      torch::data::make_data_loader(torch::data::datasets::TensorDataset(numbers), their_sampler,
                                    torch::data::DataLoaderOptions().batch_size(kSize));
  ddp::DistributedSampler our_sampler = sampler(kSize, 1, 0);
  ddp::DataLoader our_loader({numbers.unsqueeze(1), numbers}, our_sampler,
                             {.batch_per_rank = kSize});
  std::vector<std::vector<int64_t>> theirs(2), ours(2);
  for (size_t epoch = 0; epoch < 2; ++epoch) {
    their_sampler.set_epoch(epoch);
    for (const auto& batch : *their_loader) {
      for (const auto& example : batch) {
        theirs[epoch].push_back(example.data.item<int64_t>());
      }
    }
    our_sampler.set_epoch(static_cast<int64_t>(epoch));
    for (const ddp::Batch& batch : our_loader) {
      append(ours[epoch], to_vector(batch.target));
    }
  }
  CHECK(ours[0] != ours[1]);
  CHECK(theirs[0].size() == kSize);
  CHECK(theirs[0] == theirs[1]);  // once this fails, docs/libtorch_pieces.md is to be changed
}

TEST_CASE(
    "the ranks' batches together are the batch of one process, tail and accumulation included",
    "[loader]") {
  const int64_t size = 53;
  const ddp::Samples samples{torch::arange(size).to(torch::kFloat32).unsqueeze(1),
                             torch::arange(size)};
  for (const int world_size : {1, 2, 3, 4}) {
    for (const int64_t accumulate : {1, 2, 3}) {
      const int64_t step_samples = 12;
      if (step_samples % (world_size * accumulate) != 0) {
        continue;
      }
      // Step by step, what each rank reads and by what it divides.
      std::vector<std::vector<int64_t>> steps;
      for (int rank = 0; rank < world_size; ++rank) {
        ddp::DistributedSampler part = sampler(size, world_size, rank);
        ddp::DataLoader loader(samples, part,
                               {step_samples / world_size / accumulate, accumulate, torch::kCPU});
        size_t step = 0;
        for (const ddp::Batch& batch : loader) {
          steps.resize(std::max(steps.size(), step + 1));
          const auto targets = to_vector(batch.target);
          steps[step].insert(steps[step].end(), targets.begin(), targets.end());
          CHECK(torch::equal(batch.input.squeeze(1).to(torch::kInt64), batch.target));
          CHECK(batch.step_samples_per_rank ==
                static_cast<double>(step < 4 ? step_samples : size - 4 * step_samples) /
                    world_size);
          step += batch.completes_step ? 1 : 0;
        }
        CHECK(step == 5);
      }
      const auto order = to_vector(ddp::shuffled_indices(size, 7, 0));
      auto next = order.begin();
      for (const std::vector<int64_t>& step : steps) {
        const auto end = next + static_cast<int64_t>(step.size());
        CHECK(std::is_permutation(next, end, step.begin(), step.end()));
        next = end;
      }
      CHECK(next == order.end());
    }
  }
}

TEST_CASE("batches that the device gathers from resident samples are those that the host gathers",
          "[loader]") {
  const int64_t size = 53;
  for (const auto& [rank, accumulate] : {std::pair<int, int64_t>{0, 1}, {2, 2}}) {
    const ddp::Samples samples{torch::randn({size, 3}), torch::arange(size)};
    const auto read = [&](bool resident) {
      ddp::DistributedSampler part = sampler(size, 3, rank);
      ddp::DataLoader loader(samples, part, {4, accumulate, torch::kCPU, resident});
      std::vector<torch::Tensor> tensors;
      for (const int64_t epoch : {0, 1}) {
        loader.set_epoch(epoch);
        for (const ddp::Batch& batch : loader) {
          tensors.push_back(batch.input.clone());
          tensors.push_back(batch.target.clone());
        }
      }
      return tensors;
    };
    const std::vector<torch::Tensor> by_host = read(false);
    const std::vector<torch::Tensor> by_device = read(true);
    REQUIRE(by_host.size() == by_device.size());
    CHECK(by_host.size() >= 2 * 2 * 5);
    for (size_t i = 0; i < by_host.size(); ++i) {
      CHECK(torch::equal(by_host[i], by_device[i]));
    }
  }
}

TEST_CASE("the mean over ranks of the loss is the loss of the global batch, with an empty rank too",
          "[loss]") {
  for (const int64_t outputs : {1, 5}) {
    torch::manual_seed(0);
    const torch::Tensor output = torch::randn({3, outputs});
    const torch::Tensor target =
        outputs == 1 ? torch::randn({3, 1}) : torch::randint(outputs, {3}, torch::kInt64);
    const ddp::Batch whole{{}, target, 3.0, true};
    const double expected = ddp::loss(output, whole).item<double>();
    double sum = 0;
    const int world_size = 4;
    for (int64_t rank = 0; rank < world_size; ++rank) {  // shares of 1, 1, 1 and 0 samples
      const int64_t begin = std::min<int64_t>(rank, 3);
      const int64_t share = rank < 3 ? 1 : 0;
      const ddp::Batch part{{}, target.narrow(0, begin, share), 3.0 / world_size, true};
      torch::Tensor part_output = output.narrow(0, begin, share).clone().set_requires_grad(true);
      const torch::Tensor loss = ddp::loss(part_output, part);
      loss.backward();
      CHECK(part_output.grad().isfinite().all().item<bool>());
      sum += loss.item<double>();
    }
    CHECK(sum / world_size == Approx(expected).epsilon(1e-6));
  }
}

TEST_CASE("to evaluate many samples takes no more memory than to evaluate some", "[loss]") {
  constexpr int64_t kSamples = 40'000;
  constexpr int64_t kWidth = 4096;
  ddp::Mlp model(std::vector<int64_t>{20, kWidth, 10});
  const torch::Tensor input = torch::ones({kSamples, 20});
  const torch::Tensor target = torch::zeros({kSamples}, torch::kInt64);
  constexpr double kAllAtOnceMib = double{kSamples} * kWidth * sizeof(float) / (1 << 20);
  // A few activations of 16 MiB, and what the address sanitizer keeps of those that were freed.
#if defined(__SANITIZE_ADDRESS__)
  constexpr double kBoundMib = 100 + 400;
#else
  constexpr double kBoundMib = 100;
#endif
  static_assert(kAllAtOnceMib > kBoundMib);
  ddp::Evaluation sums;
  CHECK(ddp::test::peak_growth_mib(
            [&] { sums = ddp::evaluate(model, input, target, torch::kCPU); }) < kBoundMib);
  CHECK(sums.samples == double{kSamples});
}

TEST_CASE("the optimizers take the steps of LibTorch's own", "[optimizer]") {
  for (const std::string kind : {"sgd", "momentum", "adam", "adamw"}) {
    torch::manual_seed(1);
    ddp::Mlp ours(std::vector<int64_t>{5, 7, 3});
    ddp::Mlp theirs = std::dynamic_pointer_cast<ddp::MlpImpl>(ours->clone());
    ddp::Optimizer optimizer(*ours, options_for(kind));
    const double lr = ddp::resolve_learning_rate(options_for(kind));
    std::unique_ptr<torch::optim::Optimizer> reference;
    const std::vector<torch::Tensor> parameters = theirs->parameters();
    if (kind == "adam") {
      reference = std::make_unique<torch::optim::Adam>(parameters, lr);
    } else if (kind == "adamw") {
      reference = std::make_unique<torch::optim::AdamW>(
          parameters, torch::optim::AdamWOptions(lr).weight_decay(0.01));
    } else {
      reference = std::make_unique<torch::optim::SGD>(
          parameters, torch::optim::SGDOptions(lr).momentum(kind == "sgd" ? 0.0 : 0.9));
    }
    for (int step = 0; step < 20; ++step) {
      const torch::Tensor input = torch::randn({8, 5});
      ours->forward(input).square().mean().backward();
      optimizer.step();
      optimizer.zero_grad();
      reference->zero_grad();
      theirs->forward(input).square().mean().backward();
      reference->step();
    }
    const torch::Tensor difference =
        (ddp::parameter_vector(*ours) - ddp::parameter_vector(*theirs)).abs();
    INFO(kind << ", largest difference " << difference.max().item<double>());
    CHECK(difference.le(1e-6).all().item<bool>());
  }
}

TEST_CASE("a linear schedule falls to zero, a constant one does not fall", "[optimizer]") {
  for (const std::string schedule : {"linear", "constant"}) {
    ddp::Options options;
    options.lr_schedule = schedule;
    options.total_epochs = 4;
    options.learning_rate = 0.5;
    ddp::Mlp model(std::vector<int64_t>{1, 1});
    ddp::Optimizer optimizer(*model, options);
    const ddp::FlatParameters flat = ddp::flatten_parameters(*model);
    flat.grad.fill_(1.0);
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      flat.data.zero_();
      optimizer.set_epoch(epoch);
      optimizer.step();
      const double rate =
          schedule == "linear" ? 0.5 * (1.0 - 0.25 * static_cast<double>(epoch)) : 0.5;
      CHECK(-flat.data[0].item<double>() == Approx(rate));
    }
  }
}

TEST_CASE("flattening is idempotent and keeps the values", "[flat]") {
  torch::manual_seed(2);
  ddp::Mlp model(std::vector<int64_t>{3, 5, 2});
  const torch::Tensor before = ddp::parameter_vector(*model);
  const std::string hash = ddp::parameter_hash(*model);
  const ddp::FlatParameters first = ddp::flatten_parameters(*model);
  const ddp::FlatParameters second = ddp::flatten_parameters(*model);
  CHECK(torch::equal(ddp::parameter_vector(*model), before));
  CHECK(ddp::parameter_hash(*model) == hash);
  CHECK(first.data.const_data_ptr() == second.data.const_data_ptr());
  CHECK(first.grad.const_data_ptr() == second.grad.const_data_ptr());
  first.data.zero_();
  CHECK(ddp::parameter_vector(*model).eq(0).all().item<bool>());
  model->forward(torch::ones({1, 3})).sum().backward();
  CHECK(first.grad.abs().sum().item<double>() > 0);
}

TEST_CASE("a linear fit of synthetic data is left with its noise alone", "[dataset]") {
  ddp::Options options;
  options.dataset_size = 20000;
  const ddp::Dataset regression = ddp::load_dataset(options);
  CHECK(regression.layers == std::vector<int64_t>{20, 1});
  // The best linear fit of the training part, evaluated on the held-out part.
  const auto ones = [](const torch::Tensor& x) {
    return torch::cat({x, torch::ones({x.size(0), 1})}, 1);
  };
  const torch::Tensor fit = std::get<0>(torch::linalg_lstsq(
      ones(regression.train.input), regression.train.target, std::nullopt, std::nullopt));
  const double loss =
      torch::mse_loss(ones(regression.test.input).matmul(fit), regression.test.target)
          .item<double>();
  CHECK(loss == Approx(0.01).epsilon(0.1));

  options.layers = {8, 4};
  const ddp::Dataset classes = ddp::load_dataset(options);
  CHECK(classes.classification());
  CHECK(ddp::load_dataset(options).fingerprint == classes.fingerprint);
  CHECK_THROWS_WITH(ddp::load_dataset("digit"),
                    Catch::Matchers::Contains("got \"digit\", expected synthetic, digits,"));
  options.seed = 43;
  CHECK(ddp::load_dataset(options).fingerprint != classes.fingerprint);
}

TEST_CASE("the digits are the published ones, split without overlap", "[dataset]") {
  ddp::Options options;
  options.dataset = "digits";
  const ddp::Dataset digits = ddp::load_dataset(options);
  CHECK(digits.train.size() == 1437);
  CHECK(digits.test.size() == 360);
  CHECK(digits.layers == std::vector<int64_t>{64, 128, 128, 10});
  CHECK(digits.train.input.mean().item<double>() == Approx(0.0).margin(1e-5));
  CHECK(digits.train.target.bincount().size(0) == 10);
}

TEST_CASE("a damaged data file is refused by name", "[dataset]") {
  const TemporaryFolder folder;
  ddp::Options options;
  options.dataset = "digits";
  options.data_dir = folder.path();
  const auto message = [&] {
    try {
      ddp::load_dataset(options);
    } catch (const ddp::UsageError& error) {
      return std::string(error.what());
    }
    return std::string("loaded");
  };
  CHECK(message().find("cannot be opened") != std::string::npos);
  const fs::path original = fs::path(DDP_SOURCE_DIR) / "data" / "digits.safetensors";
  const fs::path copy = folder.file("digits.safetensors");
  fs::copy(original, copy);
  CHECK(message() == "loaded");
  fs::resize_file(copy, fs::file_size(copy) / 2);
  CHECK(message().find(copy.string()) != std::string::npos);
  std::ofstream(copy) << std::string(fs::file_size(original), '1');  // right size, wrong data
  CHECK(message().find("checksum") != std::string::npos);
}

TEST_CASE("a tensor file reads back as it was written, and damage anywhere is noticed",
          "[snapshot]") {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  const ddp::TensorFile file{
      {{"key", "value"}},
      {{"w", torch::randn({2, 3})}, {"n", torch::tensor({1, 2}, torch::kInt64)}}};
  ddp::write_tensor_file(path, file);
  const ddp::TensorFile read = ddp::read_tensor_file(path);
  CHECK(read.metadata.at("key") == "value");
  REQUIRE(read.tensors.size() == 2);
  CHECK(torch::equal(read.tensors[0].second, file.tensors[0].second));
  CHECK(torch::equal(read.tensors[1].second, file.tensors[1].second));

  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const std::string damaged_path = folder.file("b.safetensors");
  const auto accepted = [&](const std::string& damaged) {
    std::ofstream(damaged_path, std::ios::binary | std::ios::trunc) << damaged;
    try {
      ddp::read_tensor_file(damaged_path);
      return true;
    } catch (const ddp::Error& error) {
      return error.code() != ddp::ExitCode::kSnapshotRefused;
    }
  };
  size_t accepted_damage = 0;
  for (size_t byte = 0; byte < bytes.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = bytes;
      flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << bit));
      accepted_damage += accepted(flipped) ? 1U : 0U;
    }
    accepted_damage += accepted(bytes.substr(0, byte)) ? 1U : 0U;
  }
  CHECK(accepted_damage == 0);
  CHECK(accepted(bytes));
}

TEST_CASE("a tensor file of every type, for safetensors_test.py", "[.safetensors]") {
  ddp::TensorFile file{{{"\"key\"\n", "\u00e9"}}, {}};
  for (const auto& [name, type] :
       std::vector<std::pair<std::string, torch::ScalarType>>{{"w", torch::kFloat64},
                                                              {"layer.0.weight", torch::kFloat32},
                                                              {"a \"quote\"", torch::kFloat16},
                                                              {"back\\n", torch::kBFloat16},
                                                              {"new\nline", torch::kInt64},
                                                              {"\u00e9\u2713", torch::kInt32},
                                                              {"", torch::kUInt8},
                                                              {"__metadata", torch::kBool}}) {
    file.tensors.emplace_back(name, torch::arange(6).reshape({2, 3}).to(type));
  }
  file.tensors.emplace_back("scalar", torch::tensor(7));
  file.tensors.emplace_back("none", torch::empty({0, 3}));
  REQUIRE_NOTHROW(ddp::write_tensor_file("written.safetensors", file));
}

TEST_CASE("the snapshot before is kept, and no other file is left", "[snapshot]") {
  const TemporaryFolder folder;
  const std::string path = folder.file("s");
  for (int i = 1; i <= 3; ++i) {
    ddp::write_tensor_file(path, {{{"i", std::to_string(i)}}, {{"t", torch::ones({1})}}});
  }
  CHECK(ddp::read_tensor_file(path).metadata.at("i") == "3");
  CHECK(ddp::read_tensor_file(path + ".prev").metadata.at("i") == "2");
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 2);
}

TEST_CASE("a snapshot of another format, or without an epoch, is refused, and changes nothing",
          "[snapshot]") {
  const TemporaryFolder folder;
  ddp::Options options;
  options.resume = "auto";
  options.snapshot = folder.file("s");
  const ddp::Dataset dataset = ddp::load_dataset(options);
  const ddp::LaunchEnvironment environment;
  ddp::Mlp model(dataset.layers);
  ddp::Optimizer optimizer(*model, options);
  ddp::Snapshot snapshot(options, environment, dataset, *model, optimizer);
  snapshot.save(1);
  const ddp::TensorFile good = ddp::read_tensor_file(options.snapshot);
  REQUIRE(snapshot.load() == 1);
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"format", "ddp-snapshot-2"}, {"epochs_done", "one"}, {"epochs_done", ""}}) {
    ddp::TensorFile bad = good;
    bad.metadata[name] = value;
    bad.tensors.front().second.fill_(7);
    ddp::write_tensor_file(options.snapshot, bad);
    std::filesystem::remove(options.snapshot + ".prev");
    INFO(name << " " << value);
    try {
      snapshot.load();
      FAIL("accepted");
    } catch (const ddp::Error& error) {
      CHECK(error.code() == ddp::ExitCode::kSnapshotRefused);
      CHECK(std::string(error.what()).find(value.empty() ? "got" : value) != std::string::npos);
    }
    CHECK_FALSE(torch::any(model->parameters().front() == 7).item<bool>());
  }
}

TEST_CASE("what a killed writer left is removed; a living one's and other files stay",
          "[snapshot]") {
  const TemporaryFolder folder;
  const std::string path = folder.file("s");
  const std::vector<std::string> kept = {"s.tmp.notes", "s.tmp.0123456789abcdeg",
                                         "t.tmp.0123456789abcdef", "s.tmp.aaaaaaaaaaaaaaaa"};
  for (const std::string& name : kept) {
    std::ofstream(folder.file(name)) << "x";
  }
  for (const char* const name : {"s.tmp.0123456789abcdef", "s.prev.tmp.0123456789abcdef"}) {
    std::ofstream(folder.file(name)) << "x";
  }
  const int living = open(folder.file(kept.back()).c_str(), O_WRONLY);
  REQUIRE(flock(living, LOCK_EX | LOCK_NB) == 0);
  ddp::write_tensor_file(path, {{}, {{"t", torch::ones({1})}}});
  close(living);
  for (const std::string& name : kept) {
    CHECK(fs::exists(folder.file(name)));
  }
  CHECK(fs::exists(path));
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 5);
}

TEST_CASE("data_parallel computes what the module computes", "[data_parallel]") {
  for (const size_t replicas : {1U, 2U, 3U, 5U}) {
    for (const int64_t batch : {1, 4, 7}) {  // fewer samples than replicas, too
      torch::manual_seed(3);
      ddp::Mlp model(std::vector<int64_t>{4, 6, 2});
      ddp::Mlp reference = std::dynamic_pointer_cast<ddp::MlpImpl>(model->clone());
      const torch::Tensor input = torch::randn({batch, 4});
      const std::vector<torch::Device> devices(replicas, torch::kCPU);
      const torch::Tensor output = ddp::data_parallel(model, input, devices);
      const torch::Tensor expected = reference->forward(input);
      CHECK(torch::allclose(output, expected));
      output.square().sum().backward();
      expected.square().sum().backward();
      for (size_t p = 0; p < model->parameters().size(); ++p) {
        CHECK(torch::allclose(model->parameters()[p].grad(), reference->parameters()[p].grad(),
                              1e-5, 1e-6));
      }
    }
  }
}

namespace {

/// Has all that a replica must follow.
struct NormalizedImpl : torch::nn::Cloneable<NormalizedImpl> {
  NormalizedImpl() { reset(); }
  void reset() override {
    linear = register_module("linear", torch::nn::Linear(4, 3));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    return norm->forward(linear->forward(input));
  }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Normalized);

torch::Tensor random_state() {
  return at::detail::getDefaultCPUGenerator().get_state();
}

}  // namespace

TEST_CASE("replicas are made once, draw no random numbers, and go with their model",
          "[data_parallel]") {
  const std::vector<torch::Device> devices(2, torch::kCPU);
  const torch::Tensor input = torch::randn({4, 4});
  std::weak_ptr<torch::nn::Module> replica;
  {
    ddp::Mlp model(std::vector<int64_t>{4, 6, 2});
    const torch::Tensor before = random_state();
    const auto replicas = ddp::replicate(*model, devices);
    ddp::data_parallel(model, input, devices).sum().backward();
    CHECK(torch::equal(random_state(), before));
    CHECK(ddp::replicate(*model, devices) == replicas);
    replica = replicas->modules.front();
    // Another number of devices, and another model, have their own.
    CHECK(ddp::replicate(*model, {torch::kCPU}) != replicas);
    ddp::Mlp other(std::vector<int64_t>{4, 6, 2});
    CHECK(ddp::replicate(*other, devices) != replicas);
    CHECK(ddp::replicate(*model, devices) == replicas);
  }
  ddp::Mlp next(std::vector<int64_t>{1, 1});
  ddp::replicate(*next, devices);
  CHECK(replica.expired());
}

TEST_CASE("replicas follow their model", "[data_parallel]") {
  const std::vector<torch::Device> devices(2, torch::kCPU);
  const torch::Tensor input = torch::randn({6, 4});
  Normalized model;
  const auto follows = [&] {
    for (const auto& replica : ddp::replicate(*model, devices)->modules) {
      const auto parameters = replica->parameters();
      const auto buffers = replica->buffers();
      for (size_t p = 0; p < parameters.size(); ++p) {
        if (!torch::equal(parameters[p], model->parameters()[p]) ||
            parameters[p].requires_grad() != model->parameters()[p].requires_grad()) {
          return false;
        }
      }
      for (size_t b = 0; b < buffers.size(); ++b) {
        if (!torch::equal(buffers[b], model->buffers()[b])) {
          return false;
        }
      }
      for (size_t m = 0; m < replica->modules().size(); ++m) {
        if (replica->modules()[m]->is_training() != model->modules()[m]->is_training()) {
          return false;
        }
      }
    }
    return true;
  };
  CHECK(follows());
  {
    const torch::NoGradGuard no_grad;
    model->linear->weight.fill_(2);
    model->norm->running_mean.fill_(3);
  }
  CHECK(follows());
  ddp::flatten_parameters(*model);  // other memory
  model->linear->weight.set_requires_grad(false);
  CHECK(follows());
  ddp::data_parallel(model, input, devices).square().sum().backward();
  CHECK_FALSE(model->linear->weight.grad().ne(0).any().item<bool>());
  CHECK(model->norm->weight.grad().ne(0).any().item<bool>());
  // What the first replica, on the model's own device, learns of the data is kept.
  CHECK(model->norm->num_batches_tracked.item<int64_t>() == 1);
  model->norm->eval();
  CHECK(follows());
  CHECK(torch::allclose(ddp::data_parallel(model, input, devices), model->forward(input)));
  model->train();
  CHECK(follows());
  model->linear->reset_parameters();
  CHECK(follows());
  model->linear = model->replace_module("linear", torch::nn::Linear(4, 3));
  CHECK(follows());
}

namespace {

/// One weight, twice used, under two names that reset() gives it.
struct TiedImpl : torch::nn::Cloneable<TiedImpl> {
  TiedImpl() { reset(); }
  void reset() override {
    weight = register_parameter("weight", torch::ones({3, 3}));
    again = register_parameter("again", weight);
  }
  torch::Tensor forward(const torch::Tensor& input) {
    return torch::linear(torch::tanh(torch::linear(input, weight)), again);
  }
  torch::Tensor weight;
  torch::Tensor again;
};
TORCH_MODULE(Tied);

}  // namespace

TEST_CASE("a tied parameter's gradient counts once in data_parallel", "[data_parallel]") {
  const torch::Tensor input = torch::randn({4, 3});
  Tied alone;
  alone->forward(input).square().sum().backward();
  for (const size_t replicas : {1U, 3U}) {
    Tied model;
    const std::vector<torch::Device> devices(replicas, torch::kCPU);
    ddp::data_parallel(model, input, devices).square().sum().backward();
    CHECK(torch::allclose(model->weight.grad(), alone->weight.grad()));
  }
}

TEST_CASE("a backward may follow the next forward", "[data_parallel]") {
  const std::vector<torch::Device> devices(2, torch::kCPU);
  ddp::Mlp model(std::vector<int64_t>{4, 6, 2});
  ddp::Mlp reference = std::dynamic_pointer_cast<ddp::MlpImpl>(model->clone());
  const torch::Tensor one = torch::randn({4, 4});
  const torch::Tensor two = torch::randn({4, 4});
  (ddp::data_parallel(model, one, devices) * ddp::data_parallel(model, two, devices))
      .sum()
      .backward();
  (reference->forward(one) * reference->forward(two)).sum().backward();
  for (size_t p = 0; p < model->parameters().size(); ++p) {
    CHECK(torch::allclose(model->parameters()[p].grad(), reference->parameters()[p].grad(), 1e-4,
                          1e-5));
  }
}

namespace {

ddp::Batch one_batch(const torch::Tensor& input, int64_t classes) {
  ddp::Batch batch;
  batch.input = input;
  batch.target = torch::arange(input.size(0)) % classes;
  batch.step_samples_per_rank = static_cast<double>(input.size(0));
  return batch;
}

/// Adds up what it is told.
class LossSum final : public ddp::StepObserver {
 public:
  void add_loss(const torch::Tensor& loss) override { sum += loss.item<double>(); }
  double sum = 0;
};

}  // namespace

TEST_CASE("mirrored replicas all have the gradients and the loss of the whole batch",
          "[mirrored]") {
  for (const size_t replicas : {1U, 2U, 3U, 5U}) {
    for (const int64_t batch_size : {2, 7}) {  // fewer samples than replicas, too
      for (const int64_t width : {3, 150}) {  // 150: more than one thread's part of the sum
        INFO(replicas << " replicas, " << batch_size << " samples, width " << width);
        torch::manual_seed(3);
        ddp::Mlp model(std::vector<int64_t>{width, width, 2});
        ddp::Mlp reference = std::dynamic_pointer_cast<ddp::MlpImpl>(model->clone());
        const torch::Tensor before = random_state();
        ddp::Mirrored mirrored(model, std::vector<torch::Device>(replicas, torch::kCPU));
        CHECK(torch::equal(random_state(), before));
        ddp::Batch batch = one_batch(torch::randn({batch_size, width}), 2);
        LossSum observed;
        batch.observer = &observed;
        const torch::Tensor expected = ddp::loss(reference->forward(batch.input), batch);
        CHECK(observed.sum == Approx(expected.item<double>()));
        expected.backward();
        observed.sum = 0;
        ddp::loss(mirrored.forward(batch.input), batch).backward();
        CHECK(observed.sum == Approx(expected.item<double>()));
        for (size_t i = 0; i < replicas; ++i) {
          for (size_t p = 0; p < reference->parameters().size(); ++p) {
            CHECK(torch::allclose(mirrored.module(i).parameters()[p].grad(),
                                  reference->parameters()[p].grad(), 1e-4, 1e-6));
            CHECK(torch::equal(mirrored.module(i).parameters()[p].grad(),
                               model->parameters()[p].grad()));
          }
        }
      }
    }
  }
}

TEST_CASE("mirrored replicas follow the model that is loaded, and no other change", "[mirrored]") {
  const std::vector<torch::Device> devices(3, torch::kCPU);
  Normalized model;
  model->to(torch::kFloat64);
  model->linear->bias.set_requires_grad(false);
  ddp::Mirrored mirrored(model, devices);
  ddp::Optimizer optimizer(mirrored, ddp::Options());
  const torch::Tensor bias = model->linear->bias.clone();
  for (int step = 0; step < 2; ++step) {
    const ddp::PerReplica output = mirrored.forward(torch::randn({6, 4}, torch::kFloat64));
    const ddp::Batch batch = one_batch(torch::empty({6, 4}), 3);
    ddp::loss(output, batch).backward();
    optimizer.step();
    optimizer.zero_grad();
    CHECK_NOTHROW(optimizer.expect_mirrored());
    CHECK(torch::equal(model->linear->bias, bias));
    CHECK_FALSE(mirrored.module(2).parameters()[0].grad().ne(0).any().item<bool>());
  }
  {
    const torch::NoGradGuard no_grad;
    model->linear->weight.fill_(2);
    model->norm->running_mean.fill_(3);
  }
  CHECK_THROWS_WITH(optimizer.expect_mirrored(),
                    Catch::Matchers::Contains("replica 1 have digest"));
  optimizer.load_state({}, nullptr);
  CHECK_NOTHROW(optimizer.expect_mirrored());
  CHECK(torch::equal(mirrored.module(2).buffers()[0], model->norm->running_mean));
  optimizer.set_learning_rate(0.25);
  ddp::loss(mirrored.forward(torch::randn({6, 4}, torch::kFloat64)),
            one_batch(torch::empty({6, 4}), 3))
      .backward();
  optimizer.step();
  optimizer.zero_grad();
  CHECK_NOTHROW(optimizer.expect_mirrored());
  // Until a step is complete, and in a measurement, every replica has gradients of its own.
  ddp::Batch batch = one_batch(torch::empty({6, 4}), 3);
  for (const bool completes : {false, true}) {
    batch.completes_step = completes;
    mirrored.pause_all_reduce(completes);
    ddp::loss(mirrored.forward(torch::randn({6, 4}, torch::kFloat64)), batch).backward();
    CHECK_FALSE(
        torch::equal(mirrored.module(1).parameters()[0].grad(), model->parameters()[0].grad()));
  }
  const torch::NoGradGuard no_grad;  // the caller's, for all replicas
  CHECK_FALSE(mirrored.forward(torch::randn({6, 4}, torch::kFloat64)).values[1].requires_grad());
}

TEST_CASE("dropped gradients are made again where the optimizer reads them", "[optimizer]") {
  ddp::Options options;
  options.optimizer = "momentum";
  options.learning_rate = 0.5;
  torch::nn::Linear model(1, 1);
  torch::nn::Linear reference(1, 1);
  reference->weight.set_data(model->weight.detach().clone());
  reference->bias.set_data(model->bias.detach().clone());
  ddp::Optimizer optimizer(*model, options, nullptr);
  torch::optim::SGD their_optimizer(reference->parameters(),
                                    torch::optim::SGDOptions(0.5).momentum(0.9));
  for (int step = 1; step <= 3; ++step) {
    const torch::Tensor input = torch::full({1, 1}, static_cast<double>(step));
    model->zero_grad();  // sets them to none
    if (step == 3) {
      model->forward(input * 100).sum().backward();
      optimizer.zero_grad();
    }
    model->forward(input).sum().backward();
    optimizer.step();
    their_optimizer.zero_grad();
    reference->forward(input).sum().backward();
    their_optimizer.step();
  }
  CHECK(model->weight.item<double>() == Approx(reference->weight.item<double>()));
  CHECK(model->bias.item<double>() == Approx(reference->bias.item<double>()));
}

TEST_CASE("an exception in a replica's thread reaches the caller", "[data_parallel]") {
  CHECK_THROWS_AS(ddp::parallel_apply(3,
                                      [](size_t i) {
                                        if (i == 2) {
                                          throw std::runtime_error("replica 2");
                                        }
                                      }),
                  std::runtime_error);
}
