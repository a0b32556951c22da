// common/launch/run_main.cpp - main() to `train`; an exception becomes one line and an exit code.
#include "common/launch/run_main.hpp"

#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/command_line.hpp"
#include "common/base/process.hpp"
#include "common/base/refuse.hpp"
#include "common/base/standard_streams.hpp"
#include "common/launch/cpu_share.hpp"
#include "common/launch/stop_request.hpp"

namespace ddp {

namespace {

namespace fs = std::filesystem;

constexpr int kFailed = static_cast<int>(ExitCode::kTrainingFailed);
const std::string kUnknownType = "an exception of unknown type";

constexpr std::chrono::seconds kOthersTurn{1};

thread_local std::vector<std::function<void()>> train_end_actions;
std::atomic<bool> skips_destructors = false;

/// Who speaks in this process' errors, in whatever thread.
struct Speaker {
  std::string program;
  std::string who;
  std::function<std::string(const std::string&)> explain;
} speaker;

bool in_writable_folder(const std::string& path) {
  std::error_code error;
  const fs::path folder = fs::absolute(path, error).parent_path();
  return !error && access(folder.c_str(), W_OK | X_OK) == 0;
}

/// Whether files can be made in `folder`, or in one of that name once it has been made.
bool can_hold_files(fs::path folder) {
  std::error_code error;
  folder = fs::absolute(folder, error);
  while (!fs::exists(folder, error) && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  return fs::is_directory(folder, error) && access(folder.c_str(), W_OK | X_OK) == 0;
}

/// What `path` leads to, whether or not that is there: a file that is replaced by a rename would
/// take the place of a link to it.
std::string follow_links(fs::path path) {
  constexpr int kMostLinks = 40;  // the kernel's own limit
  std::error_code error;
  for (int links = 0; links < kMostLinks && fs::is_symlink(path, error); ++links) {
    path = path.parent_path() / fs::read_symlink(path, error);
  }
  return path;
}

/// @throws UsageError if the files beside the snapshot would have names that are too long
void check_snapshot_name(const fs::path& snapshot) {
  const fs::path folder = snapshot.has_parent_path() ? snapshot.parent_path() : ".";
  const long folders_limit = pathconf(folder.c_str(), _PC_NAME_MAX);
  const long name_limit = folders_limit > 0 ? folders_limit : NAME_MAX;
  const long longest_name = name_limit - kSnapshotSuffixBytes;
  const std::string name = snapshot.filename();
  if (std::ssize(name) > longest_name) {
    refuse(
        "--snapshot: got a name of {} bytes, {}, expected at most {}: its folder's file system "
        "takes {}, and names of files beside it are {} longer",
        name.size(), quote(name), longest_name, name_limit, kSnapshotSuffixBytes);
  }
  constexpr ssize_t kLongestPath = PATH_MAX - 1 - kSnapshotSuffixBytes;
  if (std::ssize(snapshot.native()) > kLongestPath) {
    refuse("--snapshot: got a path of {} bytes, {}, expected at most {}", snapshot.native().size(),
           quote(snapshot.native()), kLongestPath);
  }
}

/// @throws UsageError if one file is to be two things; a device may
void check_different_files(const Options& options) {
  std::map<fs::path, std::string> names;
  for (const auto& [name, path] :
       {std::pair("--snapshot", options.snapshot), std::pair("--metrics", options.metrics),
        std::pair("--trace", options.trace)}) {
    std::error_code error;
    if (path.empty() || (fs::exists(path, error) && !fs::is_regular_file(path, error))) {
      continue;
    }
    const auto [other, is_new] =
        names.emplace(fs::weakly_canonical(fs::absolute(path, error), error), name);
    if (!is_new) {
      refuse("{}: got {}, expected another file than that of {}", name, quote(path), other->second);
    }
  }
}

/// What rank 0 will write, looked at before it computes anything. Changes nothing.
/// @throws UsageError unless --snapshot is, or can become, a regular file in a writable folder (it
/// is replaced by a rename, which would end a device or a pipe), --metrics, --trace and
/// --tensorboard can be written, and no two of the files are one
void check_output_files(const Options& options) {
  std::error_code error;
  const fs::file_status snapshot = fs::status(options.snapshot, error);
  if ((fs::exists(snapshot) && !fs::is_regular_file(snapshot)) ||
      fs::is_symlink(options.snapshot, error) ||  // one that leads in a circle
      !in_writable_folder(options.snapshot)) {
    refuse("--snapshot: got {}, expected a file in an existing, writable folder",
           quote(options.snapshot));
  }
  check_snapshot_name(options.snapshot);
  for (const auto& [name, path] :
       {std::pair("--metrics", options.metrics), std::pair("--trace", options.trace)}) {
    const fs::file_status file = fs::status(path, error);
    const bool writable = fs::exists(file)
                              ? !fs::is_directory(file) && access(path.c_str(), W_OK) == 0
                              : in_writable_folder(path);
    if (!path.empty() && !writable) {
      refuse("{}: got {}, expected a writable file, or a name in a writable folder", name,
             quote(path));
    }
  }
  check_different_files(options);
  if (!options.tensorboard.empty() && !can_hold_files(options.tensorboard)) {
    refuse("--tensorboard: got {}, expected a writable folder, or a name for one in such a folder",
           quote(options.tensorboard));
  }
}

/// torchrun reads this file to name the root cause. The rename makes it appear whole: the agent
/// itself fails on half a document.
void write_error_file(const std::string& message, const std::string& details) {
  const std::string path = process_getenv("TORCHELASTIC_ERROR_FILE").value_or("");
  if (path.empty()) {
    return;
  }
  const nlohmann::json document = {
      {"message",
       {{"message", message},
        {"extraInfo",
         {{"py_callstack", details}, {"timestamp", std::to_string(std::time(nullptr))}}}}}};
  const std::string temporary = fmt::format("{}.{}", path, getpid());
  std::ofstream file(temporary);
  // Messages may quote bytes that are not UTF-8.
  file << document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::flush;
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());  // the message is on stderr, and that is what counts
  }
}

/// See Note [One line]. @return false if this process has no parent who would print it
bool hand_to_parent(int code, const std::string& line) {
  const std::optional<std::string> fd = process_getenv("DDP_ERROR_FD");
  if (!fd) {
    return false;
  }
  const std::string text = to_text(internal::RankError{code, ending_children_of(getppid()), line});
  return send(std::atoi(fd->c_str()), text.data(), text.size(), MSG_NOSIGNAL) > 0;
}

/// The first line of `what`, as LibTorch's errors carry a backtrace after it.
std::string first_line(const std::string& what) {
  const size_t begin = what.find_first_not_of('\n');
  return begin == std::string::npos ? "an exception without a text"
                                    : what.substr(begin, what.find('\n', begin) - begin);
}

/// All of `what`: it may quote a path with a newline.
std::string one_line(std::string what) {
  for (size_t at = 0; (at = what.find('\n', at)) != std::string::npos;) {
    what.replace(at, 1, "\\x0a");
  }
  return what;
}

/// @param what one line
int report(const std::string& program, const std::string& who, const std::string& what, int code,
           const std::string& details) {
  if (what.empty()) {
    return code;
  }
  if (code == static_cast<int>(ExitCode::kRunAgain)) {
    std::cerr << program + ": " + what + "\n" << std::flush;  // as asked: no error
    return code;
  }
  const std::string line = program + ": error: " + who + what;
  if (!hand_to_parent(code, line)) {
    std::cerr << line + "\n" << std::flush;
  }
  write_error_file(line, details);
  return code;
}

std::string name_of_rank(const LaunchEnvironment& environment) {
  return environment.world_size > 1 ? fmt::format("[rank {}] ", environment.rank) : "";
}

void say_note(const std::string& program, const LaunchEnvironment& environment) {
  if (!environment.note.empty()) {
    std::cerr << program + ": note: " + environment.note + "\n";
  }
}

/// @throws UsageError for a fault that one rank alone cannot have
void check_fault(const Options& options, int world_size) {
  const bool needs_ranks = options.inject != "none" && options.inject != "no-set-epoch";
  if (needs_ranks && world_size == 1) {
    refuse("--inject {}: got world size 1, expected several ranks", options.inject);
  }
}

/// What a rank does about the ends of its launcher and of other ranks.
void end_with_launcher(const LaunchEnvironment& environment) {
  if (environment.launcher == "torchrun" || environment.launcher == "openmpi" ||
      environment.launcher == "hydra") {
    // A launcher that is killed cannot end its ranks any more: the kernel does it for spawn,
    // torchrun, mpirun and Hydra, which are the parents. (The others look after process groups.)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (environment.launcher == "openmpi" && is_unread(STDOUT_FILENO)) {
      std::_Exit(kFailed);  // killed before that: its ranks would find one another, and train on
    }
  }
  survive_broken_connections();
  if (environment.launcher == "slurm") {
    exit_on_sigterm();
  }
}

