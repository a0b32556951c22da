// Alpha and beta: recovered from points that are known to follow them, in spite of noise and of
// points far off, and nothing at all where there is too little.
#include "bench/report/communication_model.hpp"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/catch.hpp"

namespace {

using namespace ddp::bench;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kMib = 1024.0 * 1024.0;

/// Written out once more, not taken from the model.
double time_us(AllReduceAlgorithm algorithm, double alpha_us, double beta_us_per_mib, double bytes,
               int ranks) {
  const double n = ranks;
  return algorithm == AllReduceAlgorithm::kRing
             ? 2 * (n - 1) * alpha_us + 2 * (n - 1) / n * bytes / kMib * beta_us_per_mib
             : 2 * std::log2(n) * alpha_us + 2 * bytes / kMib * beta_us_per_mib;
}

AllReduceSample sample(std::int64_t bytes, int ranks, double median_us) {
  AllReduceSample result{"gloo", "cpu", ranks, bytes, {}};
  result.time_us.median = median_us;
  return result;
}

const std::vector<std::int64_t> kSweep = {4,     16,    64,     256,     1024,    4096,
                                          16384, 65536, 262144, 1 << 20, 1 << 22, 1 << 24};

/// Points of one or more regimes; `noise` is the standard deviation of the relative error.
std::vector<AllReduceSample> synthetic(AllReduceAlgorithm algorithm,
                                       const std::vector<AlphaBetaRegime>& regimes,
                                       const std::vector<int>& world_sizes, double noise = 0,
                                       unsigned seed = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(0, 1);
  std::vector<AllReduceSample> samples;
  for (const int ranks : world_sizes) {
    for (const std::int64_t bytes : kSweep) {
      const AlphaBetaRegime* regime = &regimes.front();
      for (const AlphaBetaRegime& next : regimes) {
        regime = bytes >= next.from_bytes ? &next : regime;
      }
      samples.push_back(sample(bytes, ranks,
                               time_us(algorithm, regime->alpha_us, regime->beta_us_per_mib,
                                       static_cast<double>(bytes), ranks) *
                                   (1 + noise * normal(engine))));
    }
  }
  return samples;
}

std::vector<CommunicationModel> fit_all(const std::vector<AllReduceSample>& samples) {
  return fit_communication_models(samples);
}

/// The only model.
CommunicationModel fit(const std::vector<AllReduceSample>& samples) {
  const std::vector<CommunicationModel> models = fit_all(samples);
  REQUIRE(models.size() == 1);
  return models[0];
}

TEST_CASE("known alpha and beta are recovered exactly, and which algorithm they are of",
          "[model]") {
  for (const auto algorithm : {AllReduceAlgorithm::kRing, AllReduceAlgorithm::kTree}) {
    for (const std::vector<int>& world_sizes :
         {std::vector<int>{2, 4}, std::vector<int>{2, 3, 8, 64}}) {
      for (const auto& [alpha_us, beta_us_per_mib] :
           {std::pair{75.0, 330.0}, std::pair{0.75, 85.0}, std::pair{40.0, 0.0},
            std::pair{0.0, 500.0}}) {
        CAPTURE(to_string(algorithm), world_sizes.size(), alpha_us, beta_us_per_mib);
        const CommunicationModel model =
            fit(synthetic(algorithm, {{0, alpha_us, beta_us_per_mib}}, world_sizes));
        CHECK(model.algorithm == algorithm);
        REQUIRE(model.regimes.size() == 1);
        CHECK(model.regimes[0].from_bytes == 0);
        CHECK(model.regimes[0].alpha_us == Approx(alpha_us).epsilon(1e-9).margin(1e-9));
        CHECK(model.regimes[0].beta_us_per_mib ==
              Approx(beta_us_per_mib).epsilon(1e-9).margin(1e-6));
        CHECK(model.worst_relative_error.value_or(kNan) <= 1e-9);
        CHECK(model.leave_one_out_error.has_value() == (world_sizes.size() > 2));
        CHECK(model.leave_one_out_error.value_or(0) <= 1e-9);
        CHECK(model.points == world_sizes.size() * kSweep.size());
        CHECK(model.world_sizes == world_sizes);
      }
    }
  }
}

TEST_CASE("one world size gives two numbers and no algorithm", "[model]") {
  const std::vector<AlphaBetaRegime> two = {{0, 75, 330}, {65536, 200, 1500}};
  for (const auto algorithm : {AllReduceAlgorithm::kRing, AllReduceAlgorithm::kTree}) {
    for (const int ranks : {2, 8}) {
      CAPTURE(to_string(algorithm), ranks);
      const CommunicationModel model = fit(synthetic(algorithm, {{0, 75, 330}}, {ranks}));
      CHECK_FALSE(model.algorithm);
      CHECK_FALSE(model.leave_one_out_error);
      REQUIRE(model.regimes.size() == 1);
      CHECK(model.regimes[0].alpha_us == Approx(time_us(algorithm, 75, 330, 0, ranks)));
      CHECK(model.predict_us(1e6, ranks).value_or(kNan) ==
            Approx(time_us(algorithm, 75, 330, 1e6, ranks)));
      // It knows nothing of others.
      CHECK_FALSE(model.predict_us(1e6, 2 * ranks));
      CHECK(model.predict_us(1e6, 1) == 0.0);
      CHECK(fit(synthetic(algorithm, two, {ranks})).regimes.size() == 1);
    }
  }
}

TEST_CASE("five percent of noise moves them little and makes no regimes", "[model]") {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    const CommunicationModel model =
        fit(synthetic(AllReduceAlgorithm::kRing, {{0, 75, 330}}, {2, 4}, 0.05, seed));
    REQUIRE(model.regimes.size() == 1);
    CHECK(model.algorithm == AllReduceAlgorithm::kRing);
    CHECK(model.regimes[0].alpha_us == Approx(75).epsilon(0.06));
    CHECK(model.regimes[0].beta_us_per_mib == Approx(330).epsilon(0.10));
    CHECK(model.median_relative_error > 0.005);
    CHECK(model.median_relative_error < 0.07);
    CHECK(model.worst_relative_error.value_or(0) > model.median_relative_error);
  }
}

