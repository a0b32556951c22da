#include "common/base/process_usage.hpp"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>

namespace ddp {
namespace {

double read_ms(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return double(now.tv_sec) * 1e3 + double(now.tv_nsec) * 1e-6;
}

}  // namespace

ProcessTimes process_times() {
  return {read_ms(CLOCK_PROCESS_CPUTIME_ID), read_ms(CLOCK_MONOTONIC)};
}

double peak_rss_mib() {
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;) {
    double kib = 0;
    if (word == "VmHWM:" && in >> kib) {
      return kib / 1024.0;
    }
  }
  return std::numeric_limits<double>::quiet_NaN();
}

std::chrono::system_clock::time_point process_start() {
  std::ifstream in("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  // The second field, the program's name in parentheses, may hold blanks; start time is the 22nd.
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) {
    fields >> field;
  }
  const double started_ms = std::stod(field) * 1e3 / double(sysconf(_SC_CLK_TCK));
  return std::chrono::system_clock::now() - std::chrono::microseconds(static_cast<int64_t>(
                                                (read_ms(CLOCK_BOOTTIME) - started_ms) * 1e3));
}

}  // namespace ddp
