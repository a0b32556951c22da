// tools/submit/handover.cpp - submissions, and what became of them.
#include "tools/submit/handover.hpp"

#include <ctime>
#include <set>

#include "tools/submit/scheduler.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

// A scheduler that is busy answers late; a job that it takes after all is found by its token.
constexpr double kSubmissionTimeout_s = 300;
// Where nobody can tell whether a submission is still under way: on another machine.
constexpr std::int64_t kSurelyOver_s = 900;
constexpr const char* kMadeBy = ", made by submit.";

/// Looks for a job whose submission is over and has no id.
/// @param refusal the reason if the scheduler does not have it
/// @return one line why the scheduler could not be asked: the state is as before
std::string look_for(State& state, int index, const std::string& refusal) {
  const Job& job = state.job(index);
  const Search search = cluster_scheduler(job.request.scheduler).find(job, state.out_dir());
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

/// In the out_dir, for its user.
std::string copy_path(const JobRequest& job, const std::string& out_dir) {
  return out_dir + "/" + cluster_scheduler(job.scheduler).file_name;
}

void write_submission_file(const Job& job, const std::string& out_dir) {
  const JobRequest& request = job.request;
  const std::string text = cluster_scheduler(request.scheduler)
                               .file_text(request, out_dir, job.attempt.number, job.attempt.token);
  make_folders(out_dir + "/" + request.folder);
  replace_file(submission_path(request, out_dir), text);
  if (request.single) {
    check_submission_file(request, out_dir);
    replace_file(copy_path(request, out_dir), text);
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
                               : fmt::format("it is {} by now", state_name(now.state()));
}

std::string submit_job(State& state, int index) {
  std::optional<Presence> presence;
  std::string left_out = take(state, index, {JobState::kSubmitting}, "", presence);
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
  const ClusterScheduler& scheduler = cluster_scheduler(request.scheduler);
  std::vector<std::string> command = scheduler.submit_command;
  command.push_back(submission_path(request, state.out_dir()));
  const CommandResult result = run_command(command, state.out_dir() + "/" + request.folder,
                                           kSubmissionTimeout_s, presence->fd());
  const std::optional<std::string> id = scheduler.parse_id(result.out);
  if (result.ok() && id) {
    state.submitted(index, *id);
    return "";
  }
  const std::string what = !result.ok() ? result.failure
                                        : fmt::format("{} printed {}, expected the job's id alone",
                                                      command.front(), quote_bytes(result.out));
  if (!result.started) {
    state.update(index, {JobState::kRefused, std::nullopt, what});
    throw UsageError(what + ", expected a machine where jobs can be submitted");
  }
  // "Socket timed out" and the like may come although the job was taken.
  const std::string unreachable = look_for(state, index, what);
  if (!unreachable.empty()) {
    throw TransientError(fmt::format(
        "{}; whether job {} was submitted is not known ({}), `submit status` asks again", what,
        index, unreachable));
  }
  if (state.job(index).state() == JobState::kRefused) {
    throw Error(ExitCode::kTrainingFailed, what);
  }
  return "";
}

std::vector<std::string> refresh(State& state) {
  std::set<std::string> unreachable;
  std::vector<const Job*> open[kSchedulerNames.size()];
  for (const Job& job : state.jobs()) {
    if (job.state() == JobState::kSubmitting) {
      unreachable.insert(settle(state, job.request.index));
    }
    if (!is_over(job.state()) && job.state() != JobState::kSubmitting) {
      open[static_cast<std::size_t>(job.request.scheduler)].push_back(&job);
    }
  }
  for (const Scheduler scheduler : {Scheduler::kCondor, Scheduler::kSlurm}) {
    const std::vector<const Job*>& jobs = open[static_cast<std::size_t>(scheduler)];
    if (!jobs.empty()) {
      const Answer answer = cluster_scheduler(scheduler).ask(jobs, state.out_dir());
      for (const auto& [index, finding] : answer.findings) {
        state.update(index, finding);
      }
      unreachable.insert(answer.unreachable);
    }
  }
  for (const Job* const job : open[static_cast<std::size_t>(Scheduler::kLocal)]) {
    if (is_present(job->attempt.token, job->attempt.machine) == false) {
      state.update(job->request.index,
                   {JobState::kLost, std::nullopt, "submit was ended while it ran"});
    }
  }
  unreachable.erase("");
  return {unreachable.begin(), unreachable.end()};
}

std::string submission_path(const JobRequest& job, const std::string& out_dir) {
  return out_dir + "/" + job.folder + "/" + cluster_scheduler(job.scheduler).file_name;
}

void check_submission_file(const JobRequest& job, const std::string& out_dir) {
  const std::string path = copy_path(job, out_dir);
  const std::optional<std::string> text = read_text(path);
  if (job.single && text && text->find(kMadeBy) == std::string::npos) {
    refuse("{} is there and was not made by submit, expected another out_dir", quote_path(path));
  }
}

}  // namespace ddp::submit
