// tools/submit/job.hpp - one job: what runs, what it asks for, and how far it has come.
#pragma once

#include <array>
#include <cstdint>
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
inline constexpr std::array<std::string_view, 3> kSchedulerNames = {"condor", "slurm", "local"};

inline std::string_view scheduler_name(Scheduler scheduler) {
  return kSchedulerNames.at(static_cast<std::size_t>(scheduler));
}

/// What is to be submitted. Never changes, so that a job can be submitted again.
struct JobRequest {
  int index = 0;  ///< number of the job in its out_dir, from 0
  std::string name;  ///< "lr-0.1_seed-1" in a sweep, else the program's name
  std::string folder;  ///< "jobs/0-lr-0.1_seed-1", below out_dir: where it runs and writes
  Scheduler scheduler = Scheduler::kCondor;
  std::vector<std::string> command;  ///< the program (or the launcher it needs) and its arguments
  std::int64_t processes_per_node = 1;  ///< that the scheduler starts
  bool several = false;  ///< the scheduler starts several processes that find each other
  bool single = true;  ///< not of a sweep: its submission file lies in out_dir too
  std::int64_t limit = 0;  ///< how many jobs of its sweep may run at once; 0: all
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
inline constexpr std::array<std::string_view, 10> kStateNames = {
    "planned", "maybe-submitted", "refused",   "pending", "running", "held",
    "done",    "failed",          "cancelled", "lost"};

inline std::string_view state_name(JobState state) {
  return kStateNames.at(static_cast<std::size_t>(state));
}

/// Over, but not as wished. What the user cancelled is.
inline bool needs_resubmission(JobState state) {
  return state == JobState::kPlanned || state == JobState::kRefused || state == JobState::kFailed ||
         state == JobState::kLost;
}

/// Nothing more will happen to it, so it may be submitted again.
inline bool is_over(JobState state) {
  return state == JobState::kDone || state == JobState::kCancelled || needs_resubmission(state);
}

/// What is known of a job by now.
struct Finding {
  JobState state = JobState::kPlanned;
  std::optional<int> exit_code = {};
  std::string reason = {};  ///< of the state, if there is one

  bool operator==(const Finding&) const = default;
};

/// One attempt to have a job run: alone, or with others of its sweep in one submission.
struct Attempt {
  int number = 0;  ///< 0: never submitted
  int plan = 0;  ///< number of the first job that was planned with it
  int batch = 0;  ///< number of its submission among those of that plan, from 1
  int position = 0;  ///< in that submission
  int count = 1;  ///< jobs of that submission
  std::string token;  ///< names the submission to the scheduler: jobs that carry it are these
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

/// Where what is submitted together has its files.
inline std::string array_folder(const std::string& out_dir, int plan, int batch) {
  return out_dir + "/arrays/" + std::to_string(plan) + "." + std::to_string(batch);
}

/// Where it runs and writes.
inline std::string job_folder(const JobRequest& job, const std::string& out_dir) {
  return out_dir + "/" + job.folder;
}

/// Standard output and the like of an attempt, in the job's folder: "job.out", of the second
/// attempt "job.2.out".
inline std::string attempt_file(int attempt, const std::string& extension) {
  return "job" + (attempt > 1 ? "." + std::to_string(attempt) : "") + extension;
}

}  // namespace ddp::submit
