#include "tools/submit/submission.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "common/base/exit_codes.hpp"
#include "tools/submit/command.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/submission_file.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

// A scheduler that is busy answers late; a job that it takes after all is found by its token.
constexpr double kSubmissionTimeout_s = 300;
constexpr const char* kMadeBy = ", made by submit.";

}  // namespace

void check_submission_file(const JobRequest& job, const std::string& out_dir) {
  const std::string path = submission_path(job, out_dir);
  const std::optional<std::string> text = read_text(path);
  if (text && text->find(kMadeBy) == std::string::npos) {
    throw UsageError(quote_path(path) +
                     " is there and was not made by submit, expected another out_dir");
  }
}

void replace_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new-" + std::to_string(getpid());
  const auto fail = [&] {
    const int error = errno;
    unlink(temporary.c_str());
    throw Error(ExitCode::kTrainingFailed,
                "cannot write " + quote_path(path) + ": " + std::generic_category().message(error));
  };
  const int fd =
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) {
    fail();
  }
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = write(fd, text.data() + done, text.size() - done);
    if (count < 0 && errno != EINTR) {
      const int error = errno;
      close(fd);
      errno = error;
      fail();
    }
    done += count < 0 ? 0 : static_cast<std::size_t>(count);
  }
  // On a shared file system other machines are to read it next.
  const bool synced = fsync(fd) == 0;
  if (close(fd) != 0 || !synced || std::rename(temporary.c_str(), path.c_str()) != 0) {
    fail();
  }
}

std::string submission_text(const JobRequest& job, const std::string& out_dir, int attempt,
                            const std::string& token) {
  return job.scheduler == Scheduler::kSlurm ? slurm_file(job, out_dir, attempt, token)
                                            : condor_file(job, out_dir, attempt, token);
}

std::string submission_text(const StateFile& state, int index) {
  const Job& job = state.job(index);
  return submission_text(job.request, state.out_dir(), job.attempt + 1,
                         state.token(index, job.attempt + 1));
}

void submit_job(StateFile& state, int index) {
  const JobRequest request = state.job(index).request;
  const std::string folder = state.out_dir() + "/" + request.folder;
  const std::string path = submission_path(request, state.out_dir());
  const std::string text = submission_text(state, index);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw Error(ExitCode::kTrainingFailed,
                "cannot make " + quote_path(folder) + ": " + error.message());
  }
  check_submission_file(request, state.out_dir());
  replace_file(path, text);

  state.submitting(index, state.token(index, state.job(index).attempt + 1));
  CommandOptions options;
  options.cwd = folder;
  options.timeout_s = kSubmissionTimeout_s;
  options.inherited_fd = state.lock_fd();
  const CommandResult result = run_command(submission_command(request, state.out_dir()), options);
  const std::optional<std::string> id = request.scheduler == Scheduler::kSlurm
                                            ? parse_slurm_id(result.out)
                                            : parse_condor_id(result.out);
  if (result.ok() && id) {
    state.submitted(index, *id);
    return;
  }
  const std::string what = !result.ok()
                               ? result.failure
                               : submission_command(request, "").front() + " printed " +
                                     quote_bytes(result.out) + ", expected the job's id alone";
  if (!result.started) {
    state.refused(index, what);
    throw UsageError(what + ", expected a machine where jobs can be submitted");
  }
  // "Socket timed out" and the like may come although the job was taken.
  const std::string unreachable = settle(state, index);
  if (!unreachable.empty()) {
    throw TransientError(what + "; whether job " + std::to_string(index) +
                         " was submitted is not known (" + unreachable +
                         "), `submit status` asks again");
  }
  if (state.job(index).state == JobState::kRefused) {
    state.refused(index, what);
    throw Error(ExitCode::kTrainingFailed, what);
  }
}

std::string settle(StateFile& state, int index) {
  const Job& job = state.job(index);
  if (job.state != JobState::kSubmitting) {
    return "";
  }
  if (job.request.scheduler == Scheduler::kLocal) {
    state.update(index, JobState::kLost, std::nullopt, "submit was ended before it ran");
    return "";
  }
  const Search search = job.request.scheduler == Scheduler::kSlurm
                            ? find_in_slurm(job, state.out_dir())
                            : find_in_condor(job, state.out_dir());
  if (!search.id.empty()) {
    state.submitted(index, search.id);
  } else if (search.unreachable.empty()) {
    state.refused(index, "submit was ended before the scheduler had it");
  }
  return search.unreachable;
}

}  // namespace ddp::submit
