// A step on paper: memory and time by part as counted by hand, what bounds it, from which batch on.
#include "bench/report/predict.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/report/analysis.hpp"
#include "bench/report/communication_model.hpp"
#include "common/base/exit_codes.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

using namespace ddp::bench;

const std::vector<std::int64_t> kM = {784, 512, 512, 10};
// Flat storage begins each parameter at a multiple of 16 floats: the last bias has 10.
constexpr double kFirstBucket = 4 * (512 * 512 + 512 + 512 * 10 + 16);
constexpr double kSecondBucket = 4 * (784 * 512 + 512);

/// 1 ms is 1e8 FLOP, 1e7 bytes of memory, 1e6 bytes of the network.
Rates round_rates(double alpha_us = 0, double network_gbps = 1) {
  return {.gflops = 100,
          .memory = {{0, 10.0}},
          .network = stated_model({alpha_us, network_gbps}, AllReduceAlgorithm::kRing)};
}

using Words = std::vector<std::string>;

ddp::test::RunResult run_bench(Words arguments) {
  arguments.insert(arguments.begin(), std::string(DDP_BIN_DIR) + "/bench");
  return ddp::test::run_program(arguments);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool near(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::abs(b);  // false for NaN
}

TEST_CASE("the time of each part is what is counted by hand", "[predict]") {
  const Job job = {.layers = kM, .batch_per_rank = 64};
  const StepPrediction prediction = predict_from_rates(job, round_rates(100));
  const StepTimes& times = prediction.times;
  const double products[] = {2.0 * 64 * 784 * 512, 2.0 * 64 * 512 * 512, 2.0 * 64 * 512 * 10};
  CHECK(prediction.parameters == 669706);
  CHECK(near(prediction.flops, 2 * (2 * products[0] + 3 * products[1] + 3 * products[2])));
  CHECK(near(times.arithmetic, prediction.flops / 2 / 1e8));
  // 12 bytes a parameter, 8 where no gradient of the input is wanted.
  CHECK(near(times.weight_traffic, (12.0 * 669706 - 4 * 784 * 512) / 1e7));
  CHECK(near(times.forward, (products[0] + products[1] + products[2]) / 1e8));
  CHECK(near(times.forward + times.backward, times.arithmetic));
  CHECK(near(times.update, 12.0 * 669706 / 1e7));

  // Over two ranks a ring's all-reduce has 2 alpha, and each byte crosses the link once.
  REQUIRE(prediction.bucket_bytes == std::vector{kFirstBucket, kSecondBucket});
  const double first_ms = 0.2 + kFirstBucket / 1e6;
  const double second_ms = 0.2 + kSecondBucket / 1e6;
  CHECK(near(prediction.sent_bytes, kFirstBucket + kSecondBucket));
  CHECK(near(times.communication, first_ms + second_ms));
  // The first is under way while the first layer's weights get their gradient, the second begins
  // when backward is over or the first has ended.
  const double first_layer_ms = products[0] / 1e8;
  REQUIRE(first_ms > first_layer_ms);
  CHECK(near(times.hidden, first_layer_ms));
  CHECK(near(times.exposed, first_ms + second_ms - first_layer_ms));
  CHECK(near(times.step, times.arithmetic + times.exposed + times.update));
  CHECK(near(times.step_without_overlap, times.step + times.hidden));
}

TEST_CASE("what is sent during backward is hidden, what is complete last never is", "[predict]") {
  const Job job = {.layers = kM, .batch_per_rank = 64};
  const StepTimes times = predict_from_rates(job, round_rates(0, 100)).times;
  CHECK(near(times.hidden, kFirstBucket / 1e8));
  CHECK(near(times.exposed, kSecondBucket / 1e8));

  Job one_bucket = job;
  one_bucket.layers = {20, 1};
  const StepTimes alone = predict_from_rates(one_bucket, round_rates(10)).times;
  CHECK(alone.hidden == 0);
  CHECK(near(alone.exposed, alone.communication));
}

TEST_CASE("one rank communicates with nobody", "[predict]") {
  const Job job = {.layers = kM, .batch_per_rank = 64, .world_size = 1};
  const StepPrediction prediction = predict_from_rates(job, round_rates());
  CHECK(prediction.bucket_bytes.empty());
  CHECK(prediction.sent_bytes == 0);
  CHECK(prediction.times.communication == 0);
  CHECK(prediction.times.exposed == 0);
  CHECK(prediction.times.hidden == 0);
  CHECK(prediction.memory.buckets == 0);
  CHECK(prediction.speedup == 1);
  CHECK_FALSE(prediction.least_batch);
  CHECK(prediction.bound == "arithmetic");
}

TEST_CASE("memory of a rank by part", "[predict]") {
  const auto memory = [](const std::string& optimizer, const Gradients& gradients, int ranks) {
    return count_memory(kM, 64, optimizer, gradients, ranks);
  };
  const double flat = kFirstBucket + kSecondBucket;
  const StepMemory sgd = memory("sgd", {}, 2);
  CHECK(sgd.weights == flat);
  CHECK(sgd.gradients == flat);
  CHECK(sgd.optimizer_state == 0);
  CHECK(sgd.activations == 4.0 * 64 * (784 + 512 + 512 + 10));
  CHECK(sgd.buckets == 0);
  CHECK(sgd.total == 2 * flat + sgd.activations);
  CHECK(memory("momentum", {}, 2).optimizer_state == flat);
  CHECK(memory("adam", {}, 2).optimizer_state == 2 * flat + 4);
  CHECK(memory("adamw", {}, 2).optimizer_state == 2 * flat + 4);

  const Gradients sharded = {.shard_optimizer = true};
  CHECK(memory("adam", sharded, 1).optimizer_state == 2 * flat + 4);
  // Parts are whole lines of 32 values, so the largest has a little more than a fourth.
  const double part = memory("momentum", sharded, 4).optimizer_state;
  CHECK(part >= flat / 4);
  CHECK(part <= flat / 4 + 2 * 32 * 4);

  const Gradients compressed = {.compression = "bf16"};
  CHECK(memory("sgd", compressed, 2).buckets == flat / 2);
  CHECK(memory("sgd", compressed, 1).buckets == 0);
}

TEST_CASE("compression halves what travels, a sharded optimizer moves half of it behind the update",
          "[predict]") {
  const Job job = {.layers = kM, .batch_per_rank = 64, .world_size = 4, .optimizer = "adam"};
  const StepPrediction plain = predict_from_rates(job, round_rates());
  Job compressed = job;
  compressed.gradients.compression = "fp16";
  const StepPrediction half = predict_from_rates(compressed, round_rates());
  CHECK(near(half.sent_bytes, plain.sent_bytes / 2));
  CHECK(near(half.times.communication, plain.times.communication / 2));
  CHECK(half.times.exposed < plain.times.exposed);

  Job sharded = job;
  sharded.gradients.shard_optimizer = true;
  const StepPrediction divided = predict_from_rates(sharded, round_rates());
  CHECK(near(divided.sent_bytes, plain.sent_bytes));
  CHECK(near(divided.times.communication, plain.times.communication));
  CHECK(divided.times.exposed >= plain.times.communication / 2);
  CHECK(std::abs(divided.times.update / plain.times.update - 0.25) < 0.001);
}

TEST_CASE("gradients travel compressed, the weights that are gathered do not", "[predict]") {
  Job job = {.layers = kM, .batch_per_rank = 64, .world_size = 4};
  const StepPrediction plain = predict_from_rates(job, round_rates());
  job.gradients = {.compression = "bf16", .shard_optimizer = true};
  const StepPrediction both = predict_from_rates(job, round_rates());
  CHECK(near(both.sent_bytes, 0.75 * plain.sent_bytes));
  CHECK(near(both.times.communication, 0.75 * plain.times.communication));
}

TEST_CASE("an update works on what the optimizer keeps too", "[predict]") {
  const auto parameters = static_cast<std::int64_t>(parameter_bytes(kM));
  Rates rates = round_rates();
  rates.memory = {{0, 20.0}, {3 * parameters, 10.0}};  // a cache, and what lies behind it
  Job job = {.layers = kM, .batch_per_rank = 64};
  CHECK(near(predict_from_rates(job, rates).times.update, 12.0 * 669706 / 2e7));
  job.optimizer = "adam";
  CHECK(near(predict_from_rates(job, rates).times.update, 28.0 * 669706 / 1e7));
}

TEST_CASE("below a batch communication bounds the step, from it on something else", "[predict]") {
  for (const int ranks : {2, 8, 64}) {
    for (const double gbps : {0.125, 1.25, 12.5}) {
      CAPTURE(ranks, gbps);
      Job job = {.layers = kM, .batch_per_rank = 64, .world_size = ranks};
      const Rates rates = round_rates(25, gbps);
      const StepPrediction prediction = predict_from_rates(job, rates);
      REQUIRE(prediction.least_batch);
      CHECK((prediction.bound == "communication") == (64 < *prediction.least_batch));
      job.batch_per_rank = *prediction.least_batch;
      CHECK(predict_from_rates(job, rates).bound != "communication");
      if (--job.batch_per_rank > 0) {
        CHECK(predict_from_rates(job, rates).bound == "communication");
      }
    }
  }
  // No batch outweighs a second's latency, up to a million samples of this model.
  const Job tutorial = {.layers = {20, 1}, .batch_per_rank = 32};
  CHECK_FALSE(predict_from_rates(tutorial, round_rates(1e6)).least_batch);
}

TEST_CASE("a step of one sample is bound by memory", "[predict]") {
  const Job job = {.layers = kM, .batch_per_rank = 1, .world_size = 1};
  const StepPrediction prediction = predict_from_rates(job, round_rates());
  CHECK(prediction.bound == "memory");
  CHECK(
      near(prediction.times.forward + prediction.times.backward, prediction.times.weight_traffic));
}

TEST_CASE("weak scaling adds samples, strong scaling divides them", "[predict]") {
  Job job = {.layers = kM, .batch_per_rank = 64, .world_size = 4};
  const Rates rates = round_rates();
  const StepPrediction weak = predict_from_rates(job, rates);
  CHECK(near(weak.speedup, 4 * weak.one_rank_step_ms / weak.times.step));
  job.world_size = 1;
  CHECK(near(weak.one_rank_step_ms, predict_from_rates(job, rates).times.step));

  job = {.layers = kM, .batch_per_rank = 16, .world_size = 4, .scaling = "strong"};
  const StepPrediction strong = predict_from_rates(job, rates);
  CHECK(near(strong.speedup, strong.one_rank_step_ms / strong.times.step));
  CHECK(near(strong.one_rank_step_ms, weak.one_rank_step_ms));
}

TEST_CASE("a network that was measured with other ranks is refused", "[predict]") {
  Rates rates = round_rates();
  rates.network.algorithm = std::nullopt;
  rates.network.world_sizes = {2};
  Job job = {.layers = kM, .batch_per_rank = 64, .world_size = 2};
  CHECK(predict_from_rates(job, rates).times.communication > 0);
  job.world_size = 4;
  CHECK_THROWS_AS(predict_from_rates(job, rates), ddp::UsageError);
}

TEST_CASE("bench predict needs no stage, and refuses what it cannot predict", "[predict]") {
  const Words job = {"predict", "--layers", "784,512,512,10", "--batch", "64"};
  const auto with = [&job](const Words& more) {
    Words all = job;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto predicted = run_bench(with({"--ranks", "4", "--network", "10,1", "--json"}));
  REQUIRE(predicted.exit_code == 0);
  CHECK(nlohmann::json::parse(predicted.out).at("world_size") == 4);
  CHECK(contains(run_bench(with({"--ranks", "1"})).out, "bound by arithmetic"));
  CHECK(contains(run_bench({"--help"}).out, "bench predict"));

  struct Case {
    Words arguments;
    const char* error;
  };
  const std::vector<Case> cases = {
      {{"predict"}, "--layers is missing, expected e.g. --layers 784,512,512,10 --batch 64"},
      {{"predict", "--layers", "20,1"}, "--batch is missing"},
      {{"predict", "--layers", "20", "--batch", "1"}, "--layers: got \"20\", expected at least 2"},
      {{"predict", "--layers", "20,x", "--batch", "1"}, "--layers: got \"x\""},
      {{"predict", "--layers", "20,0", "--batch", "1"}, "--layers: got \"0\""},
      {{"predict", "--layers", "20,1", "--batch", "0"}, "--batch: got \"0\""},
      {job, "--ranks 2: nothing says how fast they communicate, expected --network ALPHA_US,GBPS"},
      {with({"--ranks", "0"}), "--ranks: got \"0\", expected an integer from 1"},
      {with({"--ranks", "3", "--scaling", "strong", "--network", "1,1"}),
       "--batch 64: 3 ranks cannot divide it, expected a multiple of 3"},
      {with({"--scaling", "sideways"}), "--scaling: got \"sideways\", expected weak or strong"},
      {with({"--optimizer", "lion"}), "--optimizer: got \"lion\", expected sgd, momentum"},
      {with({"--network", "5"}), "--network: expected ALPHA_US,GBPS, as in 2.5,25, got \"5\""},
      {with({"--network", "1,nan"}), "--network: got \"nan\", expected a finite number > 0"},
      {with({"--network", "1,1", "--gflops", "0"}), "--gflops: got \"0\""},
      {with({"--network", "1,1", "--gflops", "3e-308"}), "with which a step never ends"},
      {with({"--algorithm", "tree"}), "--algorithm: it is of a network that is stated"},
      {with({"--run", "M/weak/01_single_gpu/ranks:1"}), "--run: it is of a report, expected"},
      {with({"--backend", "shm"}), "--backend: it is of a report, expected --report FILE too"},
      {with({"--report", "none.json"}), "none.json: cannot be read"},
      {with({"--report", "/proc/self/status"}), "/proc/self/status:1: not JSON"},
      {with({"--rank", "2"}), "unknown option \"--rank\", did you mean --ranks?"},
      {with({"--batch", "32"}), "--batch was given twice"},
      {with({"--json=x"}), "--json: got the value \"x\", expected none"},
      {with({"extra"}), "extra"},
  };
  for (const Case& bad : cases) {
    CAPTURE(bad.arguments);
    const auto result = run_bench(bad.arguments);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(contains(result.err, bad.error));
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  }
}

}  // namespace
