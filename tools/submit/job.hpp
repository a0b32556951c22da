// tools/submit/job.hpp - one job: what runs, what it asks for, and how far it has come.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "tools/submit/settings.hpp"

namespace ddp::submit {

/// The exit code with which a job asks to be started again.
inline constexpr int kAgain = static_cast<int>(ExitCode::kRunAgain);
/// Unless DDP_MAX_REQUEUES says otherwise. Many more than the 3 of slurm/*.sh, where somebody
/// watches: a job of weeks under a time limit of hours is to end without anybody's help.
inline constexpr int kMostRestarts = 1000;

enum class Scheduler { kCondor, kSlurm, kLocal };

std::string_view scheduler_name(Scheduler scheduler);
/// @throws UsageError starting with `name`
Scheduler parse_scheduler(const std::string& name, const std::string& text);

/// What is to be submitted. Never changes, so that a job can be submitted again.
struct JobRequest {
  int index = 0;  ///< number of the job in its out_dir, from 0
  std::string name;  ///< "lr-0.1_seed-1" in a sweep, else the program's name
  std::string folder;  ///< "jobs/0-lr-0.1_seed-1", below out_dir: where it runs and writes
  Scheduler scheduler = Scheduler::kCondor;
  std::vector<std::string> command;  ///< the program (or the launcher it needs) and its arguments
  int processes_per_node = 1;  ///< that the scheduler starts
  bool several = false;  ///< the scheduler starts several processes that find each other
  bool single = true;  ///< not of a sweep: its submission file lies in out_dir too
  Resources resources;
};

/// How far a job has come, as far as is known here.
enum class JobState {
  kPlanned,  ///< part of a sweep whose turn has not come
  kSubmitting,  ///< the scheduler was asked to take it; whether it did is not recorded
  kRefused,  ///< the scheduler did not take it
  kPending,
  kRunning,
  kHeld,
  kDone,
  kFailed,
  kCancelled,
  kLost,  ///< was submitted, but the scheduler knows nothing of it any more
};

std::string_view state_name(JobState state);

/// Nothing more will happen to it, so it may be submitted again.
bool is_over(JobState state);
/// Over, but not as wished. What the user cancelled is.
bool needs_resubmission(JobState state);

/// What is known of a job by now.
struct Finding {
  JobState state = JobState::kPlanned;
  std::optional<int> exit_code;
  std::string reason;  ///< of the state, if there is one

  bool operator==(const Finding&) const = default;
};

/// One attempt to have a job run.
struct Attempt {
  int number = 0;  ///< 0: never submitted
  std::string token;  ///< names this attempt to the scheduler: a job that carries it is this one
  std::string machine;  ///< whose submit hands it over, or runs it
  std::string id;  ///< the scheduler's; empty: not known
  std::vector<std::string> earlier_ids;
  std::int64_t submitted_unix_s = 0;
  Finding finding;

  bool operator==(const Attempt&) const = default;
};

struct Job {
  JobRequest request;
  Attempt attempt;  ///< the latest

  JobState state() const { return attempt.finding.state; }
};

/// For the state's files. What comes back is what was written.
nlohmann::ordered_json to_json(const JobRequest& request);
nlohmann::ordered_json to_json(const Attempt& attempt);
/// @throws nlohmann::json::exception or UsageError if something is missing or of another type
JobRequest request_from_json(const nlohmann::json& json);
Attempt attempt_from_json(const nlohmann::json& json);

}  // namespace ddp::submit
