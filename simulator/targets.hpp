// simulator/targets.hpp - targets of a simulated run: "step_us <= 900".
#pragma once

#include <string>

namespace ddp::sim {

struct Quantity;
struct RankRecord;
struct Simulation;

struct Target {
  const Quantity& quantity;
  std::string relation;  ///< "<=", ">=" or "=="
  double bound;

  /// Compares with a tolerance of 1e-12, because sums in another order round differently.
  bool is_met(const Simulation& simulation) const;
  std::string text() const;  ///< "step_us <= 900"
};

/// Number of a finished run: the largest value of the ranks.
struct Quantity {
  const char* name;
  double (*of_rank)(const RankRecord& rank);

  double of(const Simulation& simulation) const;
  Target operator<=(double bound) const { return {*this, "<=", bound}; }
  Target operator>=(double bound) const { return {*this, ">=", bound}; }
  Target operator==(double bound) const { return {*this, "==", bound}; }
};

extern const Quantity step_us;  ///< end of the rank
extern const Quantity waited_us;  ///< time of the rank's waits
extern const Quantity messages;
extern const Quantity sent_bytes;

}  // namespace ddp::sim
