#include "bench/run/child_failure.hpp"

#include <cstdio>
#include <cstring>
#include <sstream>

namespace ddp::bench {
namespace {

constexpr std::size_t kMaxReasonBytes = 300;

/// The line of a program's standard error that most likely tells what was wrong. Launchers wrap
/// it in pages of their own, so the first line that speaks of an error counts, else the last one.
std::string reason_in(const std::string& err) {
  std::istringstream lines(err);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r-=*") == std::string::npos) {
      continue;
    }
    last = line;
    if (line.find("error:") != std::string::npos) {
      break;
    }
  }
  for (char& c : last) {
    c = static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e ? '?' : c;
  }
  if (last.size() > kMaxReasonBytes) {
    last = last.substr(0, kMaxReasonBytes) + "...";
  }
  return last;
}

}  // namespace

std::string describe_failure(const ChildResult& result, double timeout_s) {
  std::string text;
  if (result.timed_out) {
    char buffer[64];
    std::snprintf(buffer, sizeof(buffer), "still running after %g s", timeout_s);
    text = buffer;
  } else if (result.signal != 0) {
    text =
        "killed by signal " + std::to_string(result.signal) + " (" + strsignal(result.signal) + ")";
  } else {
    text = "exit code " + std::to_string(result.exit_code);
  }
  std::string reason = reason_in(result.err);
  if (result.timed_out && reason.find("error:") == std::string::npos) {
    reason.clear();  // what a launcher says about having been stopped is not why it hung
  }
  return reason.empty() ? text : text + ": " + reason;
}

}  // namespace ddp::bench
