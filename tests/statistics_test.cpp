// Medians, percentiles, intervals and the parity check, fed with too little and with NaN.
#include "bench/report/statistics.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "tests/catch.hpp"
#include "tests/support/report_documents.hpp"

namespace {

using namespace ddp::bench;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> one_to(int n) {
  std::vector<double> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), 1.0);
  return values;
}

bool is_near(std::optional<double> value, double expected) {
  return value && std::abs(*value - expected) <= 1e-12;
}

TEST_CASE("percentiles interpolate between the closest ranks, in any order", "[statistics]") {
  CHECK(percentile({4, 1, 3, 2}, 0.5) == 2.5);
  CHECK(percentile(one_to(11), 0.10) == 2.0);
  CHECK(is_near(percentile(one_to(11), 0.95), 10.5));
  CHECK(percentile({7}, 0.9) == 7.0);
  CHECK(percentile({7, 9}, 0.0) == 7.0);
  CHECK(percentile({7, 9}, 1.0) == 9.0);
  CHECK_FALSE(percentile({}, 0.5));
}

TEST_CASE("fewer than five samples have a median but no spread", "[statistics]") {
  CHECK(summarize({}).n == 0);
  CHECK_FALSE(summarize({}).median);
  for (const int n : {1, 2, 3, 4}) {
    CAPTURE(n);
    const Distribution few = summarize(one_to(n));
    CHECK(few.n == static_cast<std::size_t>(n));
    CHECK(few.median == (n + 1) / 2.0);
    CHECK_FALSE(few.p10);
    CHECK_FALSE(few.p90);
    CHECK_FALSE(few.p95);
  }
  const Distribution enough = summarize(one_to(5));
  CHECK(enough.median == 3.0);
  CHECK(is_near(enough.p10, 1.4));
  CHECK(is_near(enough.p90, 4.6));
  CHECK(is_near(enough.p95, 4.8));
}

TEST_CASE("one sample that is not finite leaves nothing but the count", "[statistics]") {
  for (const double bad : {kNan, kInfinity, -kInfinity}) {
    CAPTURE(bad);
    std::vector<double> values = one_to(20);
    values[7] = bad;
    const Distribution result = summarize(values);
    CHECK(result.n == 20);
    CHECK_FALSE(result.median);
    CHECK_FALSE(result.p90);
    CHECK_FALSE(median(values));
    CHECK_FALSE(percentile(values, 0.1));
    CHECK_FALSE(paired_difference(values));
  }
}

TEST_CASE("the estimate of pairs is the median of their means, its interval that of signed ranks",
          "[statistics]") {
  for (const int n : {0, 1, 5}) {
    const auto few = paired_difference(one_to(n));
    CHECK(few.has_value() == (n > 0));
    CHECK_FALSE((few && few->ci95));
  }
  // Of six the 95 % interval is the range: 2 / 2^6 lies beyond.
  const PairedEstimate six = paired_difference({1, 2, 4, 8, 16, 32}).value();
  CHECK(six.ci95->low == 1);
  CHECK(six.ci95->high == 32);
  // Nine values: 5 of the 45 means are left out on each side, as tables of the test say.
  const PairedEstimate nine = paired_difference(one_to(9)).value();
  CHECK(nine.value == 5);
  CHECK(nine.ci95->low == 2.5);
  CHECK(nine.ci95->high == 7.5);
  const PairedEstimate ratio = paired_ratio({0.5, 2, 1, 0.5, 2, 1, 4, 0.25}).value();
  CHECK(ratio.value == Approx(1));
  CHECK(ratio.ci95->low * ratio.ci95->high == Approx(1));
  for (const double bad : {kNan, kInfinity, 0.0, -1.0}) {
    CHECK_FALSE(paired_ratio({1, 2, 3, bad, 5, 6, 7}));
  }
}

/// How often of 1,000 times the interval of `n` pairs holds the truth, 0. @param draw one
/// difference
template <typename Draw>
int times_covered(int n, Draw draw) {
  int covered = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    std::vector<double> differences(static_cast<std::size_t>(n));
    for (int block = 0; block < n; ++block) {
      differences[static_cast<std::size_t>(block)] = draw(block);
    }
    const Interval ci95 = paired_difference(differences).value().ci95.value();
    covered += ci95.low <= 0 && 0 <= ci95.high ? 1 : 0;
  }
  return covered;
}

TEST_CASE("the interval of pairs holds the truth as often as it says", "[statistics]") {
  ddp::test::NormalNoise normal(7);
  std::uint32_t state = 12345;  // the same numbers on every platform
  const auto is_slow = [&state] {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % 6 == 0;
  };
  for (const int n : {6, 9, 15}) {
    CAPTURE(n);
    CHECK(times_covered(n, [&](int) { return normal(); }) >= 935);
    // One launch in six of either command is slow, by up to a factor of two.
    CHECK(times_covered(n, [&](int) {
            const double a = is_slow() ? 0.7 : 0;
            const double b = is_slow() ? 0.7 : 0;
            return a - b + 0.05 * normal();
          }) >= 935);
    // The machine grows slower from block to block, which both feel alike, and the order in a
    // block is drawn.
    CHECK(times_covered(n, [&](int block) {
            const double drift = 0.02 * block;
            return (is_slow() ? drift : 0) - (is_slow() ? drift : 0) + 0.05 * normal();
          }) >= 935);
  }
}

