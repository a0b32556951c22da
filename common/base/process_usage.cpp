#include "common/base/process_usage.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <ctime>
#include <limits>
#include <sstream>
#include <string>

#include "common/base/files.hpp"
#include "common/base/parse.hpp"

namespace ddp {

double peak_rss_mib() {
  const int64_t kib = number_after("VmHWM:", read_text("/proc/self/status"));
  return kib > 0 ? static_cast<double>(kib) / 1024 : std::numeric_limits<double>::quiet_NaN();
}

CpuTimes cpu_times() {
  const auto to_ms = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) * 1e-3;
  };
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {.user_ms = to_ms(usage.ru_utime), .system_ms = to_ms(usage.ru_stime)};
}

std::chrono::system_clock::time_point process_start() {
  const std::string text = read_text("/proc/self/stat");
  // The second field, the program's name in parentheses, may hold blanks; start time is the 22nd.
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) {
    fields >> field;
  }
  const double started_ms = std::stod(field) * 1e3 / static_cast<double>(sysconf(_SC_CLK_TCK));
  timespec since_boot{};
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  const double now_ms =
      static_cast<double>(since_boot.tv_sec) * 1e3 + static_cast<double>(since_boot.tv_nsec) * 1e-6;
  return std::chrono::system_clock::now() -
         std::chrono::microseconds(static_cast<int64_t>((now_ms - started_ms) * 1e3));
}

}  // namespace ddp
