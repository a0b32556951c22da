#include "common/launch/run_main.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <iostream>
#include <thread>

#include "common/base/command_line.hpp"
#include "common/base/files.hpp"
#include "common/base/json_text.hpp"
#include "common/base/parse.hpp"
#include "common/base/process_exit.hpp"
#include "common/base/signals.hpp"
#include "common/device/hardware.hpp"
#include "common/meet/launchers.hpp"

namespace ddp {
namespace {

/// Names of this process in its errors, for all threads.
struct ErrorPrefix {
  std::string program;
  std::string who;  ///< "[rank 2] "
} error_prefix;

/// Writes the file from which the launcher reads the root cause. It must appear whole, because
/// torchrun's agent fails on half a document.
void write_error_file(const std::string& line) {
  std::string path;
  for (const Launcher& launcher : launchers()) {
    path += process_getenv(launcher.error_file).value_or("");
  }
  if (path.empty()) {
    return;
  }
  const nlohmann::json document = {
      {"message",
       {{"message", line},
        {"extraInfo",
         {{"py_callstack", line}, {"timestamp", std::to_string(std::time(nullptr))}}}}}};
  try {
    replace_file("error file", path, json_text(document));
  } catch (const Error&) {  // the message is on stderr
  }
}

/// First line of `what`: LibTorch's errors have a backtrace after it.
std::string first_line(const std::string& what) {
  const size_t begin = what.find_first_not_of('\n');
  return begin == std::string::npos ? "an exception without a text"
                                    : what.substr(begin, what.find('\n', begin) - begin);
}

struct Failure {
  ExitCode code;
  std::string line;
};

/// @param thrown null if std::terminate() was called without an exception
Failure failure_of(const std::exception_ptr& thrown) {
  constexpr ExitCode kFailed = ExitCode::kTrainingFailed;
  try {
    if (thrown) {
      std::rethrow_exception(thrown);
    }
    return {kFailed, "std::terminate() was called without an exception"};
  } catch (const Error& error) {
    return {error.code(), printable(error.what())};
  } catch (const std::exception& error) {
    return {kFailed, printable(first_line(error.what()))};
  } catch (...) {
    return {kFailed, "an exception of unknown type"};
  }
}

int report_failure(const Failure& failure) {
  if (!failure.line.empty()) {  // else another rank has the message
    const std::string line = error_prefix.program + ": error: " + error_prefix.who + failure.line;
    std::cerr << line + "\n" << std::flush;
    write_error_file(line);
  }
  return static_cast<int>(failure.code);
}

/// std::terminate() handler: reports an exception that left a thread, instead of a core dump.
[[noreturn]] void end_by_thread_error() {
  Failure failure = failure_of(std::current_exception());
  const Explain explain = thread_error_explanation();
  if (explain) {
    failure.line = explain(failure.line);
  }
  const int code = report_failure(failure);
  if (explain) {
    std::this_thread::sleep_for(std::chrono::seconds(1));  // others read this process's store
  }
  std::cout << std::flush;
  std::_Exit(code);
}

/// Checks that rank 0 can write its files, before the first epoch. @throws UsageError
void check_output_files(const Options& options) {
  check_output_file("--snapshot", options.snapshot);
  check_output_file("--metrics", options.metrics, /*is_replaced=*/false);
  check_output_file("--trace", options.trace);
  const bool reads_file = options.dataset.ends_with(".safetensors");
  expect_different_files(
      "--dataset, --snapshot, --metrics, --trace",
      {reads_file ? options.dataset : "", options.snapshot, options.metrics, options.trace});
}

/// True if the reader of standard output is gone, for example mpirun.
bool is_unread() {
  pollfd out{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

/// Prepares a rank for the ends of its launcher and of other ranks.
void end_with_launcher(const LaunchEnvironment& environment) {
  const Launcher& launcher = launcher_of(environment);
  if (launcher.dies_with_parent) {
    // The kernel ends the ranks of a launcher that is killed, as for spawn.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (launcher.reads_output && is_unread()) {
      // The launcher was killed before prctl(): the ranks would meet and train on.
      std::_Exit(static_cast<int>(ExitCode::kTrainingFailed));
    }
  }
  if (launcher.terminates_ranks) {
    exit_on_sigterm();
  }
}

void say_notes(const LaunchEnvironment& environment) {
  for (const std::string& note : {environment.note, note_on_cores(environment)}) {
    if (!note.empty()) {
      std::cerr << error_prefix.program + ": note: " + note + "\n";
    }
  }
}

}  // namespace

int run_program(const std::function<int(std::string& who)>& body) {
  // Without the open streams the next files would become standard output or error.
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) {
    fd = open("/dev/null", O_RDWR);
  }
  close(fd);
  // Without the signals a file limit and a reader that has gone are errors of a call.
  std::signal(SIGXFSZ, SIG_IGN);
  survive_broken_connections();
  error_prefix = {.program = program_name(), .who = ""};
  std::set_terminate(end_by_thread_error);
  int code = static_cast<int>(ExitCode::kDone);
  try {
    code = body(error_prefix.who);
  } catch (const HelpPrinted&) {
  } catch (...) {
    code = report_failure(failure_of(std::current_exception()));
  }
  std::cout << std::flush;
  if (!std::cout && code == 0) {
    code = report_failure(
        {ExitCode::kTrainingFailed, "cannot write to stdout, expected a reader and room"});
  }
  explain_thread_errors({});
  run_train_end_actions();
  return exit_code_of_process(code);
}

std::string name_of_rank(const LaunchEnvironment& environment) {
  return environment.world_size > 1 ? fmt::format("[rank {}] ", environment.rank) : "";
}

void refuse_several(const std::string& program, const LaunchEnvironment& environment,
                    const char* why) {
  if (environment.world_size > 1) {
    refuse("world size: got {} from {}, expected 1: {} {}; 04_ddp_launcher is for launchers",
           environment.world_size, environment.launcher, program, why);
  }
}

int run_main(int argc, char** argv, StartedBy started_by, const ExtraOptions& extra,
             const TrainFunction& train) {
  return run_program([&](std::string& who) {
    Options options = parse_options(argc, argv, started_by, extra);
    const LaunchEnvironment environment = read_launch_environment(options);
    who = name_of_rank(environment);
    if (started_by == StartedBy::kUser) {
      refuse_several(options.program, environment, "is one process");
    } else if (started_by == StartedBy::kLauncher) {
      say_notes(environment);
      if (environment.launcher == LaunchEnvironment().launcher && environment.note.empty() &&
          !options.quiet) {
        std::cerr << options.program + ": note: no launcher started it, so it trains alone\n";
      }
    }
    options.threads = resolve_threads(options, environment);
    resolve_options(options, environment.world_size);
    if (environment.rank == 0) {
      check_output_files(options);
    }
    end_with_launcher(environment);
    remember_user_signals();
    const ExitCode code = train(options, environment);
    if (code == ExitCode::kRunAgain && environment.rank == 0) {
      std::cerr << fmt::format(
          "{}: stopped on request with snapshot {}; a restart by the launcher, or --resume auto, "
          "goes on from there\n",
          options.program, printable(options.snapshot));
    }
    return static_cast<int>(code);
  });
}

int run_alone(int argc, char** argv, AloneFunction train) {
  return run_main(
      argc, argv, StartedBy::kUser, {},
      [train](const Options& options, const LaunchEnvironment&) { return train(options); });
}

int run_rank(int argc, char** argv, const TrainFunction& train, const ExtraOptions& extra) {
  return run_main(argc, argv, StartedBy::kLauncher, extra, train);
}

int run_rank(const std::function<void(const LaunchEnvironment&)>& train) {
  return run_program([&](std::string& who) {
    const LaunchEnvironment environment = read_launch_environment();
    who = name_of_rank(environment);
    say_notes(environment);
    end_with_launcher(environment);
    train(environment);
    return static_cast<int>(ExitCode::kDone);
  });
}

}  // namespace ddp
