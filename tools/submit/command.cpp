#include "tools/submit/command.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "common/base/exit_codes.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostOutputBytes = std::size_t{64} << 20;

class Pipe {
 public:
  Pipe() {
    if (pipe2(ends_.data(), O_CLOEXEC) != 0) {
      throw Error(ExitCode::kTrainingFailed,
                  "cannot make a pipe: " + std::generic_category().message(errno));
    }
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int end(std::size_t i) const { return ends_[i]; }
  void close_end(std::size_t i) {
    if (ends_[i] >= 0) {
      close(ends_[i]);
      ends_[i] = -1;
    }
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

/// The arguments of posix_spawn, and their end.
class SpawnPlan {
 public:
  SpawnPlan(const Pipe& out, const Pipe& err, const CommandOptions& options) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions_, out.end(1), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, err.end(1), STDERR_FILENO);
    if (options.inherited_fd >= 0) {
      // Onto itself: that takes the close-on-exec flag off.
      posix_spawn_file_actions_adddup2(&actions_, options.inherited_fd, options.inherited_fd);
    }
    if (!options.cwd.empty()) {
      posix_spawn_file_actions_addchdir_np(&actions_, options.cwd.c_str());
    }
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK);
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  int spawn(pid_t& pid, std::vector<std::string> argv) const {
    std::vector<char*> pointers;
    for (std::string& argument : argv) {
      pointers.push_back(argument.data());
    }
    pointers.push_back(nullptr);
    return posix_spawnp(&pid, pointers[0], &actions_, &attributes_, pointers.data(), environ);
  }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

/// Reads both streams to their ends. @return false when the time was over first
bool read_streams(Pipe& out, Pipe& err, Clock::time_point give_up, CommandResult& result) {
  while (out.end(0) >= 0 || err.end(0) >= 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(give_up - Clock::now()).count();
    if (left <= 0) {
      return false;
    }
    std::array<pollfd, 2> streams = {pollfd{out.end(0), POLLIN, 0}, pollfd{err.end(0), POLLIN, 0}};
    if (poll(streams.data(), streams.size(), static_cast<int>(left) + 1) < 0 && errno != EINTR) {
      return false;
    }
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (streams[i].fd < 0 || streams[i].revents == 0) {
        continue;
      }
      std::array<char, 65536> chunk;
      const ssize_t count = read(streams[i].fd, chunk.data(), chunk.size());
      std::string& text = i == 0 ? result.out : result.err;
      if (count > 0 && text.size() < kMostOutputBytes) {
        text.append(chunk.data(), static_cast<std::size_t>(count));
      } else if (count == 0 || (count < 0 && errno != EINTR)) {
        (i == 0 ? out : err).close_end(0);
      }
    }
  }
  return true;
}

/// The first line that says something.
std::string first_line(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      return std::string(line);
    }
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return "";
}

std::string describe_failure(const std::string& name, int status, const CommandResult& result,
                             double timeout_s) {
  if (result.timed_out) {
    return name + " gave no answer within " + std::to_string(static_cast<int>(timeout_s)) + " s";
  }
  const std::string how = WIFEXITED(status)
                              ? " exited with " + std::to_string(WEXITSTATUS(status))
                              : " was ended by signal " + std::to_string(WTERMSIG(status));
  const std::string said = first_line(result.err.empty() ? result.out : result.err);
  return name + how + (said.empty() ? "" : ": " + quote_bytes(said));
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& argv, const CommandOptions& options) {
  CommandResult result;
  Pipe out;
  Pipe err;
  const SpawnPlan plan(out, err, options);
  pid_t pid = -1;
  if (const int error = plan.spawn(pid, argv); error != 0) {
    result.failure = error == ENOENT && argv[0].find('/') == std::string::npos
                         ? argv[0] + " is not on PATH"
                         : "cannot run " + argv[0] + ": " + std::generic_category().message(error);
    return result;
  }
  result.started = true;
  out.close_end(1);
  err.close_end(1);
  const auto give_up = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                          std::chrono::duration<double>(options.timeout_s));
  if (!read_streams(out, err, give_up, result)) {
    result.timed_out = true;
    kill(pid, SIGKILL);
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) {
      result.failure = "cannot wait for " + argv[0] + ": " + std::generic_category().message(errno);
      return result;
    }
  }
  if (WIFEXITED(status)) {
    result.exit_code = WEXITSTATUS(status);
  }
  if (result.timed_out || result.exit_code != 0) {
    result.failure = describe_failure(argv[0], status, result, options.timeout_s);
  }
  return result;
}

std::string find_program(const std::string& name) {
  const char* const variable = std::getenv("PATH");
  std::string_view folders = variable == nullptr ? "/usr/bin:/bin" : variable;
  while (!folders.empty()) {
    const std::string_view folder = folders.substr(0, folders.find(':'));
    folders.remove_prefix(std::min(folder.size() + 1, folders.size()));
    const std::string path = std::string(folder.empty() ? "." : folder) + "/" + name;
    struct stat status = {};
    if (stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        access(path.c_str(), X_OK) == 0) {
      return path;
    }
  }
  return "";
}

}  // namespace ddp::submit
