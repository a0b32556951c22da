#include "tools/submit/scheduler.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>

namespace ddp::submit {

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return std::nullopt;
  }
  return std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> split(std::string_view text, char separator, std::size_t most_parts) {
  std::vector<std::string> parts;
  while (parts.size() + 1 < most_parts) {
    const std::size_t end = text.find(separator);
    if (end == std::string_view::npos) {
      break;
    }
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.emplace_back(text);
  return parts;
}

std::string running_lock_path(const JobRequest& job, const std::string& out_dir) {
  return out_dir + "/" + job.folder + "/running.lock";
}

Answer ask_local(const std::vector<const Job*>& jobs, const std::string& out_dir) {
  Answer answer;
  for (const Job* const job : jobs) {
    const int fd = open(running_lock_path(job->request, out_dir).c_str(), O_RDONLY | O_CLOEXEC);
    const bool runs = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0;
    if (fd >= 0) {
      close(fd);
    }
    answer.findings[job->request.index] =
        runs ? Finding{JobState::kRunning, std::nullopt, ""}
             : Finding{JobState::kLost, std::nullopt, "submit was ended while it ran"};
  }
  return answer;
}

}  // namespace ddp::submit
