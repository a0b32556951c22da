// tools/submit/handover.cpp - submissions and local runs, and what became of them.
#include "tools/submit/handover.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <system_error>

#include "common/base/process.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

using Clock = std::chrono::steady_clock;

// A scheduler that is busy answers late; a job that it takes after all is found by its token.
constexpr double kSubmissionTimeout_s = 300;
// Where nobody can tell whether a submission is still under way: on another machine.
constexpr std::int64_t kSurelyOver_s = 900;
constexpr const char* kMadeBy = ", made by submit.";
constexpr auto kGrace = std::chrono::seconds(30);  // between a signal to a local job and SIGKILL
constexpr auto kLookPeriod = std::chrono::milliseconds(500);  // whether it was cancelled
constexpr double kSignalPoll_s = 0.2;

int make_socket() {
  return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

/// @param call bind or connect
template <typename Call>
int call_with_address(const Call& call, const FileDescriptor& socket, const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // The zero in front makes it a name of no file.
  const std::size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::copy_n(name.begin(), length, address.sun_path + 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return call(socket.get(), reinterpret_cast<const sockaddr*>(&address), size);
}

/// A name in this machine's kernel (an abstract socket), for as long as this object is there or a
/// command that inherited fd() runs. It needs no file system, is gone with the last process that
/// has it, however that ends, and asking for it waits for nobody.
class Presence {
 public:
  /// @throws Error if there are no sockets
  explicit Presence(const std::string& name);

  /// False if another process has the name.
  bool is_ours() const { return is_ours_; }
  int fd() const { return socket_.get(); }

 private:
  FileDescriptor socket_;
  bool is_ours_;
};

Presence::Presence(const std::string& name)
    : socket_(make_socket()),
      is_ours_(socket_.get() >= 0 && call_with_address(bind, socket_, name) == 0) {
  if (const int error = errno; !is_ours_ && error != EADDRINUSE) {
    throw Error(ExitCode::kTrainingFailed,
                "cannot make a socket: " + std::generic_category().message(error));
  }
}

/// Host name, boot and network namespace: where Presence names are seen.
std::string this_machine() {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  const std::string boot = read_text("/proc/sys/kernel/random/boot_id").value_or("?\n");
  std::error_code error;
  return fmt::format("{} {} {}", host, boot.substr(0, boot.find('\n')),
                     std::filesystem::read_symlink("/proc/self/ns/net", error).string());
}

/// Whether some process of `machine` has the name; nothing if that cannot be known from here.
std::optional<bool> is_present(const std::string& name, const std::string& machine) {
  const std::string here = this_machine();
  if (machine != here) {
    const std::vector<std::string> there_parts = split(machine, ' ');
    const std::vector<std::string> here_parts = split(here, ' ');
    const bool has_rebooted = there_parts.size() == here_parts.size() &&
                              there_parts[0] == here_parts[0] && there_parts[1] != here_parts[1];
    return has_rebooted ? std::optional<bool>(false) : std::nullopt;
  }
  const FileDescriptor socket(make_socket());
  const bool connected = call_with_address(connect, socket, name) == 0;
  const bool refused = !connected && errno == ECONNREFUSED;
  return connected || refused ? std::optional<bool>(connected) : std::nullopt;
}

/// Begins the next attempt of a job, unless another submit does, or has ended it meanwhile.
/// @param finding what is recorded, @param id see State::begin
/// @param presence says, from before the record until it goes, that this process is at it
/// @return why the job is to be left out; empty: it is this process's
std::string take(State& state, int index, const Finding& finding, const std::string& id,
                 std::optional<Presence>& presence) {
  const Attempt before = state.job(index).attempt;
  if (before.number > 0 && is_present(before.token, before.machine) == true) {
    return "its last start has not ended yet";
  }
  presence.emplace(state.token(index, before.number + 1));
  if (presence->is_ours() && state.begin(index, finding, this_machine(), id)) {
    return "";
  }
  const Job& now = state.read_again(index);
  return now.attempt == before ? "another submit begins it just now"
                               : fmt::format("it is {} by now", state_name(now.state()));
}

/// Looks for a job whose submission is over and has no id.
/// @param refusal the reason if the scheduler does not have it
/// @return one line why the scheduler could not be asked: the state is as before
std::string look_for(State& state, int index, const std::string& refusal) {
  const Job& job = state.job(index);
  const Search search =
      cluster_scheduler(job.request.scheduler).find(job, job_folder(job.request, state.out_dir()));
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
  const std::string text =
      cluster_scheduler(request.scheduler)
          .file_text(request, job_folder(request, out_dir), job.attempt.number, job.attempt.token);
  make_folders(job_folder(request, out_dir));
  replace_file(submission_path(request, out_dir), text);
  if (request.single) {
    check_submission_file(request, out_dir);
    replace_file(copy_path(request, out_dir), text);
  }
}

/// Asks the scheduler about jobs of its own that are not over: its queue, what it remembers, and
/// the jobs' own records.
/// @return one line: why it could not be asked
std::string ask(State& state, const ClusterScheduler& scheduler, const std::vector<int>& indices) {
  std::map<std::string, int> open;  // by id
  for (const int index : indices) {
    open[id_alone(state.job(index).attempt.id)] = index;
  }
  const auto open_ids = [&open] {
    std::vector<std::string> ids;
    for (const auto& [id, index] : open) {
      ids.push_back(id);
    }
    return ids;
  };
  std::map<int, Finding> found;
  const auto learn = [&](const std::string& id, const Finding& finding) {
    const auto job = open.find(id);
    if (job == open.end()) {
      return;
    }
    Finding& known = found[job->second];
    known = finding;
    // That it failed is not all that can be known, and the history knows more than the queue.
    if (known.state != JobState::kFailed || known.exit_code) {
      open.erase(job);
    }
  };
  const Answer queue = open.empty() ? Answer() : scheduler.ask_queue(open_ids());
  for (const auto& [id, finding] : queue.findings) {
    learn(id, finding);
  }
  const bool answers = queue.unreachable.empty();
  if (answers && !open.empty()) {
    for (const auto& [id, finding] : scheduler.ask_history(open_ids())) {
      learn(id, finding);
    }
  }
  for (const std::string& id : open_ids()) {
    const Job& job = state.job(open.at(id));
    if (const auto record = scheduler.read_record(job, job_folder(job.request, state.out_dir()))) {
      // The scheduler's own word for its state stays, if there is one.
      found.try_emplace(job.request.index, *record).first->second.exit_code = record->exit_code;
    } else if (answers) {
      found.try_emplace(job.request.index, Finding{JobState::kLost, std::nullopt, scheduler.lost});
    }
  }
  for (const auto& [index, finding] : found) {
    state.update(index, finding);
  }
  return queue.unreachable;
}

struct Ending {
  Finding finding;
  bool interrupted = false;  ///< by the user, who wants no further job either
  std::string left_out;  ///< why it did not run; empty: it did
};

int open_output(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) {
    throw Error(ExitCode::kTrainingFailed, fmt::format("cannot write {}: {}", quote_path(path),
                                                       std::generic_category().message(errno)));
  }
  return fd;
}

/// @throws CannotRun
pid_t start_job(const Job& job, const std::string& folder, const BlockedSignals& signals) {
  const FileDescriptor out(open_output(folder + "/" + attempt_file(job.attempt.number, ".out")));
  const FileDescriptor err(open_output(folder + "/" + attempt_file(job.attempt.number, ".err")));
  StartOptions options;
  options.cwd = folder;
  options.out_fd = out.get();
  options.err_fd = err.get();
  options.parent_death_signal = SIGTERM;
  options.signal_mask = signals.original();
  return start_process(job.request.command, options);
}

/// Ends the process as the user wishes, or the record of the job, and what it left behind.
/// @throws std::system_error if nobody can know how it ended
Ending wait_for(pid_t pid, const BlockedSignals& signals, State& state, int index) {
  Ending ending;
  std::optional<Clock::time_point> kill_at;
  const auto stop = [&](int signal) {
    kill(-pid, signal);
    kill_at = kill_at.value_or(Clock::now() + kGrace);
  };
  auto look_at = Clock::now() + kLookPeriod;
  std::optional<ProcessEnd> end;
  while (!(end = poll_process(pid))) {
    const int signal = signals.wait(kSignalPoll_s).si_signo;
    if (signal != 0 && signal != SIGCHLD) {
      ending.interrupted = true;
      stop(signal);
    }
    if (Clock::now() > look_at) {
      look_at = Clock::now() + kLookPeriod;
      if (!kill_at && state.read_again(index).state() == JobState::kCancelled) {
        stop(SIGTERM);
      }
    }
    if (kill_at && Clock::now() > *kill_at) {
      kill(-pid, SIGKILL);
    }
  }
  kill(-pid, SIGKILL);  // what it left behind
  if (end->signal != 0) {
    ending.finding = {JobState::kFailed, std::nullopt,
                      fmt::format("ended by signal {}", end->signal)};
  } else {
    ending.finding = {end->exit_code == 0 ? JobState::kDone : JobState::kFailed, end->exit_code};
  }
  return ending;
}

Ending run_job(State& state, int index, const BlockedSignals& signals) {
  std::optional<Presence> presence;
  Ending ending;
  ending.left_out = take(state, index, {JobState::kRunning}, std::to_string(getpid()), presence);
  if (!ending.left_out.empty()) {
    return ending;
  }
  const Job job = state.job(index);
  const std::string folder = job_folder(job.request, state.out_dir());
  make_folders(folder);
  for (int restarts = 0; restarts < kMostRestarts; ++restarts) {
    try {
      ending = wait_for(start_job(job, folder, signals), signals, state, index);
    } catch (const CannotRun& error) {
      ending.finding = {JobState::kFailed, kCannotRunExitCode, error.what()};
      replace_file(folder + "/" + attempt_file(job.attempt.number, ".err"),
                   error.what() + std::string("\n"));
    }
    const bool is_cancelled = state.read_again(index).state() == JobState::kCancelled;
    if (is_cancelled) {
      ending.finding.state = JobState::kCancelled;
    }
    if (is_cancelled || ending.interrupted || ending.finding.exit_code != kAgain) {
      break;
    }
  }
  state.update(index, ending.finding);
  return ending;
}

std::string describe(const Finding& finding) {
  return finding.state == JobState::kDone ? "done"
         : finding.exit_code
             ? fmt::format("{}, exit code {}", state_name(finding.state), *finding.exit_code)
             : fmt::format("{}, {}", state_name(finding.state), finding.reason);
}

}  // namespace

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
  const CommandResult result = run_command(command, job_folder(request, state.out_dir()),
                                           kSubmissionTimeout_s, presence->fd());
  const std::optional<std::string> id = parse_id(scheduler, result.out);
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