TEST_CASE("ring and tree are both given where noise hides which it is", "[model]") {
  // At three and four ranks they differ by less than the times do.
  const auto samples = synthetic(AllReduceAlgorithm::kRing, {{0, 75, 330}}, {3, 4}, 0.5);
  const std::vector<CommunicationModel> models = fit_all(samples);
  REQUIRE(models.size() == 2);
  CHECK(models[0].algorithm != models[1].algorithm);
  CHECK(models[0].algorithm.has_value());
  CHECK(models[1].algorithm.has_value());
}

TEST_CASE("what a model says of a world size that it did not see is held against it", "[model]") {
  auto samples = synthetic(AllReduceAlgorithm::kRing, {{0, 75, 330}}, {2, 4, 8});
  for (AllReduceSample& sample : samples) {
    if (sample.world_size == 8) {  // there the ranks share their cores
      sample.time_us.median = 3 * *sample.time_us.median;
    }
  }
  const CommunicationModel model = fit_all(samples).at(0);
  // From 2 and 4 ranks, 8 would take a third of what they do; from 8 and another, that one more.
  CHECK(model.leave_one_out_error.value_or(0) >= 2.0 / 3 - 1e-9);
}

TEST_CASE("two regimes are found where they meet, three too", "[model]") {
  const std::vector<AlphaBetaRegime> two = {{0, 75, 330}, {65536, 200, 1500}};
  for (const double noise : {0.0, 0.03}) {
    CAPTURE(noise);
    const CommunicationModel model = fit(synthetic(AllReduceAlgorithm::kRing, two, {2, 4}, noise));
    REQUIRE(model.regimes.size() == 2);
    CHECK(model.regimes[0].from_bytes == 0);
    CHECK(model.regimes[1].from_bytes > 16384);
    CHECK(model.regimes[1].from_bytes <= 65536);
    CHECK(model.regimes[0].alpha_us == Approx(75).epsilon(0.05));
    CHECK(model.regimes[1].alpha_us == Approx(200).epsilon(0.15));
    CHECK(model.regimes[1].beta_us_per_mib == Approx(1500).epsilon(0.05));
    // Each regime's formula is used on its own side.
    CHECK(model.predict_us(16384, 2).value_or(kNan) ==
          Approx(time_us(AllReduceAlgorithm::kRing, 75, 330, 16384, 2)).epsilon(0.05));
    CHECK(model.predict_us(65536, 4).value_or(kNan) ==
          Approx(time_us(AllReduceAlgorithm::kRing, 200, 1500, 65536, 4)).epsilon(0.1));
  }
  const CommunicationModel three = fit(synthetic(
      AllReduceAlgorithm::kTree, {{0, 1, 50}, {1024, 9, 50}, {1 << 18, 90, 400}}, {2, 8}));
  CHECK(three.algorithm == AllReduceAlgorithm::kTree);
  REQUIRE(three.regimes.size() == 3);
  CHECK(three.regimes[1].alpha_us == Approx(9));
  CHECK(three.regimes[2].alpha_us == Approx(90));
}

