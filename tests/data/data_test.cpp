// Order, batches, loss, evaluation, datasets and tensor files.
#include <sys/stat.h>

#include <torch/nn/modules/container/sequential.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "common/base/files.hpp"
#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/data/tensor_file.hpp"
#include "common/model/mlp.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/count_allocations.hpp"
#include "tests/support/fake_device.hpp"

namespace {

namespace fs = std::filesystem;

std::vector<int64_t> to_vector(const torch::Tensor& indices) {
  return {indices.const_data_ptr<int64_t>(), indices.const_data_ptr<int64_t>() + indices.numel()};
}

/// Sample i has input (i) and class i.
ddp::Samples numbered(int64_t size) {
  return {torch::arange(size).to(torch::kFloat32).unsqueeze(1), torch::arange(size)};
}

/// Reads every world_size-th sample of the common order.
class RankSampler : public ddp::RandomSampler {
 public:
  RankSampler(int64_t size, int rank, int world_size)
      : RandomSampler(size, /*seed=*/7),
        part_(RandomSampler::indices().slice(0, rank, std::nullopt, world_size).contiguous()),
        world_size_(world_size) {}
  const torch::Tensor& indices() const override { return part_; }
  int num_replicas() const override { return world_size_; }

 private:
  torch::Tensor part_;
  int world_size_;
};

}  // namespace

TEST_CASE("a seed gives the order that it has always given, and every epoch another one",
          "[sampler]") {
  const std::vector<int64_t> order = {6, 3, 0, 7, 10, 15, 2, 12, 14, 9, 8, 5, 4, 13, 11, 1};
  ddp::RandomSampler sampler(16, /*seed=*/42);
  CHECK(to_vector(sampler.indices()) == order);
  sampler.set_epoch(1);
  CHECK(to_vector(sampler.indices()) != order);
  sampler.set_epoch(0);
  CHECK(to_vector(sampler.indices()) == order);
}

TEST_CASE("the ranks' batches together are the batch of one process, in the last step too",
          "[loader]") {
  constexpr int64_t kStepSamples = 12;
  const int64_t size = GENERATE(1, 5, 48, 49, 53);
  const int world_size = GENERATE(1, 2, 3, 4, 6);
  INFO(size << " samples, " << world_size << " ranks");
  const int64_t steps = (size + kStepSamples - 1) / kStepSamples;
  std::vector<std::vector<int64_t>> read(static_cast<size_t>(steps));
  std::vector<double> weights(read.size());
  for (int rank = 0; rank < world_size; ++rank) {
    RankSampler sampler(size, rank, world_size);
    ddp::DataLoader loader(numbered(size), sampler, kStepSamples / world_size);
    CHECK(loader.steps() == steps);
    CHECK(loader.samples_per_step() == kStepSamples);
    CHECK(loader.max_batch() == std::min(kStepSamples, size + world_size - 1) / world_size);
    size_t step = 0;
    for (const ddp::Batch& batch : loader) {
      CHECK(torch::equal(batch.input.squeeze(1).to(torch::kInt64), batch.target));
      const std::vector<int64_t> targets = to_vector(batch.target);
      read[step].insert(read[step].end(), targets.begin(), targets.end());
      weights[step] += batch.weight;
      if (size >= kStepSamples * static_cast<int64_t>(step + 1)) {
        CHECK(batch.weight == 1);
      }
      ++step;
    }
    CHECK(step == read.size());
  }
  const std::vector<int64_t> order = to_vector(ddp::shuffled_indices(size, 7, 0));
  auto next = order.begin();
  for (size_t step = 0; step < read.size(); ++step) {
    const auto end = next + std::ssize(read[step]);
    CHECK(std::is_permutation(next, end, read[step].begin(), read[step].end()));
    CHECK(weights[step] == Approx(world_size));
    next = end;
  }
  CHECK(next == order.end());
}

TEST_CASE("drop_last leaves a step out in which a batch is not whole", "[loader]") {
  for (const int64_t size : {7, 8, 15, 16, 17}) {
    for (const int rank : {0, 1}) {
      RankSampler sampler(size, rank, 2);
      ddp::DataLoader loader(numbered(size), sampler, /*batch_size=*/4, torch::kCPU,
                             /*drop_last=*/true);
      int64_t steps = 0;
      for (const ddp::Batch& batch : loader) {
        CHECK((batch.size() == 4 && batch.weight == 1));
        ++steps;
      }
      CHECK(steps == size / 8);
      CHECK(loader.steps() == steps);
    }
  }
}

