// simulator/targets.hpp - "step_us <= 900": what a simulated run must keep.
#pragma once

#include <string>

namespace ddp::sim {

struct RankRecord;
struct Simulation;

/// A number of a finished run, of the rank that has most.
struct Quantity {
  const char* name;
  double (*of_rank)(const RankRecord& rank);
  double of(const Simulation& simulation) const;
};

struct Target {
  Quantity quantity;
  std::string relation;  ///< "<=", ">=" or "=="
  double bound;

  /// To a millionth of a millionth: a sum in another order rounds otherwise.
  bool is_met(const Simulation& simulation) const;
  /// "step_us <= 900"
  std::string text() const;
};

Target operator<=(const Quantity& quantity, double bound);
Target operator>=(const Quantity& quantity, double bound);
Target operator==(const Quantity& quantity, double bound);

extern const Quantity step_us;  ///< when the rank has ended
extern const Quantity waited_us;  ///< for what nothing hid
extern const Quantity messages;
extern const Quantity sent_bytes;

}  // namespace ddp::sim
