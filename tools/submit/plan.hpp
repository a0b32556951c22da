// tools/submit/plan.hpp - from settings and a sweep to the jobs that are to be submitted.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/submit/job.hpp"

namespace ddp::submit {

/// One option of the program and the values it takes in turn.
struct SweepAxis {
  std::string key;  ///< without dashes
  std::vector<std::string> values;
};

/// "lr=0.1,0.01"; a comma inside a value is written \, and a backslash \\.
/// @throws UsageError
SweepAxis parse_sweep(const std::string& text);

/// A choice of one value per axis, in the axes' order.
using SweepPoint = std::vector<std::pair<std::string, std::string>>;

/// All combinations; the last axis varies fastest. No axes: one empty point.
/// @throws UsageError if there are too many, or an axis is given twice
std::vector<SweepPoint> sweep_points(const std::vector<SweepAxis>& axes);

/// The jobs, ready to be written down and submitted.
/// @param gpus of --gpus: local jobs use just these
/// @param first_index number of the first job
/// @throws UsageError for what the scheduler or the program cannot do
std::vector<JobRequest> plan_jobs(const Settings& settings, Scheduler scheduler,
                                  const std::vector<SweepAxis>& sweep, const std::vector<int>& gpus,
                                  int first_index);

}  // namespace ddp::submit
