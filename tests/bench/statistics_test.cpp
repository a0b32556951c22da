// Medians, percentiles, intervals and the parity check, also with too few values and with NaN.
#include "bench/statistics.hpp"

#include <limits>
#include <numeric>

#include "tests/support/catch.hpp"

namespace {

using namespace ddp;
using namespace ddp::bench;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> one_to(int n) {
  std::vector<double> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), 1.0);
  return values;
}

TEST_CASE("percentiles interpolate between the closest ranks, in any order") {
  CHECK(percentile({4, 1, 3, 2}, 0.5) == 2.5);
  CHECK(percentile(one_to(11), 0.10) == 2.0);
  CHECK(percentile(one_to(11), 0.95).value() == Approx(10.5));
  CHECK(percentile({7}, 0.9) == 7.0);
  CHECK(percentile({7, 9}, 0.0) == 7.0);
  CHECK(percentile({7, 9}, 1.0) == 9.0);
  CHECK_FALSE(percentile({}, 0.5));
}

TEST_CASE("fewer than five samples have a median but no spread") {
  CHECK(summarize({}).n == 0);
  CHECK_FALSE(summarize({}).median);
  for (const int n : {1, 2, 3, 4}) {
    CAPTURE(n);
    const Distribution few = summarize(one_to(n));
    CHECK(few.n == static_cast<std::size_t>(n));
    CHECK(few.median == (n + 1) / 2.0);
    CHECK_FALSE(few.p10);
    CHECK_FALSE(few.p90);
  }
  const Distribution enough = summarize(one_to(5));
  CHECK(enough.median == 3.0);
  CHECK(enough.p10.value() == Approx(1.4));
  CHECK(enough.p90.value() == Approx(4.6));
}

TEST_CASE("one sample that is not finite leaves nothing but the count") {
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

TEST_CASE("the estimate of pairs is the median of their means, its interval that of signed ranks") {
  for (const int n : {0, 1, 5}) {
    const auto few = paired_difference(one_to(n));
    CHECK(few.has_value() == (n > 0));
    CHECK_FALSE((few && few->ci95));
  }
  // With six values the 95 % interval is the range: 2 / 2^6 lies beyond.
  const PairedEstimate six = paired_difference({1, 2, 4, 8, 16, 32}).value();
  CHECK(six.ci95->low == 1);
  CHECK(six.ci95->high == 32);
  // Of nine values 5 of the 45 means are left out on each side, of fifteen 25 of the 120 means, as
  // in tables of the test.
  for (const auto& [n, low] : {std::pair(9, 2.5), std::pair(15, 5.5)}) {
    const PairedEstimate estimate = paired_difference(one_to(n)).value();
    CHECK(estimate.value == (n + 1) / 2.0);
    CHECK(estimate.ci95->low == low);
    CHECK(estimate.ci95->high == n + 1 - low);
  }
  const PairedEstimate ratio = paired_ratio({0.5, 2, 1, 0.5, 2, 1, 4, 0.25}).value();
  CHECK(ratio.value == Approx(1));
  CHECK(ratio.ci95->low * ratio.ci95->high == Approx(1));
  for (const double bad : {kNan, kInfinity, 0.0, -1.0}) {
    CHECK_FALSE(paired_ratio({1, 2, 3, bad, 5, 6, 7}));
  }
}

TEST_CASE("parity holds within 1e-4 of the reference and never for NaN") {
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

TEST_CASE("losses agree within 1e-5 in the first 20 steps, and never for NaN") {
  const std::vector<double> ones(25, 1.0);
  for (const auto& [step, loss, agrees] :
       {std::tuple(3U, 1.000009, true), std::tuple(3U, 1.000011, false),
        std::tuple(3U, 0.999989, false), std::tuple(19U, 2.0, false), std::tuple(20U, 2.0, true),
        std::tuple(3U, std::numeric_limits<double>::quiet_NaN(), false)}) {
    CAPTURE(step, loss);
    std::vector<double> losses = ones;
    losses[step] = loss;
    const LossDifference found = compare_losses(losses, ones);
    CHECK((found.largest <= kLossTolerance) == agrees);
    CHECK((agrees || found.step == step));
  }
  CHECK(compare_losses({0, 1}, {0}).largest == 0);  // as many as both have
  CHECK(compare_losses({0}, {0, 1}).largest == 0);
}

}  // namespace
