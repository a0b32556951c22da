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

struct PlanOptions {
  Scheduler scheduler = Scheduler::kCondor;
  std::vector<SweepAxis> sweep;
  std::vector<int> gpus;  ///< --gpus: their number counts; local jobs use just these
  int first_index = 0;
  std::string torchrun;  ///< its path; empty: not there
};

/// The jobs, ready to be written down and submitted.
/// @throws UsageError for what the scheduler or the program cannot do
std::vector<JobRequest> plan_jobs(const Settings& settings, const PlanOptions& options);

}  // namespace ddp::submit
