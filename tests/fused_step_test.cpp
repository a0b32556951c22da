// --speedup fused against autograd: the same gradients, the same weights, and no allocation.
#include "common/fused/fused_step.hpp"

#include <sys/resource.h>
#include <torch/nn/module.h>

#include <cmath>
#include <limits>
#include <random>

#include "common/backends/device.hpp"
#include "common/data/dataset.hpp"
#include "common/fused/engine.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/parallel/data_parallel.hpp"
#include "common/parallel/distributed_data_parallel.hpp"
#include "common/training/training.hpp"
#include "tests/catch.hpp"
#include "tests/support/count_allocations.hpp"
#include "tests/support/train_on_ranks.hpp"

namespace {

using ddp::Batch;
using ddp::Options;
using ddp::ProcessGroup;
using ddp::fused::Engine;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// "host", or "aten": what runs on a GPU, here on the CPU, which has the same operators.
const std::vector<std::string> kEngines = {"host", "aten"};

using Widths = std::vector<int64_t>;

Batch random_batch(const Widths& widths, int64_t samples) {
  const bool regression = widths.back() == 1;
  return {torch::randn({samples, widths.front()}),
          regression ? torch::randn({samples, 1})
                     : torch::randint(widths.back(), {samples}, torch::kInt64),
          static_cast<double>(samples), true};
}

/// No unit of a hidden layer is so close to 0 that rounding decides whether ReLU lets it through.
bool is_clear_of_zero(const ddp::Mlp& model, const torch::Tensor& input) {
  if (input.size(0) == 0) {
    return true;
  }
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> parameters = model->parameters();
  torch::Tensor activation = input.to(torch::kFloat64);
  for (size_t i = 0; i + 2 < parameters.size(); i += 2) {
    const torch::Tensor sums = torch::addmm(parameters[i + 1].to(torch::kFloat64), activation,
                                            parameters[i].to(torch::kFloat64).t());
    if (!sums.abs().gt(3e-6 * sums.abs().max()).all().item<bool>()) {
      return false;
    }
    activation = sums.relu();
  }
  return true;
}

/// An MLP with its flat storage, and gradients of it.
struct Subject {
  explicit Subject(Widths layer_widths)
      : widths(std::move(layer_widths)), model(widths), flat(ddp::flatten_parameters(*model)) {}

  Batch clear_batch(int64_t samples) const {
    for (int tries = 0; tries < 300; ++tries) {
      Batch batch = random_batch(widths, samples);
      if (is_clear_of_zero(model, batch.input)) {
        return batch;
      }
    }
    throw std::runtime_error("no batch keeps clear of zero");
  }

  std::unique_ptr<Engine> make_engine(const std::string& kind, int64_t max_samples,
                                      size_t threads = 1) const {
    const ddp::fused::MlpStorage storage = ddp::fused::mlp_storage(flat, flat.data, flat.grad);
    return kind == "host" ? ddp::fused::make_host_engine(storage, max_samples, threads)
                          : ddp::fused::make_aten_engine(storage, max_samples);
  }

  std::vector<torch::Tensor> gradients() const {
    std::vector<torch::Tensor> copies;
    for (const torch::Tensor& parameter : flat.parameters) {
      copies.push_back(parameter.grad().clone());
    }
    return copies;
  }

  std::vector<torch::Tensor> autograd_gradients(const std::vector<Batch>& batches) const {
    ddp::Mlp copy = std::dynamic_pointer_cast<ddp::MlpImpl>(model->clone());
    for (const Batch& batch : batches) {
      ddp::loss(copy->forward(batch.input), batch).backward();
    }
    std::vector<torch::Tensor> gradients;
    for (const torch::Tensor& parameter : copy->parameters()) {
      gradients.push_back(parameter.grad());
    }
    return gradients;
  }

