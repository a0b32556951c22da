// tools/submit/handover.cpp - submissions, and what became of them.
#include "tools/submit/handover.hpp"

#include <ctime>
#include <set>

#include "common/base/exit_codes.hpp"
#include "tools/submit/files.hpp"
#include "tools/submit/process.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/submission_file.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

// A scheduler that is busy answers late; a job that it takes after all is found by its token.
constexpr double kSubmissionTimeout_s = 300;
// Where nobody can tell whether a submission is still under way: on another machine.
constexpr std::int64_t kSurelyOver_s = 900;
constexpr const char* kMadeBy = ", made by submit.";

Search find_in_scheduler(const Job& job, const std::string& out_dir) {
  return job.request.scheduler == Scheduler::kSlurm ? find_in_slurm(job, out_dir)
                                                    : find_in_condor(job, out_dir);
}

/// Looks for a job whose submission is over and has no id.
/// @param refusal the reason if the scheduler does not have it
/// @return one line why the scheduler could not be asked: the state is as before
std::string look_for(State& state, int index, const std::string& refusal) {
  const Search search = find_in_scheduler(state.job(index), state.out_dir());
  if (!search.id.empty()) {
    state.submitted(index, search.id);
    return "";
  }
  if (search.unreachable.empty()) {
    state.update(index, {JobState::kRefused, std::nullopt, refusal});
  }
  return search.unreachable;
}

/// The same for a submission that may be another process's.
std::string settle(State& state, int index) {
  const Attempt& attempt = state.job(index).attempt;
  const std::optional<bool> is_under_way = is_present(attempt.token, attempt.machine);
  if (is_under_way.value_or(std::time(nullptr) - attempt.submitted_unix_s < kSurelyOver_s)) {
    return "";
  }
  // It may have ended well just now.
  if (state.read_again(index).state() != JobState::kSubmitting) {
    return "";
  }
  return look_for(state, index, "submit was ended before the scheduler had it");
}

void write_submission_file(const Job& job, const std::string& out_dir) {
  const JobRequest& request = job.request;
  const std::string text = submission_text(request, out_dir, job.attempt.number, job.attempt.token);
  make_folders(out_dir + "/" + request.folder);
  replace_file(submission_path(request, out_dir), text);
  if (request.single) {
    check_submission_file(request, out_dir);
    replace_file(out_dir + "/" + submission_name(request), text);
  }
}

void refresh_local(State& state, const std::vector<const Job*>& jobs) {
  for (const Job* const job : jobs) {
    if (is_present(job->attempt.token, job->attempt.machine) == false) {
      state.update(job->request.index,
                   {JobState::kLost, std::nullopt, "submit was ended while it ran"});
    }
  }
}

}  // namespace

std::string take(State& state, int index, const Finding& finding, const std::string& id,
                 std::optional<Presence>& presence) {
  const Attempt before = state.job(index).attempt;
  if (before.number > 0 && is_present(before.token, before.machine) == true) {
    return "its last start has not ended yet";
  }
  presence.emplace(state.token(index, before.number + 1));
  if (presence->is_ours() && state.begin(index, finding, id)) {
    return "";
  }
  const Job& now = state.read_again(index);
  return now.attempt == before ? "another submit begins it just now"
                               : "it is " + std::string(state_name(now.state())) + " by now";
}

std::string submit_job(State& state, int index) {
  std::optional<Presence> presence;
  std::string left_out =
      take(state, index, {JobState::kSubmitting, std::nullopt, ""}, "", presence);
  if (!left_out.empty()) {
    return left_out;
  }
  const JobRequest& request = state.job(index).request;
  try {
    write_submission_file(state.job(index), state.out_dir());
  } catch (const Error& error) {
    state.update(index, {JobState::kRefused, std::nullopt, error.what()});
    throw;
  }
  const std::vector<std::string> command = submission_command(request, state.out_dir());
  const CommandResult result = run_command(
      command, {state.out_dir() + "/" + request.folder, kSubmissionTimeout_s, presence->fd()});
  const std::optional<std::string> id = request.scheduler == Scheduler::kSlurm
                                            ? parse_slurm_id(result.out)
                                            : parse_condor_id(result.out);
  if (result.ok() && id) {
    state.submitted(index, *id);
    return "";
  }
  const std::string what = !result.ok() ? result.failure
                                        : command.front() + " printed " + quote_bytes(result.out) +
                                              ", expected the job's id alone";
  if (!result.started) {
    state.update(index, {JobState::kRefused, std::nullopt, what});
    throw UsageError(what + ", expected a machine where jobs can be submitted");
  }
  // "Socket timed out" and the like may come although the job was taken.
  const std::string unreachable = look_for(state, index, what);
  if (!unreachable.empty()) {
    throw TransientError(what + "; whether job " + std::to_string(index) +
                         " was submitted is not known (" + unreachable +
                         "), `submit status` asks again");
  }
  if (state.job(index).state() == JobState::kRefused) {
    throw Error(ExitCode::kTrainingFailed, what);
  }
  return "";
}

std::vector<std::string> refresh(State& state) {
  std::set<std::string> unreachable;
  for (std::size_t i = 0; i < state.jobs().size(); ++i) {
    if (state.jobs()[i].state() == JobState::kSubmitting) {
      unreachable.insert(settle(state, static_cast<int>(i)));
    }
  }
  for (const Scheduler scheduler : {Scheduler::kCondor, Scheduler::kSlurm, Scheduler::kLocal}) {
    std::vector<const Job*> jobs;
    for (const Job& job : state.jobs()) {
      const bool is_open = !is_over(job.state()) && job.state() != JobState::kSubmitting;
      if (is_open && job.request.scheduler == scheduler) {
        jobs.push_back(&job);
      }
    }
    if (scheduler == Scheduler::kLocal) {
      refresh_local(state, jobs);
    } else if (!jobs.empty()) {
      const Answer answer =
          (scheduler == Scheduler::kSlurm ? ask_slurm : ask_condor)(jobs, state.out_dir());
      for (const auto& [index, finding] : answer.findings) {
        state.update(index, finding);
      }
      unreachable.insert(answer.unreachable);
    }
  }
  unreachable.erase("");
  return {unreachable.begin(), unreachable.end()};
}

void check_submission_file(const JobRequest& job, const std::string& out_dir) {
  const std::string path = out_dir + "/" + submission_name(job);
  const std::optional<std::string> text = read_text(path);
  if (job.single && text && text->find(kMadeBy) == std::string::npos) {
    throw UsageError(quote_path(path) +
                     " is there and was not made by submit, expected another out_dir");
  }
}

}  // namespace ddp::submit