TEST_CASE("a batch has samples, and an epoch may be longer than the first", "[loader]") {
  struct Growing : ddp::RandomSampler {
    using RandomSampler::RandomSampler;
    const torch::Tensor& indices() const override { return all; }
    torch::Tensor all = torch::arange(2);
  } sampler(9, /*seed=*/1);
  CHECK_THROWS_WITH(ddp::DataLoader(numbered(9), sampler, 0),
                    ContainsSubstring("batch_size >= 1, got 0"));
  ddp::DataLoader loader(numbered(9), sampler, 6);
  sampler.all = torch::arange(9);
  CHECK(torch::equal((*loader.begin()).target, torch::arange(6)));
}

TEST_CASE("a batch takes no memory, and one that was overwritten has no gradient", "[loader]") {
  const ddp::Samples samples{torch::randn({64, 3}), torch::randn({64, 1})};
  ddp::RandomSampler sampler(64, /*seed=*/1);
  ddp::DataLoader loader(samples, sampler, 8);
  auto batch = loader.begin();
  const uint64_t before = allocations();
  for (int i = 0; i < 7; ++i) {
    ++batch;
  }
  CHECK(allocations() == before);

  const torch::Tensor weight = torch::ones({}, torch::requires_grad());
  for (const auto part : {&ddp::Batch::input, &ddp::Batch::target}) {
    torch::Tensor sum = torch::zeros({});
    for (const ddp::Batch& one : loader) {
      const torch::Tensor loss = (weight * one.*part).sum();
      CHECK_NOTHROW(loss.backward({}, /*retain_graph=*/true));
      sum = sum + loss;
    }
    CHECK_THROWS_WITH(sum.backward(), ContainsSubstring("modified by an inplace operation"));
  }
}

TEST_CASE("rows of any type stay as they are, whatever their strides; others are refused",
          "[loader]") {
  ddp::RandomSampler sampler(7, /*seed=*/1);
  const auto batch_of = [&sampler](const torch::Tensor& input, const torch::Tensor& target) {
    ddp::DataLoader loader(ddp::Samples{input, target}, sampler, 7);
    return *loader.begin();
  };
  const auto bytes = [](const torch::Tensor& tensor) {
    return tensor.contiguous().view(torch::kUInt8);
  };
  const torch::Tensor numbers = torch::arange(21).reshape({3, 7}).t() - 3;
  for (const auto type : {torch::kInt64, torch::kInt32, torch::kInt16, torch::kInt8, torch::kBool,
                          torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kBFloat16,
                          torch::kFloat8_e4m3fn, torch::kComplexFloat, torch::kUInt8}) {
    const torch::Tensor rows = (numbers + 3 * (type == torch::kUInt8)).to(type);
    const torch::Tensor expected = bytes(rows).index_select(0, sampler.indices());
    const ddp::Batch batch = batch_of(rows, rows);
    INFO(type);
    CHECK(torch::equal(bytes(batch.target), expected));
    CHECK(torch::equal(bytes(batch.input), type == torch::kUInt8
                                               ? bytes(expected.to(torch::kFloat32) / 255)
                                               : expected));
    const ddp::Samples some{rows, rows, torch::tensor({6, 2})};
    CHECK(torch::equal(bytes(some.read().target), bytes(rows).index_select(0, some.rows)));
  }
  const torch::Tensor ids = torch::arange(7) + (int64_t{1} << 60);
  CHECK(torch::equal(batch_of(ids, ids).input, ids.index_select(0, sampler.indices())));
  const torch::Tensor conjugate = torch::randn({7, 2}, torch::kComplexDouble).conj();
  CHECK(torch::equal(batch_of(conjugate, conjugate).input,
                     conjugate.resolve_conj().index_select(0, sampler.indices())));
  const torch::Tensor negative = torch::_neg_view(torch::randn({7, 2}));
  const ddp::Samples lazy = ddp::Samples{conjugate, negative, sampler.indices()}.read();
  CHECK(torch::equal(lazy.input, conjugate.resolve_conj().index_select(0, sampler.indices())));
  CHECK(torch::equal(lazy.target, negative.resolve_neg().index_select(0, sampler.indices())));
  for (const auto& [tensor, name] :
       {std::pair(torch::ones({7, 2}).to_sparse(), "SparseCPUFloatType"),
        {torch::ones({7, 2}).to_sparse_csr(), "SparseCsrCPUFloatType"},
        {at::quantize_per_tensor(torch::ones({7, 2}), 0.1, 0, at::kQInt8), "QuantizedCPUQInt8Type"},
        {torch::ones({7, 2}, torch::kMeta), "MetaFloatType"},
        {torch::Tensor(), "UndefinedType"}}) {
    const std::string expected = std::string("dense tensors on the host, got a ") + name;
    CHECK_THROWS_WITH(batch_of(tensor, ids), ContainsSubstring(expected));
    CHECK_THROWS_WITH(batch_of(ids, tensor), ContainsSubstring(expected));
  }
}

