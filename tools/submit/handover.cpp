// tools/submit/handover.cpp - submissions and local runs, and what became of them.
#include "tools/submit/handover.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
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
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

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
constexpr auto kBeginPatience = std::chrono::seconds(2);  // with another submit at the same jobs
constexpr auto kBeginPause = std::chrono::milliseconds(10);

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

/// What this process is to have run.
struct Taken {
  std::vector<int> indices;
  LeftOut left_out;
  std::unique_ptr<Presence> presence;  ///< says, until it goes, that this process is at it
};

/// Leaves out the jobs whose last start has not ended.
void leave_out_running(const Known& known, Taken& taken) {
  std::map<std::string, bool> running;  // by token
  std::erase_if(taken.indices, [&](int index) {
    const Attempt& last = known.at(index);
    if (last.number > 0 && !running.contains(last.token)) {
      running[last.token] = is_present(last.token, last.machine) == true;
    }
    const bool is_running = last.number > 0 && running[last.token];
    if (is_running) {
      taken.left_out[index] = "its last start has not ended yet";
    }
    return is_running;
  });
}

/// Leaves out the jobs that others have submitted or ended since `known`.
void leave_out_changed(State& state, const Known& known, Taken& taken) {
  std::set<int> read;  // the submissions that were
  for (const int index : taken.indices) {
    if (read.insert(known.at(index).batch).second) {
      state.read_again(index);
    }
  }
  std::erase_if(taken.indices, [&](int index) {
    const bool has_changed = state.job(index).attempt != known.at(index);
    if (has_changed) {
      taken.left_out[index] = fmt::format("it is {} by now", state_name(state.job(index).state()));
    }
    return has_changed;
  });
}

/// Begins the next attempt of jobs of one plan, of those that no other submit begins, or has ended
/// meanwhile.
/// @param finding what is recorded, @param id see State::begin
Taken take(State& state, const std::vector<int>& indices, const Known& known,
           const Finding& finding, const std::string& id) {
  Taken taken = {indices, {}, {}};
  leave_out_running(known, taken);
  // Another submit may be just about to begin others of the plan: then this one is the next.
  for (auto end = Clock::now() + kBeginPatience;;) {
    leave_out_changed(state, known, taken);
    if (taken.indices.empty()) {
      return taken;
    }
    const int first = taken.indices.front();
    taken.presence =
        std::make_unique<Presence>(state.token(state.plan_of(first), state.next_batch(first)));
    if (taken.presence->is_ours() && state.begin(taken.indices, finding, this_machine(), id)) {
      return taken;
    }
    taken.presence.reset();
    if (Clock::now() > end) {
      break;
    }
    std::this_thread::sleep_for(kBeginPause);
  }
  for (const int index : taken.indices) {
    taken.left_out[index] = "another submit begins it just now";
  }
  taken.indices.clear();
  return taken;
}

/// The same of all jobs that were submitted together with this one.
std::map<int, Finding> of_its_submission(const State& state, int index, const Finding& finding) {
  const Attempt& attempt = state.job(index).attempt;
  std::map<int, Finding> findings;
  for (const Job& job : state.jobs()) {
    if (job.attempt.token == attempt.token) {
      findings[job.request.index] = finding;
    }
  }
  return findings;
}

void refuse_submission(State& state, int index, const std::string& why) {
  state.update(of_its_submission(state, index, {JobState::kRefused, std::nullopt, why}));
}

