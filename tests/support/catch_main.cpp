// tests/support/catch_main.cpp - main() of every test program, for Catch2 2 and 3. A test case
// without an assertion fails, and so does a program if no test case fits its arguments: they have
// tested nothing.
#include <cstdlib>
#include <iostream>

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Listener = Catch::EventListenerBase;
constexpr auto kNothingToRun = Catch::WarnAbout::UnmatchedTestSpec;
#else
#define CATCH_CONFIG_RUNNER
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>
using Listener = Catch::TestEventListenerBase;
constexpr auto kNothingToRun = Catch::WarnAbout::NoTests;
#endif

namespace {

bool one_was_empty = false;

class EmptyTestCases : public Listener {
 public:
  using Listener::Listener;
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    if (stats.totals.assertions.total() == 0) {
      one_was_empty = true;
      std::cout << "FAILED: a test case without an assertion\n";
    }
  }
};
CATCH_REGISTER_LISTENER(EmptyTestCases)

}  // namespace

int main(int argc, char** argv) {
  // Hides GPUs, because `--device auto` would use them.
  setenv("CUDA_VISIBLE_DEVICES", "", /*overwrite=*/1);
  Catch::Session session;
  session.configData().warnings = kNothingToRun;
  const int code = session.applyCommandLine(argc, argv);
  if (code != 0) {
    return code;
  }
  const int failed = session.run();
  return failed == 0 && one_was_empty ? 1 : failed;
}