TEST_CASE("Student's t is that of the tables", "[statistics]") {
  for (const auto& [degrees_of_freedom, t] :
       {std::pair(1.0, 12.7062), std::pair(2.0, 4.3027), std::pair(4.0, 2.7764),
        std::pair(8.0, 2.3060), std::pair(18.0, 2.1009), std::pair(100.0, 1.9840)}) {
    CAPTURE(degrees_of_freedom);
    CHECK(std::abs(student_t95(degrees_of_freedom) - t) < 2e-4);
  }
  CHECK(student_t95(2.5) < student_t95(2));
  CHECK(student_t95(2.5) > student_t95(3));
}

TEST_CASE("Welch's interval of a ratio is that of the formula", "[statistics]") {
  // Logarithms -1, 0, 1 against 1, 2, 3: both variances are 1, so 4 degrees of freedom.
  const std::vector<double> a = {std::exp(-1), 1, std::exp(1)};
  const std::vector<double> b = {std::exp(1), std::exp(2), std::exp(3)};
  const double half = 2.77645 * std::sqrt(2.0 / 3);
  const Interval interval = welch_ratio_ci95(a, b).value();
  CHECK(std::log(interval.low) == Approx(2 - half).epsilon(1e-4));
  CHECK(std::log(interval.high) == Approx(2 + half).epsilon(1e-4));
  const Interval wider = welch_ratio_ci95(a, b, 1).value();
  CHECK(std::log(wider.high) == Approx(2 + std::hypot(half, 1.96)).epsilon(1e-4));

  // The other way round it is the inverse, whatever the unit.
  const Interval inverse = welch_ratio_ci95(b, {1e3 * a[0], 1e3 * a[1], 1e3 * a[2]}).value();
  CHECK(inverse.low * interval.high == Approx(1e3));
  CHECK(inverse.high * interval.low == Approx(1e3));
}

TEST_CASE("Welch's interval needs three positive numbers on each side", "[statistics]") {
  CHECK_FALSE(welch_ratio_ci95({1, 2}, {1, 2, 3}));
  CHECK_FALSE(welch_ratio_ci95({1, 2, 3}, {1, 2}));
  CHECK_FALSE(welch_ratio_ci95({}, {}));
  for (const double bad : {kNan, kInfinity, 0.0, -1.0}) {
    CHECK_FALSE(welch_ratio_ci95({1, 2, bad}, {1, 2, 3}));
    CHECK_FALSE(welch_ratio_ci95({1, 2, 3}, {bad, 2, 3}));
  }
  const Interval exact = welch_ratio_ci95({2, 2, 2}, {3, 3, 3}).value();
  CHECK(exact.low == Approx(1.5));
  CHECK(exact.high == Approx(1.5));
  // One constant side: the degrees of freedom are those of the other.
  CHECK(welch_ratio_ci95({2, 2, 2}, {3, 4, 5}));
}

TEST_CASE("the samples around the median leave out as many low ones as high ones", "[statistics]") {
  CHECK(around_median({}).empty());
  CHECK(around_median({5}).size() == 1);
  CHECK(around_median(one_to(5)).size() == 5);
  std::vector<double> values = {100, 1, 50, 2, 3, 4, 0, 60, 5};
  double sum = 0;
  for (const std::size_t index : around_median(values)) {
    sum += values[index];
  }
  CHECK(around_median(values).size() == 5);
  CHECK(sum == 2 + 3 + 4 + 5 + 50);
  const auto many = around_median(one_to(101));
  CHECK(many.size() == 11);
  CHECK(many.front() == 45);
  CHECK(many.back() == 55);
}

TEST_CASE("parity holds within 1e-4 of the reference and never for NaN", "[statistics]") {
  for (const auto& [moved, reference] : {std::pair(1.0, 1.0), std::pair(1.00009, 1.0),
                                         std::pair(0.99991, 1.0), std::pair(0.0, 0.0)}) {
    CAPTURE(moved, reference);
    CHECK(parity_holds(moved, reference));
  }
  for (const auto& [moved, reference] :
       {std::pair(1.0002, 1.0), std::pair(-1.0, 1.0), std::pair(1e-9, 0.0), std::pair(kNan, 1.0),
        std::pair(1.0, kNan), std::pair(kNan, kNan), std::pair(kInfinity, 1.0),
        std::pair(kInfinity, kInfinity)}) {
    CAPTURE(moved, reference);
    CHECK_FALSE(parity_holds(moved, reference));
  }
}

}  // namespace
