// tests/support/run_program.cpp - fork, exec, poll both streams, wait.
#include "tests/support/run_program.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace ddp::test {

namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<std::string> make_environment(const RunOptions& options) {
  std::map<std::string, std::string> variables;
  for (char** variable = environ; !options.clear_environment && *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const size_t equals = text.find('=');
    variables[text.substr(0, equals)] = equals == std::string::npos ? "" : text.substr(equals + 1);
  }
  for (const auto& [name, value] : options.environment) {
    if (value) {
      variables[name] = *value;
    } else {
      variables.erase(name);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [name, value] : variables) {
    lines.push_back(name + "=" + value);
  }
  return lines;
}

std::vector<char*> pointers(std::vector<std::string>& lines) {
  std::vector<char*> result;
  for (std::string& line : lines) {
    result.push_back(line.data());
  }
  result.push_back(nullptr);
  return result;
}

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
  }
  return ends;
}

}  // namespace

Program::Program(const std::vector<std::string>& argv, const RunOptions& options)
    : timeout_seconds_(options.timeout_seconds), start_seconds_(now_seconds()) {
  std::vector<std::string> argument_lines = argv;
  std::vector<std::string> environment_lines = make_environment(options);
  const std::vector<char*> arguments = pointers(argument_lines);
  const std::vector<char*> environment = pointers(environment_lines);
  const std::array<int, 2> out = make_pipe();
  const std::array<int, 2> err = make_pipe();
  const std::array<int, 2> failure = make_pipe();  // carries errno if exec fails, else just closes
  pid_ = fork();
  if (pid_ == 0) {
    setpgid(0, 0);
    const int no_input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(no_input, STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(options.merge ? out[1] : err[1], STDERR_FILENO);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    if (options.cwd.empty() || chdir(options.cwd.c_str()) == 0) {
      execvpe(arguments[0], arguments.data(), environment.data());
    }
    const int reason = errno;
    [[maybe_unused]] const ssize_t written = write(failure[1], &reason, sizeof(reason));
    _exit(127);
  }
  const int fork_errno = errno;
  close(out[1]);
  close(err[1]);
  close(failure[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
  int reason = pid_ < 0 ? fork_errno : 0;
  if (pid_ > 0) {
    setpgid(pid_, pid_);
    while (read(failure[0], &reason, sizeof(reason)) < 0 && errno == EINTR) {
    }
  }
  close(failure[0]);
  if (reason != 0) {
    close(out_fd_);
    close(err_fd_);
    if (pid_ > 0) {
      waitpid(pid_, nullptr, 0);
    }
    throw std::runtime_error("cannot run " + argv.at(0) + ": " + std::strerror(reason));
  }
}

Program::~Program() {
  kill_group();
  for (const int fd : {out_fd_, err_fd_}) {
    if (fd >= 0) {
      close(fd);
    }
  }
  if (pid_ > 0) {
    waitpid(pid_, nullptr, 0);
  }
}

void Program::kill_group() const {
  if (pid_ > 0) {
    kill(-pid_, SIGKILL);
  }
}

double Program::elapsed() const {
  return now_seconds() - start_seconds_;
}

/// Waits for output until then. @return false once both streams are closed
bool Program::read_some(double until_seconds) {
  std::array<pollfd, 2> streams = {pollfd{out_fd_, POLLIN, 0}, pollfd{err_fd_, POLLIN, 0}};
  if (out_fd_ < 0 && err_fd_ < 0) {
    return false;
  }
  const double left_ms = std::clamp((until_seconds - elapsed()) * 1e3, 0.0, 1e6);
  poll(streams.data(), streams.size(), static_cast<int>(left_ms) + 1);
  for (const pollfd& stream : streams) {
    if (stream.fd < 0 || stream.revents == 0) {
      continue;
    }
    std::array<char, 65536> buffer;
    const ssize_t count = read(stream.fd, buffer.data(), buffer.size());
    if (count > 0) {
      (stream.fd == out_fd_ ? result_.out : result_.err)
          .append(buffer.data(), static_cast<size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      close(stream.fd);
      (stream.fd == out_fd_ ? out_fd_ : err_fd_) = -1;
    }
  }
  return true;
}

bool Program::wait_for_output(const std::string& text) {
  while (result_.out.find(text) == std::string::npos) {
    if (elapsed() > timeout_seconds_ || !read_some(timeout_seconds_)) {
      return result_.out.find(text) != std::string::npos;
    }
  }
  return true;
}

RunResult Program::wait() {
  constexpr double kDrainSeconds = 2;  // for what is still in the pipes after the kill
  constexpr auto kExitPoll = std::chrono::milliseconds(1);
  while (!result_.timed_out && read_some(timeout_seconds_)) {
    if (elapsed() > timeout_seconds_) {
      result_.timed_out = true;
      kill_group();
    }
  }
  // A grandchild outside the group may hold the pipes open: it is not waited for.
  for (const double until = elapsed() + kDrainSeconds; result_.timed_out && elapsed() < until;) {
    if (!read_some(until)) {
      break;
    }
  }
  int status = 0;
  pid_t ended = 0;
  rusage used{};
  while ((ended = wait4(pid_, &status, WNOHANG, &used)) == 0) {
    if (!result_.timed_out && elapsed() > timeout_seconds_) {
      result_.timed_out = true;  // closed its streams and lives on
      kill_group();
    }
    std::this_thread::sleep_for(kExitPoll);
  }
  kill_group();  // what the program left behind
  pid_ = -1;
  if (ended > 0) {
    result_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    result_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    for (const timeval& time : {used.ru_utime, used.ru_stime}) {
      result_.cpu_seconds +=
          static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    }
  }
  result_.seconds = elapsed();
  return result_;
}

RunResult run_program(const std::vector<std::string>& argv, const RunOptions& options) {
  return Program(argv, options).wait();
}

}  // namespace ddp::test
