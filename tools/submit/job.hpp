// tools/submit/job.hpp - one job: what runs, what it asks for, and how far it has come.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/submit/settings.hpp"

namespace ddp::submit {

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
  bool single = true;  ///< not of a sweep: its submission file lies in out_dir itself
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
std::optional<JobState> parse_state(std::string_view name);

/// Nothing more will happen to it, so it may be submitted again.
bool is_over(JobState state);
/// Over, but not as wished. What the user cancelled is.
bool needs_resubmission(JobState state);

/// A job with what has happened to it.
struct Job {
  JobRequest request;
  JobState state = JobState::kPlanned;
  int attempt = 0;  ///< 0: never submitted
  std::string token;  ///< names this attempt to the scheduler: a job that carries it is this one
  std::string id;  ///< the scheduler's, of this attempt; empty: not known
  std::vector<std::string> earlier_ids;
  std::optional<int> exit_code;
  std::string reason;  ///< of the state, if there is one
  std::int64_t submitted_unix_s = 0;
};

}  // namespace ddp::submit
