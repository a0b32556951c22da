#include "common/base/process_usage.hpp"

#include <unistd.h>

#include <ctime>

#include "common/base/files.hpp"
#include "common/base/parse.hpp"

namespace ddp {
namespace {

double to_ms(const timespec& time) {
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

}  // namespace

double peak_rss_mib() {
  const int64_t kib = number_after("VmHWM:", read_text("/proc/self/status"));
  return kib > 0 ? static_cast<double>(kib) / 1024 : std::numeric_limits<double>::quiet_NaN();
}

double cpu_ms() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return to_ms(used);
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
  return std::chrono::system_clock::now() -
         std::chrono::microseconds(static_cast<int64_t>((to_ms(since_boot) - started_ms) * 1e3));
}

}  // namespace ddp
