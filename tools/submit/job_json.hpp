// tools/submit/job_json.hpp - jobs as JSON, in the state file and for `submit list --json`.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/submit/job.hpp"

namespace ddp::submit {

nlohmann::ordered_json to_json(const JobRequest& request);
/// @throws nlohmann::json::exception or UsageError if something is missing or of another type
JobRequest request_from_json(const nlohmann::json& json);

}  // namespace ddp::submit