TEST_CASE("a device gets the host's batches, though the host runs ahead", "[loader]") {
  const torch::Device device = fake_device(3);
  const torch::Tensor pixels = torch::randint(256, {53, 16}, torch::kUInt8);
  const bool is_pixels = GENERATE(true, false);
  const ddp::Samples samples{is_pixels ? pixels : pixels.to(torch::kInt64) * (int64_t{1} << 40),
                             torch::arange(53), torch::arange(52, -1, -1)};
  const auto batches_on = [&](const torch::Device& where) {
    ddp::RandomSampler sampler(53, /*seed=*/1);
    ddp::DataLoader loader(samples, sampler, 8, where);
    ++loader.begin();  // an epoch that is left while a copy runs
    std::vector<torch::Tensor> kept;
    for (const int64_t epoch : {0, 1}) {
      sampler.set_epoch(epoch);
      for (const ddp::Batch& batch : loader) {
        CHECK(batch.input.device() == where);
        kept.push_back(batch.input.clone());
        kept.push_back(batch.target.clone());
      }
    }
    for (torch::Tensor& tensor : kept) {
      tensor = tensor.cpu();
    }
    return kept;
  };
  const std::vector<torch::Tensor> expected = batches_on(torch::kCPU);
  REQUIRE(expected.size() == 2 * 2 * 7);
  const auto equal = [](const auto& a, const auto& b) { return a.equal(b); };
  for (const size_t free_memory : {size_t{0}, size_t{1} << 30}) {
    free_device_memory = free_memory;
    for (const auto order : {StreamOrder::kOthersLast, StreamOrder::kOthersFirst}) {
      stream_order = order;
      CHECK(std::ranges::equal(batches_on(device), expected, equal));
    }
  }
}

TEST_CASE("the mean over ranks of the weighted loss is the loss of the step, with an empty rank",
          "[loss]") {
  constexpr int64_t kSamples = 3;
  constexpr int kWorldSize = 4;  // shares of 1, 1, 1 and 0 samples
  for (const int64_t outputs : {1, 5}) {
    const torch::Tensor output = torch::randn({kSamples, outputs});
    const torch::Tensor target = outputs == 1 ? torch::randn({kSamples, 1})
                                              : torch::randint(outputs, {kSamples}, torch::kInt64);
    double sum = 0;
    for (int64_t rank = 0; rank < kWorldSize; ++rank) {
      const int64_t begin = std::min(rank, kSamples - 1);
      const int64_t count = rank < kSamples ? 1 : 0;
      torch::Tensor part = output.narrow(0, begin, count).clone().set_requires_grad(true);
      const torch::Tensor loss = ddp::loss(part, target.narrow(0, begin, count),
                                           static_cast<double>(count * kWorldSize) / kSamples);
      loss.backward();
      CHECK(part.grad().isfinite().all().item<bool>());
      sum += loss.item<double>();
    }
    CHECK(sum / kWorldSize == Approx(ddp::loss(output, target).item<double>()).epsilon(1e-6));
  }
  ddp::Mlp model(std::vector<int64_t>{2, 4, 3});
  ddp::loss(model->forward(torch::empty({0, 2})), torch::empty({0}, torch::kInt64), 0).backward();
  for (const torch::Tensor& parameter : model->parameters()) {
    CHECK(parameter.grad().eq(0).all().item<bool>());
  }
  CHECK_THROWS_WITH(ddp::loss(torch::zeros({3, 1}), torch::zeros({3})),
                    ContainsSubstring("shape [3, 1]"));
}

TEST_CASE("any module is evaluated: loss and accuracy, in chunks", "[loss]") {
  torch::nn::Sequential doubled(torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)));
  doubled->parameters().front().detach().fill_(2);
  const ddp::Samples samples = numbered(10'000);
  const ddp::Samples values{samples.input, samples.input * 2 + 3};
  const ddp::Evaluation regression = ddp::evaluate(*doubled, values);
  CHECK(regression.loss == Approx(9));
  CHECK(std::isnan(regression.accuracy));

  ddp::Mlp model(std::vector<int64_t>{1, 4});
  for (const torch::Tensor& parameter : model->parameters()) {
    parameter.detach().zero_();
  }
  const ddp::Evaluation classes =
      ddp::evaluate(*model, {samples.input, samples.target.remainder(4)});
  CHECK(classes.loss == Approx(std::log(4.0)));
  CHECK(classes.accuracy == Approx(0.25));
}