/// The exit code of whoever was the first to know how this program ends, main() or a thread.
constexpr int kUnknown = -1;
std::atomic<int> known_end = kUnknown;

bool is_first_to_know(int code) {
  int unknown = kUnknown;
  return known_end.compare_exchange_strong(unknown, code);
}

/// For main(): waits for ever if a thread has an error to tell, after which that ends the process.
int first_to_know(int code) {
  if (!is_first_to_know(code)) {
    for (;;) {
      pause();
    }
  }
  return code;
}

/// For std::terminate(), which would dump core, and for the first thread that comes here.
[[noreturn]] void end_by_thread_error() {
  static std::atomic_flag ends;
  while (ends.test_and_set()) {
    pause();
  }
  std::string what = "std::terminate() was called, expected an exception to say why";
  int code = kFailed;
  try {
    if (const std::exception_ptr thrown = std::current_exception()) {
      std::rethrow_exception(thrown);
    }
  } catch (const Error& error) {
    what = one_line(error.what());
    code = static_cast<int>(error.code());
  } catch (const std::exception& error) {
    what = first_line(error.what());
  } catch (...) {
    what = kUnknownType;
  }
  if (!is_first_to_know(code)) {
    // main() has said what it ends with; what it takes apart then is nobody's concern.
    std::this_thread::sleep_for(kOthersTurn);
    std::_Exit(known_end);
  }
  const std::string details = what;
  try {
    what = speaker.explain ? speaker.explain(what) : what;
  } catch (...) {
    // Then without: another exception would come here, too.
  }
  std::fflush(stdout);
  report(speaker.program, speaker.who, what, code, details);
  if (speaker.explain) {
    std::this_thread::sleep_for(kOthersTurn);
  }
  std::_Exit(code);
}

}  // namespace

