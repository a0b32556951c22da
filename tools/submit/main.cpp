// submit - writes a job's submission file, submits it, and keeps track of it. See condor/README.md.
#include <csignal>

#include "common/base/exit_codes.hpp"
#include "common/launch/run_main.hpp"
#include "tools/submit/commands.hpp"

namespace {

int run(const ddp::submit::CommandLine& line) {
  using ddp::submit::Action;
  switch (line.action) {
    case Action::kList:
      return ddp::submit::list(line);
    case Action::kStatus:
      return ddp::submit::status(line);
    case Action::kLogs:
      return ddp::submit::logs(line);
    case Action::kCancel:
      return ddp::submit::cancel(line);
    case Action::kResubmit:
      return ddp::submit::resubmit(line);
    case Action::kSubmit:
      break;
  }
  return ddp::submit::submit(line);
}

}  // namespace

int main(int argc, char** argv) {
  // Where it is ignored, as whoever starts this may have left it, nobody learns how a child ended.
  std::signal(SIGCHLD, SIG_DFL);
  return ddp::internal::guarded(argc, argv, [argc, argv](std::string&) {
    const auto line = ddp::submit::parse_command_line(argc, argv);
    return line ? run(*line) : static_cast<int>(ddp::ExitCode::kDone);
  });
}
