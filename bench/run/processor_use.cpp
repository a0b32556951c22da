#include "bench/run/processor_use.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace ddp::bench {
namespace {

double used_s(int whose) {
  rusage usage{};
  getrusage(whose, &usage);
  return double(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         double(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

}  // namespace

std::optional<ProcessorTimes> processor_times(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  // Guests' time is a part of user and nice.
  double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, irq = 0, softirq = 0, stolen = 0;
  file >> name >> user >> nice >> system >> idle >> waiting >> irq >> softirq >> stolen;
  if (!file || name != "cpu") {
    return std::nullopt;
  }
  const double busy = user + nice + system + irq + softirq;
  const auto ticks_per_s = static_cast<double>(sysconf(_SC_CLK_TCK));
  return ProcessorTimes{.total_s = (busy + idle + waiting + stolen) / ticks_per_s,
                        .busy_s = busy / ticks_per_s,
                        .stolen_s = stolen / ticks_per_s,
                        .own_s = used_s(RUSAGE_SELF) + used_s(RUSAGE_CHILDREN)};
}

ProcessorUse use_between(const std::optional<ProcessorTimes>& begin,
                         const std::optional<ProcessorTimes>& end) {
  if (!begin || !end || end->total_s <= begin->total_s) {
    return {};
  }
  const auto share = [&](double seconds) {
    return std::clamp(seconds / (end->total_s - begin->total_s), 0.0, 1.0);
  };
  const double own_s = end->own_s - begin->own_s;
  return {.others_share = share(end->busy_s - begin->busy_s - own_s),
          .stolen_share = share(end->stolen_s - begin->stolen_s)};
}

std::string scheduling_class() {
  sched_param parameters{};
  sched_getparam(0, &parameters);
  switch (sched_getscheduler(0) & ~SCHED_RESET_ON_FORK) {
    case SCHED_FIFO:
      return fmt::format("fifo {}", parameters.sched_priority);
    case SCHED_RR:
      return fmt::format("rr {}", parameters.sched_priority);
    case SCHED_BATCH:
      return "batch";
    case SCHED_IDLE:
      return "idle";
    default:
      return "other";
  }
}

}  // namespace ddp::bench
