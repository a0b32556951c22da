// submit - writes a job's submission file, submits it, and keeps track of it. See condor/README.md.
#include <iostream>

#include "common/exit_codes.hpp"
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
  try {
    const int code = run(ddp::submit::parse_command_line(argc, argv));
    std::cout << std::flush;
    return std::cout.good() ? code : static_cast<int>(ddp::ExitCode::kTrainingFailed);
  } catch (const ddp::Error& error) {
    std::cerr << std::string("submit: error: ") + error.what() + "\n";
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << std::string("submit: error: ") + error.what() + "\n";
    return static_cast<int>(ddp::ExitCode::kTrainingFailed);
  }
}
