#include "simulator/targets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ranges>

#include "simulator/simulator.hpp"

namespace ddp::sim {

const Quantity step_us{"step_us", [](const RankRecord& rank) { return rank.end_us; }};
const Quantity waited_us{"waited_us", [](const RankRecord& rank) { return rank.waited_us; }};
const Quantity messages{"messages", [](const RankRecord& rank) { return rank.sent.messages; }};
const Quantity sent_bytes{"sent_bytes", [](const RankRecord& rank) { return rank.sent.bytes; }};

double Quantity::of(const Simulation& simulation) const {
  return std::ranges::max(simulation.ranks | std::views::transform(of_rank));
}

bool Target::is_met(const Simulation& simulation) const {
  const double value = quantity.of(simulation);
  const double rounding = 1e-12 * std::max(std::abs(value), std::abs(bound));
  return relation == "<="   ? value <= bound + rounding
         : relation == ">=" ? value >= bound - rounding
                            : std::abs(value - bound) <= rounding;
}

std::string Target::text() const {
  return fmt::format("{} {} {:.12g}", quantity.name, relation, bound);
}

}  // namespace ddp::sim