int run_local_jobs(State& state, const std::vector<int>& indices) {
  const BlockedSignals signals({SIGINT, SIGTERM, SIGHUP, SIGCHLD});
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const JobRequest request = state.job(indices[i]).request;
    const Clock::time_point start = Clock::now();
    const Ending ending = run_job(state, request.index, signals);
    const std::chrono::duration<double> elapsed = Clock::now() - start;
    std::cout << fmt::format("job {} ({} of {}) {}: ", request.index, i + 1, indices.size(),
                             request.name)
              << (ending.left_out.empty()
                      ? fmt::format("{}, {:.1f} s, output in {}", describe(ending.finding),
                                    elapsed.count(),
                                    quote_path(job_folder(request, state.out_dir())))
                      : "left out, " + ending.left_out)
              << "\n"
              << std::flush;
    if (ending.interrupted) {
      return static_cast<int>(ending.finding.exit_code == kAgain ? ExitCode::kRunAgain
                                                                 : ExitCode::kTrainingFailed);
    }
  }
  const bool all_done = std::all_of(indices.begin(), indices.end(), [&state](int index) {
    return state.read_again(index).state() == JobState::kDone;
  });
  return static_cast<int>(all_done ? ExitCode::kDone : ExitCode::kTrainingFailed);
}

std::vector<std::string> refresh(State& state) {
  std::set<std::string> unreachable;
  std::map<Scheduler, std::vector<int>> open;
  for (const Job& job : state.jobs()) {
    if (job.state() == JobState::kSubmitting) {
      unreachable.insert(settle(state, job.request.index));
    }
    if (!is_over(job.state()) && job.state() != JobState::kSubmitting) {
      open[job.request.scheduler].push_back(job.request.index);
    }
  }
  unreachable.insert(ask(state, condor(), open[Scheduler::kCondor]));
  unreachable.insert(ask(state, slurm(), open[Scheduler::kSlurm]));
  for (const int index : open[Scheduler::kLocal]) {
    const Attempt& attempt = state.job(index).attempt;
    if (is_present(attempt.token, attempt.machine) == false) {
      state.update(index, {JobState::kLost, std::nullopt, "submit was ended while it ran"});
    }
  }
  unreachable.erase("");
  return {unreachable.begin(), unreachable.end()};
}

std::string submission_path(const JobRequest& job, const std::string& out_dir) {
  return job_folder(job, out_dir) + "/" + cluster_scheduler(job.scheduler).file_name;
}

void check_submission_file(const JobRequest& job, const std::string& out_dir) {
  const std::string path = copy_path(job, out_dir);
  const std::optional<std::string> text = read_text(path);
  if (job.single && text && text->find(kMadeBy) == std::string::npos) {
    refuse("{} is there and was not made by submit, expected another out_dir", quote_path(path));
  }
}

}  // namespace ddp::submit