TEST_CASE("synthetic data are the seed's, in the shape that is asked for", "[dataset]") {
  ddp::DataOptions options;
  CHECK(ddp::load_dataset(options).layers == std::vector<int64_t>{20, 1});
  options.layers = {8, 4};
  const ddp::Dataset classes = ddp::load_dataset(options);
  CHECK(classes.classification());
  CHECK(torch::equal(ddp::load_dataset(options).train.input, classes.train.input));
  options.seed = 43;
  CHECK_FALSE(torch::equal(ddp::load_dataset(options).train.input, classes.train.input));
  CHECK_THROWS_WITH(ddp::load_dataset({.dataset = "digit"}),
                    ContainsSubstring("got \"digit\", expected synthetic,"));
}

TEST_CASE("the digits are the published ones, and damaged ones are refused by name", "[dataset]") {
  const ddp::Dataset digits = ddp::load_dataset({.dataset = "digits"});
  CHECK(digits.train.size() == 1437);
  CHECK(digits.test.size() == 360);
  CHECK(digits.layers == std::vector<int64_t>{64, 128, 128, 10});
  CHECK(digits.train.input.mean().item<double>() == Approx(0.0).margin(1e-5));
  CHECK(digits.train.target.bincount().size(0) == 10);

  const ddp::ScratchFolder folder("ddp-data-test");
  ddp::DataOptions options;
  options.dataset = "digits";
  options.data_dir = folder.path();
  const std::string copy = folder.path() + "/digits.safetensors";
  REQUIRE(mkfifo(copy.c_str(), 0600) == 0);  // nobody writes to it
  CHECK_THROWS_WITH(
      ddp::load_dataset(options),
      ContainsSubstring("--data-dir: found no digits.safetensors in " + folder.path()));
  fs::remove(copy);
  fs::copy(DDP_SOURCE_DIR "/data/digits.safetensors", copy);
  CHECK_NOTHROW(ddp::load_dataset(options));
  const auto size = fs::file_size(copy);
  const std::string good(ddp::MappedFile(copy).bytes());
  for (const auto& damaged : {std::string(size, '1'), std::string(size - 1, '1'), good + "x"}) {
    std::ofstream(copy) << damaged;
    CHECK_THROWS_WITH(ddp::load_dataset(options),
                      ContainsSubstring("data file " + copy + " holds"));
  }
}

TEST_CASE("a tensor file reads back as written; damage is noticed; the file before is kept",
          "[tensors]") {
  const ddp::ScratchFolder folder("ddp-data-test");
  const std::string path = folder.path() + "/a";
  const ddp::TensorFile file{
      {{"key", "value"}},
      {{"w", torch::randn({3, 2}).t()}, {"n", torch::tensor({1, 2}, torch::kInt64)}}};
  ddp::write_tensor_file(path, {{{"key", "older"}}, {}});
  ddp::write_tensor_file(path, file);
  const auto read = [](const std::string& name) {
    return ddp::parse_tensor_file(name, ddp::MappedFile(name).bytes());
  };
  CHECK(read(path + ".prev").metadata.at("key") == "older");
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 2);
  const ddp::TensorFile newest = read(path);
  CHECK(newest.metadata.at("key") == "value");
  CHECK(std::ranges::equal(newest.tensors, file.tensors, [](const auto& a, const auto& b) {
    return a.first == b.first && a.second.equal(b.second);
  }));

  std::ofstream(path, std::ios::app) << "damage";
  ddp::write_tensor_file(path, file);
  CHECK(read(path + ".prev").metadata.at("key") == "older");
  REQUIRE(mkfifo((path + "y").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(ddp::MappedFile(path + "y"), ContainsSubstring("is no regular file"));
}

TEST_CASE("a tensor file of every type, for to_safetensors_test.py", "[.safetensors]") {
  ddp::TensorFile file{{{"\"key\"\n", "\u00e9"}}, {}};
  const std::vector<std::pair<std::string, torch::ScalarType>> types = {
      {"w", torch::kFloat64},
      {"layer.0.weight", torch::kFloat32},
      {"a \"quote\"", torch::kFloat16},
      {"back\\n", torch::kBFloat16},
      {"new\nline", torch::kInt64},
      {"\u00e9\u2713", torch::kInt32},
      {"", torch::kUInt8},
      {"__metadata", torch::kBool}};
  for (const auto& [name, type] : types) {
    file.tensors.emplace_back(name, torch::arange(6).reshape({2, 3}).to(type));
  }
  file.tensors.emplace_back("scalar", torch::tensor(7));
  file.tensors.emplace_back("none", torch::empty({0, 3}));
  REQUIRE_NOTHROW(ddp::write_tensor_file("written.safetensors", file));
}
