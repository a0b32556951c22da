#include "simulator/targets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "simulator/simulator.hpp"

namespace ddp::sim {
namespace {

template <typename Number>
double largest(const Simulation& simulation, const Number& number) {
  double result = 0;
  for (const RankRecord& rank : simulation.ranks) {
    result = std::max(result, static_cast<double>(number(rank)));
  }
  return result;
}

}  // namespace

const Quantity step_us{"step_us", [](const Simulation& simulation) {
                         return largest(simulation, [](const auto& rank) { return rank.end_us; });
                       }};
const Quantity waited_us{"waited_us", [](const Simulation& simulation) {
                           return largest(simulation,
                                          [](const auto& rank) { return rank.waited_us(); });
                         }};
const Quantity peak_bytes{"peak_bytes", [](const Simulation& simulation) {
                            return largest(simulation,
                                           [](const auto& rank) { return rank.peak_bytes; });
                          }};
const Quantity messages{"messages", [](const Simulation& simulation) {
                          return largest(simulation,
                                         [](const auto& rank) { return rank.messages; });
                        }};
const Quantity sent_bytes{"sent_bytes", [](const Simulation& simulation) {
                            return largest(simulation,
                                           [](const auto& rank) { return rank.sent_bytes; });
                          }};

Target operator<=(const Quantity& quantity, double bound) {
  return {quantity, "<=", bound};
}
Target operator>=(const Quantity& quantity, double bound) {
  return {quantity, ">=", bound};
}
Target operator==(const Quantity& quantity, double bound) {
  return {quantity, "==", bound};
}

bool Target::is_met(const Simulation& simulation) const {
  constexpr double kRounding = 1e-12;
  const double value = quantity.of(simulation);
  const double rounding = kRounding * std::max(std::abs(value), std::abs(bound));
  if (relation == "<=") {
    return value <= bound + rounding;
  }
  if (relation == ">=") {
    return value >= bound - rounding;
  }
  return std::abs(value - bound) <= rounding;
}

std::string Target::text() const {
  return fmt::format("{} {} {:.12g}", quantity.name, relation, bound);
}

}  // namespace ddp::sim
