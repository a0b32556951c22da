// bench/judge.hpp - which differences are more than equal commands of this session differ by.
#pragma once

#include <optional>

#include "bench/record.hpp"

namespace ddp::bench {

/// The most that equal commands of the kind of `run` differed by, a factor >= 1: the farthest end
/// of the controls' intervals, of the same model, scaling and device. The kinds are one process on
/// one core, and several cores at work: ranks that wait for each other are disturbed far more.
/// @return nothing without a control that has an interval
std::optional<double> control_factor(const Report& report, const Run& run);

/// Sets `significant` of report.comparisons: the whole interval is farther from 1 than the control
/// factors of both runs. Without a control for each of them nothing is significant.
void judge(Report& report);

}  // namespace ddp::bench