namespace internal {

std::string to_text(const RankError& error) {
  return fmt::format("{} {} {} {}", error.code, error.ending.size(), fmt::join(error.ending, " "),
                     error.line.substr(0, kMostErrorBytes));
}

RankError rank_error_from(const std::string& text) {
  RankError error;
  std::istringstream words(text);
  size_t count = 0;
  words >> error.code >> count;
  for (error.ending.resize(count); pid_t & pid : error.ending) {
    words >> pid;
  }
  words >> std::ws;
  std::getline(words, error.line);
  return error;
}

int guarded(int argc, char** argv, const std::function<int(std::string& who)>& body) {
  fill_closed_streams();
  speaker = {.program = program_name(argc > 0 ? argv[0] : nullptr), .who = "", .explain = {}};
  const std::string& program = speaker.program;
  const std::string& who = speaker.who;
  std::set_terminate(end_by_thread_error);
  int code = kFailed;
  try {
    code = first_to_know(body(speaker.who));
  } catch (const Answered&) {
    code = first_to_know(static_cast<int>(ExitCode::kDone));
  } catch (const Error& error) {
    code = report(program, who, one_line(error.what()),
                  first_to_know(static_cast<int>(error.code())), error.what());
  } catch (const std::exception& error) {
    const auto* const system_error = dynamic_cast<const std::system_error*>(&error);
    if (system_error != nullptr &&
        system_error->code() == std::errc::resource_unavailable_try_again) {
      // Whoever it was that wanted one more: this program, LibTorch or Gloo.
      code = report(program, who,
                    fmt::format("a thread cannot be started ({}), expected the limit on processes "
                                "(ulimit -u, or a container's) to leave room for it",
                                system_error->code().message()),
                    first_to_know(static_cast<int>(ExitCode::kUsage)), error.what());
    } else {
      code = report(program, who, first_line(error.what()), first_to_know(kFailed), error.what());
    }
  } catch (...) {
    code = report(program, who, kUnknownType, first_to_know(kFailed), kUnknownType);
  }
  std::cout << std::flush;
  // An earlier write may have failed, too.
  const bool written = std::cout.good() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!written && code == 0) {
    const std::string what = "cannot write to stdout, expected room on its device";
    code = report(program, who, what, kFailed, what);
    known_end = code;
  }
  // Only now, when it is said why, may other ranks see that this one goes: see Note [One line].
  for (const auto& action : std::exchange(train_end_actions, {})) {
    action();
  }
  speaker.explain = {};
  if (skips_destructors) {
    std::_Exit(code);
  }
  return code;
}

