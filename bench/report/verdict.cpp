#include "bench/report/verdict.hpp"

#include <cmath>

namespace ddp::bench {

bool is_control_good(const std::optional<double>& ratio) {
  return ratio && std::abs(*ratio - 1) <= kControlTolerance;
}

std::optional<std::string> judge(const std::optional<Interval>& ci95, double even) {
  if (!ci95) {
    return std::nullopt;
  }
  if (ci95->low >= even * (1 - kControlTolerance) && ci95->high <= even * (1 + kControlTolerance)) {
    return "same";
  }
  if (ci95->high < even) {
    return "faster";
  }
  return ci95->low > even ? std::optional<std::string>("slower") : std::nullopt;
}

}  // namespace ddp::bench
