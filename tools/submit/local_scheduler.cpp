// tools/submit/local_scheduler.cpp - what is known here about jobs that another submit runs.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "common/base/parse.hpp"
#include "tools/submit/scheduler.hpp"

namespace ddp::submit {
namespace {

/// Wherever its submit is: several machines may see the folder.
bool is_running(const JobRequest& job, const std::string& out_dir) {
  const int fd = open(running_lock_path(job, out_dir).c_str(), O_RDONLY | O_CLOEXEC);
  const bool runs = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0;
  if (fd >= 0) {
    close(fd);
  }
  return runs;
}

/// Whether the process is one of this machine and has the file open. A number alone may be that of
/// another process by now, or of one on another machine.
bool has_open(pid_t pid, const std::string& path) {
  std::error_code error;
  const std::string files = "/proc/" + std::to_string(pid) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(files, error)) {
    if (std::filesystem::equivalent(entry.path(), path, error)) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string running_lock_path(const JobRequest& job, const std::string& out_dir) {
  return out_dir + "/" + job.folder + "/running.lock";
}

Answer ask_local(const std::vector<const Job*>& jobs, const std::string& out_dir) {
  Answer answer;
  for (const Job* const job : jobs) {
    answer.findings[job->request.index] =
        is_running(job->request, out_dir)
            ? Finding{JobState::kRunning, std::nullopt, ""}
            : Finding{JobState::kLost, std::nullopt, "submit was ended while it ran"};
  }
  return answer;
}

std::string stop_local(const Job& job, const std::string& out_dir) {
  if (!is_running(job.request, out_dir)) {
    return "";
  }
  const pid_t pid = parse_integer<pid_t>("process", job.id, 1);
  if (!has_open(pid, running_lock_path(job.request, out_dir))) {
    return "process " + job.id + ", which runs it, is not here, expected the machine it is on";
  }
  return kill(pid, SIGTERM) == 0
             ? ""
             : "cannot end process " + job.id + ": " + std::generic_category().message(errno);
}

}  // namespace ddp::submit