int leave_if_refused(int code) {
  if (code == static_cast<int>(ExitCode::kUsage)) {
    std::_Exit(code);  // LibTorch's destructors take a third of the time of a refused start
  }
  return code;
}

void refuse_several(const Options& options, const LaunchEnvironment& environment, const char* why) {
  if (environment.world_size > 1) {
    refuse(
        "world size {} ({}): {} {}, expected it to be started once; use 04_ddp_launcher under "
        "torchrun, mpirun or srun",
        environment.world_size, environment.launcher, options.program, why);
  }
}

int run_main(int argc, char** argv, Launch launch, TrainFunction train) {
  bool trains = false;
  const int code = guarded(argc, argv, [&](std::string& who) {
    Options options = parse_options(argc, argv, launch);
    const LaunchEnvironment environment = read_launch_environment(options);
    who = name_of_rank(environment);
    if (environment.launcher == "spawn") {
      // It was executed as /proc/self/exe, and would be called "exe" in ps and top.
      prctl(PR_SET_NAME, options.program.c_str());
    }
    if (options.dump_env) {
      std::cout << describe(environment, options.json) << std::flush;
      return 0;
    }
    if (launch == Launch::kAlone) {
      refuse_several(options, environment, "is one process");
    }
    if (launch == Launch::kLauncher) {
      say_note(options.program, environment);
    }
    const int64_t batch_per_rank = resolve_batch_per_rank(options, environment.world_size);
    check_fault(options, environment.world_size);
    options.snapshot = follow_links(options.snapshot);
    if (environment.rank == 0) {
      check_output_files(options);  // before the others wait for this rank
    }
    end_with_launcher(environment);
    remember_user_signals();
    trains = true;
    Options settled = with_cpu_share(options, environment);
    if (!options.find_batch) {
      settled.batch_per_rank = batch_per_rank;
    }
    train(settled, environment);
    return 0;
  });
  return trains ? code : leave_if_refused(code);
}

}  // namespace internal

void skip_destructors_at_exit() {
  skips_destructors = true;
}

void explain_thread_errors(std::function<std::string(const std::string&)> explain) {
  speaker.explain = std::move(explain);
}

void at_train_end(std::function<void()> action) {
  train_end_actions.push_back(std::move(action));
}

int run_alone(int argc, char** argv, TrainFunction train) {
  return internal::run_main(argc, argv, Launch::kAlone, train);
}

int run_rank(int argc, char** argv, TrainFunction train) {
  return internal::run_main(argc, argv, Launch::kLauncher, train);
}

int run_rank(int argc, char** argv, const std::function<void(const LaunchEnvironment&)>& train) {
  return internal::guarded(argc, argv, [&](std::string& who) {
    Options options;
    options.program = speaker.program;
    options.launch = Launch::kLauncher;
    const LaunchEnvironment environment = read_launch_environment(options);
    who = name_of_rank(environment);
    say_note(options.program, environment);
    end_with_launcher(environment);
    train(environment);
    return 0;
  });
}

}  // namespace ddp