/// Looks for a job whose submission is over and has no id.
/// @param refusal the reason if the scheduler does not have it
/// @return one line why the scheduler could not be asked: the state is as before
std::string look_for(State& state, int index, const std::string& refusal) {
  const Job& job = state.job(index);
  const Search search =
      cluster_scheduler(job.request.scheduler)
          .find(job, job_folder(job.request, state.out_dir()),
                array_folder(state.out_dir(), job.attempt.plan, job.attempt.batch));
  if (is_submission_id(job.request.scheduler, search.id)) {
    state.submitted(index, search.id);
    return "";
  }
  if (search.unreachable.empty()) {
    refuse_submission(state, index, refusal);
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

void write_files(const SubmissionText& text, const JobRequest& first, const std::string& out_dir) {
  make_folders(text.folder);
  if (!text.points.empty()) {
    // A job reads its command there, long after.
    std::filesystem::permissions(text.folder, std::filesystem::perms::owner_all);
    replace_file(text.folder + "/" + kPointsFile, text.points);
  }
  replace_file(text.path, text.file);
  if (first.single) {
    check_submission_file(first, out_dir);
    replace_file(copy_path(first, out_dir), text.file);
  }
}

/// Of jobs that were begun together.
SubmissionText write_submission(State& state, const std::vector<int>& indices) {
  const Job first = state.job(indices.front());
  try {
    std::vector<const JobRequest*> jobs;
    for (const int index : indices) {
      jobs.push_back(&state.job(index).request);
      // HTCondor wants the folders to be there; a task of Slurm makes its own.
      if (first.request.scheduler == Scheduler::kCondor) {
        make_folders(job_folder(*jobs.back(), state.out_dir()));
      }
    }
    const SubmissionText text =
        submission_text(jobs, state.out_dir(), first.attempt.plan, first.attempt.batch,
                        first.attempt.number, first.attempt.token);
    write_files(text, first.request, state.out_dir());
    return text;
  } catch (const Error& error) {
    refuse_submission(state, indices.front(), error.what());
    throw;
  }
}

/// @param what went wrong; the jobs may have been taken all the same
/// @throws Error unless they were
void look_after_failure(State& state, int index, bool has_started, const std::string& what) {
  if (!has_started) {
    refuse_submission(state, index, what);
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
}

/// Makes what the scheduler makes of the job's output unreadable for others.
class PrivateFiles {
 public:
  PrivateFiles() : before_(umask(S_IRWXG | S_IRWXO)) {}
  ~PrivateFiles() { umask(before_); }
  PrivateFiles(const PrivateFiles&) = delete;
  PrivateFiles& operator=(const PrivateFiles&) = delete;

 private:
  mode_t before_;
};

/// Asks the scheduler about jobs of its own that are not over: its queue, what it remembers, and
/// the jobs' own records.
/// @param indices of one cluster
/// @return one line: why it could not be asked
std::string ask(State& state, const ClusterScheduler& scheduler, const std::vector<int>& indices) {
  std::map<std::string, int> open;  // by id, without the cluster
  Question question;
  for (const int index : indices) {
    const Job& job = state.job(index);
    const JobId id = parse_job_id(job.attempt.id);
    question.cluster = id.cluster;
    question.submissions[id.submission] = job.attempt.count;
    question.is_limited |= job.request.limit > 0 && job.attempt.count > 1;
    open[split(job.attempt.id, ';')[0]] = index;
  }
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
  const Answer queue = open.empty() ? Answer() : scheduler.ask_queue(question);
  for (const auto& [id, finding] : queue.findings) {
    learn(id, finding);
  }
  const bool answers = queue.unreachable.empty();
  if (answers && !open.empty()) {
    for (const auto& [id, finding] : scheduler.ask_history(question)) {
      learn(id, finding);
    }
  }
  for (const auto& [id, index] : open) {
    const Job& job = state.job(index);
    if (const auto record = scheduler.read_record(job, job_folder(job.request, state.out_dir()))) {
      // The scheduler's own word for its state stays, if there is one.
      found.try_emplace(job.request.index, *record).first->second.exit_code = record->exit_code;
    } else if (answers) {
      found.try_emplace(job.request.index, Finding{JobState::kLost, std::nullopt, scheduler.lost});
    }
  }
  state.update(found);
  return queue.unreachable;
}

/// By scheduler and cluster of a federation: one command is enough for each.
std::map<std::pair<Scheduler, std::string>, std::vector<int>> by_cluster(
    const State& state, const std::vector<int>& indices) {
  std::map<std::pair<Scheduler, std::string>, std::vector<int>> clusters;
  for (const int index : indices) {
    const Job& job = state.job(index);
    clusters[{job.request.scheduler, parse_job_id(job.attempt.id).cluster}].push_back(index);
  }
  return clusters;
}

struct Ending {
  Finding finding;
  bool interrupted = false;  ///< by the user, who wants no further job either
  std::string left_out;  ///< why it did not run; empty: it did
};

int open_output(const std::string& path) {
  const int fd =
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
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

Ending run_job(State& state, int index, const Known& known, const BlockedSignals& signals) {
  Ending ending;
  const Taken taken = take(state, {index}, known, {JobState::kRunning}, std::to_string(getpid()));
  if (taken.indices.empty()) {
    ending.left_out = taken.left_out.at(index);
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

Known attempts_of(const State& state, const std::vector<int>& indices) {
  Known known;
  for (const int index : indices) {
    known[index] = state.job(index).attempt;
  }
  return known;
}

SubmissionText submission_text(const std::vector<const JobRequest*>& jobs,
                               const std::string& out_dir, int plan, int batch, int attempt,
                               const std::string& token) {
  const JobRequest& first = *jobs.front();
  const ClusterScheduler& scheduler = cluster_scheduler(first.scheduler);
  SubmissionText text;
  if (jobs.size() == 1) {
    text.folder = job_folder(first, out_dir);
    text.file = scheduler.file_text(first, text.folder, attempt, token);
  } else {
    text.folder = array_folder(out_dir, plan, batch);
    text.file =
        scheduler.array_text(first, text.folder, attempt, token, static_cast<int>(jobs.size()));
    for (const JobRequest* const job : jobs) {
      text.points += scheduler.point_line(*job, job_folder(*job, out_dir)) + "\n";
    }
  }
  text.path = text.folder + "/" + scheduler.file_name;
  text.command = scheduler.submit_command;
  return text;
}

std::vector<std::vector<int>> group(const State& state, const std::vector<int>& indices) {
  std::map<std::pair<int, int>, std::vector<int>> alike;  // by plan and attempt
  for (const int index : indices) {
    alike[{state.plan_of(index), state.job(index).attempt.number}].push_back(index);
  }
  std::vector<std::vector<int>> groups;
  for (const auto& [key, jobs] : alike) {
    const JobRequest& first = state.job(jobs.front()).request;
    const std::size_t most =
        jobs.size() == 1 ? 1 : cluster_scheduler(first.scheduler).most_together(first);
    for (std::size_t start = 0; start < jobs.size();) {
      const std::size_t count = std::min(most, jobs.size() - start);
      const auto begin = jobs.begin() + static_cast<std::ptrdiff_t>(start);
      groups.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(count));
      start += count;
    }
  }
  return groups;
}

LeftOut submit_together(State& state, const std::vector<int>& indices, const Known& known,
                        const std::string& after) {
  const Taken taken = take(state, indices, known, {JobState::kSubmitting}, "");
  if (taken.indices.empty()) {
    return taken.left_out;
  }
  const int index = taken.indices.front();
  const ClusterScheduler& scheduler = cluster_scheduler(state.job(index).request.scheduler);
  const SubmissionText text = write_submission(state, taken.indices);
  std::vector<std::string> command = text.command;
  if (!after.empty()) {
    command.push_back(scheduler.begin_after(after));
  }
  command.push_back(text.path);
  const CommandResult result = [&] {
    const PrivateFiles mask;
    return run_command(command, text.folder, kSubmissionTimeout_s, taken.presence->fd());
  }();
  const auto id = parse_id(scheduler, result.out, static_cast<int>(taken.indices.size()));
  if (result.ok() && id) {
    state.submitted(index, *id);
  } else {
    look_after_failure(state, index, result.started,
                       !result.ok() ? result.failure
                                    : fmt::format("{} printed {}, expected the job's id alone",
                                                  command.front(), quote_bytes(result.out)));
  }
  return taken.left_out;
}

int run_local_jobs(State& state, const std::vector<int>& indices) {
  const BlockedSignals signals({SIGINT, SIGTERM, SIGHUP, SIGCHLD});
  const Known known = attempts_of(state, indices);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const JobRequest request = state.job(indices[i]).request;
    const Clock::time_point start = Clock::now();
    const Ending ending = run_job(state, request.index, known, signals);
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

std::vector<std::string> refresh(State& state, const std::vector<int>& indices) {
  std::set<std::string> unreachable;
  std::vector<int> open;
  std::set<std::string> settled;  // by token
  for (const int index : indices) {
    const Job& job = state.job(index);
    if (job.state() == JobState::kSubmitting && settled.insert(job.attempt.token).second) {
      unreachable.insert(settle(state, index));
    }
  }
  for (const int index : indices) {
    const JobState known = state.job(index).state();
    if (!is_over(known) && known != JobState::kSubmitting) {
      open.push_back(index);
    }
  }
  for (const auto& [cluster, jobs] : by_cluster(state, open)) {
    if (cluster.first != Scheduler::kLocal) {
      unreachable.insert(ask(state, cluster_scheduler(cluster.first), jobs));
      continue;
    }
    std::map<int, Finding> lost;
    for (const int index : jobs) {
      const Attempt& attempt = state.job(index).attempt;
      if (is_present(attempt.token, attempt.machine) == false) {
        lost[index] = {JobState::kLost, std::nullopt, "submit was ended while it ran"};
      }
    }
    state.update(lost);
  }
  unreachable.erase("");
  return {unreachable.begin(), unreachable.end()};
}

std::map<int, std::string> cancel_in_clusters(State& state, const std::vector<int>& indices) {
  std::map<std::string, std::size_t> alive;  // by token: of all the jobs submitted together
  for (const Job& job : state.jobs()) {
    alive[job.attempt.token] += is_over(job.state()) ? 0U : 1U;
  }
  std::map<int, std::string> failures;
  for (const auto& [cluster, jobs] : by_cluster(state, indices)) {
    const ClusterScheduler& scheduler = cluster_scheduler(cluster.first);
    std::map<std::string, std::vector<int>> submissions;  // by token
    for (const int index : jobs) {
      submissions[state.job(index).attempt.token].push_back(index);
    }
    std::vector<std::string> argv = {scheduler.cancel_command};
    if (!cluster.second.empty()) {
      argv.push_back("--clusters=" + cluster.second);
    }
    for (const auto& [token, members] : submissions) {
      std::vector<std::string> tasks;
      for (const int index : members) {
        tasks.push_back(parse_job_id(state.job(index).attempt.id).task);
      }
      const bool is_all = members.size() == alive[token];
      const std::string id = parse_job_id(state.job(members.front()).attempt.id).submission;
      const auto ids = scheduler.cancel_ids(id, is_all ? std::vector<std::string>() : tasks);
      argv.insert(argv.end(), ids.begin(), ids.end());
    }
    const CommandResult result = run_command(argv);
    std::map<int, Finding> cancelled;
    for (const int index : jobs) {
      if (result.ok()) {
        cancelled[index] = {JobState::kCancelled};
      } else {
        failures[index] = result.failure;
      }
    }
    state.update(cancelled);
  }
  return failures;
}

void check_submission_file(const JobRequest& job, const std::string& out_dir) {
  const std::string path = copy_path(job, out_dir);
  const std::optional<std::string> text = read_text(path);
  if (job.single && text && text->find(kMadeBy) == std::string::npos) {
    refuse("{} is there and was not made by submit, expected another out_dir", quote_path(path));
  }
}

}  // namespace ddp::submit
