// bench/report/analysis.hpp - what was measured, against the machine's limits and a model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/report/communication_model.hpp"
#include "bench/report/record.hpp"
#include "bench/report/step_cost.hpp"

namespace ddp::bench {

/// Fits the communication models to report.all_reduce and fills each run's floor, prediction and
/// bound, the extrapolations, and what these take for granted or why there are none.
/// @param network to extrapolate with, if it was stated
void analyse(Report& report, const std::optional<Network>& network);

/// What each of as many ranks can do, of those that were measured: at least what each of more can,
/// where a machine was slow while fewer were measured.
std::optional<Limit> limit_of(const Report& report, const std::string& device, int world_size);

/// The step without communication, and its all-reduces by the models of its backend, of which the
/// first fits the sweep best. Without a prediction at most the reason.
Prediction predict_step(const Report& report, const Run& run);

/// Over so many floors a step is overhead, whatever else there is.
inline constexpr double kAllOverhead = 20;

/// The largest part of the median step: "communication", which the rank waits for; "arithmetic" or
/// "memory", whichever part of the floor is larger; or "overhead", all the rest, and in any case
/// where the step takes more than kAllOverhead times its floor. Nothing if the parts are not known.
std::optional<std::string> bound_by(const Run& run);

/// Sentences without their full stops: how far the worst prediction is off, which steps have none
/// for what reason, and where the sweep was not steady.
std::vector<std::string> describe_predictions(const Report& report);

}  // namespace ddp::bench
