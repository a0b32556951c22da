// simulator/targets.hpp - "step_us <= 900": what a simulated run must keep.
#pragma once

#include <string>

namespace ddp::sim {

struct Simulation;

/// A number of a finished run.
struct Quantity {
  const char* name;
  double (*of)(const Simulation& simulation);
};

struct Target {
  Quantity quantity;
  std::string relation;  ///< "<=", ">=" or "=="
  double bound;

  bool is_met(const Simulation& simulation) const;
  /// "step_us <= 900"
  std::string text() const;
};

Target operator<=(const Quantity& quantity, double bound);
Target operator>=(const Quantity& quantity, double bound);
/// To a millionth of a millionth: a sum in another order rounds otherwise.
Target operator==(const Quantity& quantity, double bound);

extern const Quantity step_us;  ///< when the last rank has ended
extern const Quantity waited_us;  ///< of the rank that waited longest, for what nothing hid
extern const Quantity peak_bytes;  ///< of memory, of the rank that had most
extern const Quantity messages;  ///< of the rank that sent most
extern const Quantity sent_bytes;  ///< likewise

}  // namespace ddp::sim
