// submit - writes a job's submission file, submits it, and keeps track of it. See condor/README.md.
#include <csignal>

#include "common/launch/run_main.hpp"
#include "tools/submit/commands.hpp"

int main(int argc, char** argv) {
  // Where it is ignored, as whoever starts this may have left it, nobody learns how a child ended.
  std::signal(SIGCHLD, SIG_DFL);
  return ddp::internal::guarded(
      argc, argv, [argc, argv](std::string&) { return ddp::submit::run(argc, argv); });
}