  Widths widths;
  ddp::Mlp model;
  ddp::FlatParameters flat;
};

/// Of the largest gradient of the same parameter. Written so that NaN fails.
bool gradients_agree(const std::vector<torch::Tensor>& ours,
                     const std::vector<torch::Tensor>& theirs, double relative) {
  for (size_t i = 0; i < theirs.size() && i < ours.size(); ++i) {
    const double bound = relative * theirs[i].abs().max().item<double>() + 1e-12;
    if (!(ours[i] - theirs[i]).abs().le(bound).all().item<bool>()) {
      return false;
    }
  }
  return ours.size() == theirs.size();
}

void run_engine(Engine& engine, const Batch& batch, bool accumulate = false) {
  const ddp::fused::Work work{batch, 0, batch.input.size(0), 1 / batch.step_samples_per_rank,
                              accumulate};
  engine.load(work);
  engine.compute(work, {ddp::no_observer, [](size_t) {}});
}

Options options_for(const std::vector<int64_t>& layers, int64_t batch, const std::string& speedup) {
  Options options;
  options.program = "fused_step_test";
  options.layers = layers;
  options.batch_per_rank = batch;
  options.speedup = speedup;
  options.total_epochs = 2;
  options.quiet = true;
  return options;
}

/// The loop of stages 01 (one device) and 02. @return the weights before and after
std::pair<torch::Tensor, torch::Tensor> train(const Options& options, size_t replicas) {
  const std::vector<torch::Device> devices(replicas, torch::kCPU);
  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::RandomSampler sampler(dataset.train.size(), options.seed);
  ddp::DataLoader loader(dataset.train, sampler, options, torch::kCPU);
  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers);
  ddp::Optimizer optimizer(*model, options);
  const torch::Tensor before = ddp::parameter_vector(*model);
  const ddp::LaunchEnvironment launch;
  ddp::Training training(options, launch, dataset, loader, model, optimizer, devices);
  for (const int64_t epoch : training.epochs()) {
    sampler.set_epoch(epoch);
    for (const Batch& batch : loader) {
      ddp::loss(ddp::data_parallel(model, batch.input, devices), batch).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  return {before, ddp::parameter_vector(*model)};
}

/// Both moved, by the same distance, to the same place.
bool same_training(const std::pair<torch::Tensor, torch::Tensor>& ours,
                   const std::pair<torch::Tensor, torch::Tensor>& theirs) {
  const double moved = (theirs.second - theirs.first).norm().item<double>();
  return torch::equal(ours.first, theirs.first) && moved > 1e-3 &&
         (ours.second - theirs.second).norm().item<double>() <= 1e-4 * moved;
}

int64_t minor_faults() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

}  // namespace

TEST_CASE("hand-written gradients are autograd's, for any MLP", "[fused]") {
  std::mt19937_64 random(7);
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (int repetition = 0; repetition < 60; ++repetition) {
    Widths widths;
    for (int64_t layers = between(1, 5); layers >= 0; --layers) {
      widths.push_back(between(1, random() % 2 == 0 ? 20 : 300));
    }
    if (random() % 3 == 0) {
      widths.back() = 1;  // regression
    }
    const int64_t samples = between(1, 65);
    INFO("widths " << widths << ", " << samples << " samples");
    torch::manual_seed(static_cast<uint64_t>(repetition));
    Subject subject(widths);
    const Batch batch = subject.clear_batch(samples);
    const std::vector<torch::Tensor> expected = subject.autograd_gradients({batch});
    const double expected_loss =
        ddp::loss(subject.model->forward(batch.input), batch).item<double>();
    for (const std::string& kind : kEngines) {
      const auto engine = subject.make_engine(kind, samples);
      subject.flat.grad.fill_(kNan);  // all of it is to be replaced
      run_engine(*engine, batch);
      CHECK(gradients_agree(subject.gradients(), expected, 2e-6));
      CHECK(engine->loss().item<double>() == Approx(expected_loss).epsilon(1e-5));
    }
  }
}

TEST_CASE("the gradient check notices NaN and a wrong element", "[fused]") {
  const std::vector<torch::Tensor> right = {torch::ones({3})};
  CHECK(gradients_agree({torch::ones({3})}, right, 1e-6));
  CHECK_FALSE(gradients_agree({torch::tensor({1.0F, 1.0F, 1.001F})}, right, 1e-6));
  CHECK_FALSE(gradients_agree({torch::tensor({1.0F, 1.0F, NAN})}, right, 1e-6));
  CHECK_FALSE(gradients_agree({}, right, 1e-6));
}

TEST_CASE("large batches are computed in parts, micro-batches add up, threads change no bit",
          "[fused]") {
  torch::manual_seed(11);
  const Subject subject({50, 130, 90, 7});
  std::vector<Batch> batches;
  for (const int64_t samples : {200, 64, 0, 3}) {
    batches.push_back(subject.clear_batch(samples));
    batches.back().step_samples_per_rank = 267;
  }
  const std::vector<torch::Tensor> expected = subject.autograd_gradients(batches);
  for (const std::string& kind : kEngines) {
    torch::Tensor first;
    for (const size_t threads : {1U, 2U, 3U}) {
      const auto engine = subject.make_engine(kind, 200, threads);
      subject.flat.grad.zero_();  // and what lies between parameters
      for (const torch::Tensor& parameter : subject.flat.parameters) {
        parameter.grad().fill_(kNan);
      }
      for (size_t i = 0; i < batches.size(); ++i) {
        run_engine(*engine, batches[i], /*accumulate=*/i > 0);
      }
      CHECK(gradients_agree(subject.gradients(), expected, 3e-6));
      first = threads == 1 ? subject.flat.grad.clone() : first;
      CHECK(torch::equal(subject.flat.grad, first));
      // An empty share replaces the gradients too.
      run_engine(*engine, batches[2]);
      CHECK(subject.flat.grad.eq(0).all().item<bool>());
      CHECK(engine->loss().item<double>() == 0);
    }
  }
}

TEST_CASE("weights whose columns compete for the cache take the other way to the same gradients",
          "[fused]") {
  torch::manual_seed(12);
  const Subject subject({5, 1024, 300, 3});  // 1024 floats: 4 KiB from row to row
  const Batch batch = subject.clear_batch(20);
  const std::vector<torch::Tensor> expected = subject.autograd_gradients({batch});
  for (const size_t threads : {1U, 2U}) {
    subject.flat.grad.fill_(kNan);
    run_engine(*subject.make_engine("host", 20, threads), batch);
    CHECK(gradients_agree(subject.gradients(), expected, 2e-6));
  }
}

TEST_CASE(
    "a sample that is not a number spoils the loss and every weight, and does not go unnoticed",
    "[fused]") {
  for (const std::string& kind : kEngines) {
    const Subject subject({4, 6, 3});
    const auto engine = subject.make_engine(kind, 5);
    Batch batch = random_batch(subject.widths, 5);
    batch.input[3][2] = kNan;
    run_engine(*engine, batch);
    CHECK(std::isnan(engine->loss().item<double>()));
    for (const torch::Tensor& gradient : subject.gradients()) {
      CHECK(gradient.isnan().any().item<bool>());
    }
  }
}

TEST_CASE("an engine that is asked to looks whether its gradients are finite", "[fused]") {
  const Subject subject({4, 70, 1});
  Batch batch = random_batch(subject.widths, 100);  // two parts
  const ddp::fused::MlpStorage storage =
      ddp::fused::mlp_storage(subject.flat, subject.flat.data, subject.flat.grad);
  for (const size_t threads : {1U, 2U}) {
    const auto engine = ddp::fused::make_host_engine(storage, 100, threads, /*look=*/true);
    const auto finite = [&] {
      run_engine(*engine, batch);
      bool all = true;
      for (const torch::Tensor& gradient : subject.gradients()) {
        all = all && gradient.isfinite().all().item<bool>();
      }
      CHECK(engine->gradients_are_finite() == all);
      return all;
    };
    CHECK(finite());
    for (const int64_t sample : {5, 99}) {
      const torch::Tensor whole = batch.input.clone();
      batch.input[sample][1] = kNan;
      CHECK_FALSE(finite());
      batch.input.copy_(whole);
      CHECK(finite());
    }
    // Of finite terms the sum is too large: of a bias's gradient alone, since the inputs are small,
    // or of a weight's alone, since they are large.
    const torch::Tensor input = batch.input.clone();
    const torch::Tensor target = batch.target.clone();
    for (const auto& [inputs, targets] : {std::pair{1e-30, -3e38}, std::pair{1e35, -1e7}}) {
      const torch::NoGradGuard no_grad;
      const torch::Tensor weights = subject.flat.data.clone();
      subject.flat.data.fill_(0);
      subject.model->parameters().front().fill_(inputs < 1 ? 1.0 : 1e-35);
      subject.model->parameters()[2].fill_(1e-3);
      batch.input.fill_(inputs);
      batch.target.fill_(targets);
      CHECK_FALSE(finite());
      const std::vector<torch::Tensor> gradients = subject.gradients();
      for (size_t i = 0; i < gradients.size(); ++i) {
        CHECK(gradients[i].isfinite().all().item<bool>() == (i != (inputs < 1 ? 3U : 0U)));
      }
      subject.flat.data.copy_(weights);
      batch.input.copy_(input);
      batch.target.copy_(target);
    }
  }
  CHECK_FALSE(subject.make_engine("host", 100)->gradients_are_finite());
}

TEST_CASE("a class that the model does not have is refused, and so are parameters in float64",
          "[fused]") {
  const Subject subject({4, 3});
  for (const std::string& kind : kEngines) {
    const auto engine = subject.make_engine(kind, 5);
    for (const int64_t bad : {-1, 3}) {
      Batch batch = random_batch(subject.widths, 5);
      batch.target[2] = bad;
      CHECK_THROWS_AS(run_engine(*engine, batch), c10::Error);
    }
  }
  ddp::Mlp doubles(Widths{3, 2});
  doubles->to(torch::kFloat64);
  CHECK_THROWS_AS(
      ddp::FusedStep(options_for({3, 2}, 4, "fused"), doubles, {torch::kCPU}, nullptr, [] {}),
      c10::Error);
}

TEST_CASE("fused training ends on autograd's weights: optimizers, replicas, micro-batches, tails",
          "[fused]") {
  struct Workload {
    std::vector<int64_t> layers;
    std::string optimizer;
    int64_t batch;
    int64_t accumulate;
    int64_t dataset_size;
  };
  const std::vector<Workload> workloads = {{{20, 1}, "sgd", 32, 1, 300},
                                           {{20, 1}, "adamw", 10, 3, 95},
                                           {{12, 30, 5}, "momentum", 16, 1, 200},
                                           {{12, 30, 17, 5}, "adam", 7, 3, 100}};
  for (const Workload& workload : workloads) {
    Options options = options_for(workload.layers, workload.batch, "none");
    options.optimizer = workload.optimizer;
    options.accumulate = workload.accumulate;
    options.dataset_size = workload.dataset_size;
    const auto expected = train(options, 1);
    options.speedup = "fused";
    for (const size_t replicas : {1U, 2U, 3U, 9U}) {
      INFO(workload.optimizer << ", " << replicas << " replicas");
      const auto ours = train(options, replicas);
      CHECK(same_training(ours, expected));
      CHECK(torch::equal(train(options, replicas).second, ours.second));  // bit for bit
    }
  }
}

TEST_CASE("fused steps average over ranks as DistributedDataParallel does", "[fused][ddp]") {
  // 23 samples: from 3 ranks on, the last step has a rank without any. 300 x 1000: several buckets.
  Options options = options_for({9, 300, 1000, 3}, 2, "none");
  options.dataset_size = 23;
  options.accumulate = 2;
  for (const int world_size : {1, 2, 3, 4, 8}) {
    INFO("world size " << world_size);
    options.speedup = "none";
    const auto expected = ddp::test::train_on_ranks(options, world_size, "gloo");
    options.speedup = "fused";
    const auto ours = ddp::test::train_on_ranks(options, world_size, "gloo");
    CHECK(ours.all_reduce_bytes == expected.all_reduce_bytes);
    CHECK((ours.all_reduce_bytes > 0) == (world_size > 1));
    CHECK((ours.weights - expected.weights).abs().le(1e-5).all().item<bool>());
  }
}

TEST_CASE("a model of which some layers are not trained is refused", "[fused]") {
  // The middle layer; the first bias; the last layer, which leaves a chain that fits.
  for (const std::vector<size_t>& frozen : std::vector<std::vector<size_t>>{{2, 3}, {1}, {4, 5}}) {
    ddp::Mlp model(Widths{6, 8, 8, 3});
    for (const size_t index : frozen) {
      model->parameters()[index].set_requires_grad(false);
    }
    const Options options = options_for({6, 8, 8, 3}, 4, "fused");
    INFO("parameter " << frozen.front());
    CHECK_THROWS_AS(ddp::FusedStep(options, model, {torch::kCPU}, nullptr, [] {}), c10::Error);
  }
}

TEST_CASE("graph is refused without a GPU", "[fused]") {
  CHECK_THROWS_AS(ddp::FusedStep(options_for({3, 1}, 4, "graph"), ddp::Mlp(Widths{3, 1}),
                                 {torch::kCPU}, nullptr, [] {}),
                  c10::Error);
}

TEST_CASE("in the steady state a fused step allocates nothing and touches no new page",
          "[fused][allocations]") {
  at::set_num_threads(1);
  struct Workload {
    std::vector<int64_t> layers;
    int64_t batch;
    int64_t accumulate;
    std::string optimizer;
    size_t replicas;
    bool metrics;
  };
  const std::vector<Workload> workloads = {{{20, 1}, 32, 1, "sgd", 1, false},  // T
                                           {{64, 128, 128, 10}, 32, 1, "sgd", 1, false},  // S
                                           {{784, 512, 512, 10}, 64, 1, "sgd", 1, false},  // M
                                           {{64, 128, 128, 10}, 32, 1, "momentum", 1, true},
                                           {{64, 128, 128, 10}, 32, 1, "adam", 1, false},
                                           {{64, 128, 128, 10}, 32, 1, "adamw", 1, false},
                                           {{64, 128, 128, 10}, 16, 3, "sgd", 1, true},
                                           {{64, 128, 128, 10}, 80, 1, "sgd", 2, false}};
  for (const Workload& workload : workloads) {
    Options options = options_for(workload.layers, workload.batch, "fused");
    options.optimizer = workload.optimizer;
    options.accumulate = workload.accumulate;
    options.dataset_size = workload.batch * workload.accumulate * 260;
    options.metrics = workload.metrics ? "metrics.jsonl" : "";  // written by report(), not called
    const ddp::Dataset dataset = ddp::load_dataset(options);
    ddp::RandomSampler sampler(dataset.train.size(), options.seed);
    ddp::DataLoader loader(dataset.train, sampler, options, torch::kCPU);
    ddp::Mlp model(dataset.layers);
    ddp::Optimizer optimizer(*model, options);
    ddp::FusedStep fused_step(options, model,
                              std::vector<torch::Device>(workload.replicas, torch::kCPU), nullptr,
                              [&] { optimizer.fused_step(); });
    ddp::TrainingLog log(options, model, torch::kCPU);
    loader.set_observer(&log);
    constexpr int64_t kWarmupSteps = 20;
    int64_t steps = 0;
    uint64_t allocations_before = 0;
    uint64_t allocations_after = 0;
    int64_t faults_before = 0;
    int64_t faults_after = 0;
    for (const Batch& batch : loader) {
      fused_step.run(batch, optimizer.learning_rate());
      steps += batch.completes_step ? 1 : 0;
      if (steps == kWarmupSteps) {
        allocations_before = ddp::test::allocations();
        faults_before = minor_faults();
      }
      if (steps == 230) {
        allocations_after = ddp::test::allocations();
        faults_after = minor_faults();
      }
    }
    INFO("layers " << workload.layers << ", " << workload.optimizer << ", " << workload.replicas
                   << " replicas, accumulate " << workload.accumulate);
    REQUIRE(steps == 260);
    CHECK(allocations_after - allocations_before == 0);
    CHECK(faults_after - faults_before == 0);
  }
}

TEST_CASE("memory that a step frees is kept for the next", "[fused][allocations]") {
  ddp::set_device(options_for({64, 128, 10}, 32, "none"), /*local_rank=*/0);
  std::vector<std::unique_ptr<char[]>> gradients(16);
  const auto step = [&] {
    for (auto& gradient : gradients) {
      constexpr size_t kBytes = 1 << 20;
      gradient = std::make_unique_for_overwrite<char[]>(kBytes);
      std::fill_n(gradient.get(), kBytes, 1);
    }
    std::fill(gradients.begin(), gradients.end(), nullptr);
  };
  step();
  step();
  // By itself malloc gives back what is free at the heap's end above twice the largest block: the
  // step would touch all its 4096 pages anew.
  const int64_t faults_before = minor_faults();
  step();
  CHECK(minor_faults() - faults_before < 512);
}

TEST_CASE("a step of autograd is seen to allocate, and so are new and malloc",
          "[fused][allocations]") {
  ddp::Mlp model(std::vector<int64_t>{64, 128, 128, 10});
  const Batch batch = random_batch({64, 128, 128, 10}, 32);
  const auto step = [&] { ddp::loss(model->forward(batch.input), batch).backward(); };
  step();
  uint64_t before = ddp::test::allocations();
  step();
  CHECK(ddp::test::allocations() - before > 50);

  before = ddp::test::allocations();
  const auto number = std::make_unique<int>(1);
  CHECK(ddp::test::allocations() - before >= 1);
  before = ddp::test::allocations();
  const torch::Tensor tensor = torch::empty({1000});
  const uint64_t by_a_tensor = ddp::test::allocations() - before;
  CHECK(by_a_tensor >= 2);  // its description and its memory
}
