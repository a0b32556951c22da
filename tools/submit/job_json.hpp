// tools/submit/job_json.hpp - jobs as JSON, in the state file and for `submit list --json`.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/submit/job.hpp"

namespace ddp::submit {

/// The start of a value as JSON, in ASCII, for a message.
std::string shown(const nlohmann::json& value);

nlohmann::ordered_json to_json(const JobRequest& request);
/// @throws nlohmann::json::exception or UsageError if something is missing, of another type, or
/// nothing that plan_jobs() writes
JobRequest request_from_json(const nlohmann::json& json);

}  // namespace ddp::submit