TEST_CASE("a point far off moves nothing, whichever way", "[model]") {
  for (const double factor : {0.01, 0.2, 8.0, 1000.0}) {
    for (const std::size_t index : {std::size_t{0}, std::size_t{5}, std::size_t{11}}) {
      CAPTURE(factor, index);
      auto samples = synthetic(AllReduceAlgorithm::kRing, {{0, 75, 330}}, {2, 4});
      samples[index].time_us.median = *samples[index].time_us.median * factor;
      const CommunicationModel model = fit(samples);
      REQUIRE(model.regimes.size() == 1);
      CHECK(model.regimes[0].alpha_us == Approx(75).epsilon(1e-6));
      CHECK(model.regimes[0].beta_us_per_mib == Approx(330).epsilon(1e-6));
    }
  }
}

TEST_CASE("samples that say nothing are not used", "[model]") {
  auto samples = synthetic(AllReduceAlgorithm::kRing, {{0, 75, 330}}, {2});
  const std::size_t usable = samples.size();
  const double bad_us = GENERATE(kNan, std::numeric_limits<double>::infinity(), 0.0, -3.0);
  samples.push_back(sample(1024, 2, bad_us));
  samples.push_back(sample(0, 2, 100));
  samples.push_back(sample(1024, 1, 100));
  samples.push_back(sample(1024, 2, 100));
  samples.back().time_us.median.reset();
  const CommunicationModel model = fit(samples);
  CHECK(model.points == usable);
  CHECK(model.median_relative_error <= 1e-9);
  CHECK(model.regimes.front().alpha_us == Approx(150));
}

TEST_CASE("fewer than three usable samples are no model", "[model]") {
  const auto none = [](const std::vector<AllReduceSample>& samples) {
    return fit_all(samples).empty();
  };
  CHECK(none({}));
  CHECK(none({sample(4, 2, 100), sample(1024, 2, 110)}));
  CHECK(none({sample(4, 2, 100), sample(1024, 2, 110), sample(4096, 2, kNan)}));
  CHECK(none({sample(4, 1, 100), sample(1024, 1, 110), sample(4096, 1, 130)}));
  CHECK_FALSE(none({sample(4, 2, 100), sample(1024, 2, 110), sample(4096, 2, 130)}));
  // One size at three world sizes says something too, and all the same point nearly nothing.
  CHECK_FALSE(none({sample(1024, 2, 100), sample(1024, 4, 310), sample(1024, 8, 700)}));
  const CommunicationModel same = fit({sample(4, 2, 100), sample(4, 2, 100), sample(4, 2, 100)});
  CHECK(same.predict_us(4, 2).value_or(kNan) == Approx(100));
}

TEST_CASE("predictions follow the formulas at any number of ranks", "[model]") {
  for (const auto algorithm : {AllReduceAlgorithm::kRing, AllReduceAlgorithm::kTree}) {
    CAPTURE(to_string(algorithm));
    const CommunicationModel model = fit(synthetic(algorithm, {{0, 75, 330}}, {2, 4}));
    for (const int ranks : {2, 3, 8, 1024}) {
      for (const double bytes : {0.0, 4.0, 1e5, 2.5e7, 1e9}) {
        CAPTURE(ranks, bytes);
        CHECK(model.predict_us(bytes, ranks).value_or(kNan) ==
              Approx(time_us(algorithm, 75, 330, bytes, ranks)).epsilon(1e-9));
      }
    }
    CHECK(model.predict_us(1e6, 1) == 0.0);
    CHECK_FALSE(model.predict_us(1e6, 0));
    CHECK_FALSE(model.predict_us(-1, 2));
    CHECK_FALSE(model.predict_us(kNan, 2));
    CHECK_FALSE(model.predict_us(std::numeric_limits<double>::infinity(), 2));
  }
  CHECK_FALSE(CommunicationModel{}.predict_us(4, 2));
}

}  // namespace
