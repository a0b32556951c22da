#include "common/base/process_usage.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>

namespace ddp {
namespace {

namespace fs = std::filesystem;

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

double read_ms(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return double(now.tv_sec) * 1e3 + double(now.tv_nsec) * 1e-6;
}

/// Whether `list`, of names with commas between them, has `name`.
bool has_name(const std::string& list, const std::string& name) {
  return ("," + list + ",").find("," + name + ",") != std::string::npos;
}

/// A group's own quota. @param v2 false: of control groups version 1
double quota_of(const fs::path& group, bool v2) {
  double quota_us = kUnlimited;  // "max", "-1" and a root group's missing file too
  double period_us = 0;
  if (v2) {
    std::ifstream(group / "cpu.max") >> quota_us >> period_us;
  } else {
    std::ifstream(group / "cpu.cfs_quota_us") >> quota_us;
    std::ifstream(group / "cpu.cfs_period_us") >> period_us;
  }
  return quota_us > 0 && period_us > 0 ? quota_us / period_us : kUnlimited;
}

/// The path of this process's group in a hierarchy, as /proc/self/cgroup has it.
/// @param controller of version 1
std::string group_path(const fs::path& root, bool v2, const std::string& controller) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    // "4:cpu,cpuacct:/a/b", or "0::/a/b" for version 2
    const size_t controllers = line.find(':') + 1;
    const size_t path = line.find(':', controllers) + 1;
    const std::string names = line.substr(controllers, path - 1 - controllers);
    if (v2 ? names.empty() : has_name(names, controller)) {
      return line.substr(path);
    }
  }
  return "/";
}

/// Calls `visit(group, v2)` for this process's control groups that have the controller, from its
/// own upwards as far as they are mounted.
template <typename Visit>
void for_each_group(const fs::path& root, const std::string& controller, const Visit& visit) {
  std::ifstream mounts(root / "proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    // "33 31 0:29 /root /where options ... - type source options"
    std::istringstream fields(line);
    std::string skipped;
    std::string mounted_root;
    std::string where;
    fields >> skipped >> skipped >> skipped >> mounted_root >> where;
    std::istringstream end(line.substr(std::min(line.rfind(" - "), line.size())));
    std::string type;
    std::string options;
    end >> skipped >> type >> skipped >> options;
    const bool v2 = type == "cgroup2";
    if (!v2 && (type != "cgroup" || !has_name(options, controller))) {
      continue;
    }
    // A container may see its group's path on the host, and have only that group mounted.
    const fs::path mount = root / fs::path(where).relative_path();
    const fs::path own =
        fs::path(group_path(root, v2, controller)).lexically_relative(mounted_root);
    fs::path group = own.empty() || *own.begin() == ".." ? mount : (mount / own).lexically_normal();
    for (; group != mount && group.has_relative_path(); group = group.parent_path()) {
      visit(group, v2);
    }
    visit(mount, v2);
  }
}

/// The number behind `key` in a file of words, or `otherwise`. An empty key: the first number.
double find_number(const fs::path& file, const std::string& key, double otherwise) {
  std::ifstream in(file);
  double number = 0;
  for (std::string word; key.empty() || in >> word;) {
    if (key.empty() || word == key) {
      return in >> number ? number : otherwise;  // "max" and "unlimited" are none
    }
  }
  return otherwise;
}

/// Of a group's memory, without the pages of files. @param v2 as quota_of()
double used_memory(const fs::path& group, bool v2) {
  double bytes = find_number(group / (v2 ? "memory.current" : "memory.usage_in_bytes"), "", 0);
  for (const std::string pages : {"inactive_file", "active_file"}) {
    bytes -= find_number(group / "memory.stat", v2 ? pages : "total_" + pages, 0);
  }
  return bytes;
}

}  // namespace

double cpu_quota(const std::string& root) {
  double least = kUnlimited;
  for_each_group(root, "cpu", [&](const fs::path& group, bool v2) {
    least = std::min(least, quota_of(group, v2));
  });
  return least;
}

MemoryBudget memory_budget(std::optional<int64_t> limit_bytes, int sharers,
                           const std::string& root_folder) {
  const fs::path root = root_folder;
  MemoryBudget least{std::numeric_limits<int64_t>::max(), 0};
  const auto consider = [&least](int64_t bound, double limit, double used, int processes) {
    const double bytes = (limit * (1 - kMemoryMargin) - used) / processes;
    if (bytes < static_cast<double>(least.bytes)) {
      least = {static_cast<int64_t>(std::max(bytes, 0.0)), bound};
    }
  };
  double address_pages = 0;
  double resident_pages = 0;
  std::ifstream(root / "proc/self/statm") >> address_pages >> resident_pages;
  const auto page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
  if (limit_bytes) {
    consider(0, static_cast<double>(*limit_bytes), resident_pages * page_bytes, 1);
  }
  consider(1, find_number(root / "proc/self/limits", "space", kUnlimited),
           address_pages * page_bytes, 1);
  for_each_group(root, "memory", [&](const fs::path& group, bool v2) {
    const double limit =
        find_number(group / (v2 ? "memory.max" : "memory.limit_in_bytes"), "", kUnlimited);
    if (std::isfinite(limit)) {
      consider(2, limit, used_memory(group, v2), sharers);
    }
  });
  consider(3, find_number(root / "proc/meminfo", "MemAvailable:", kUnlimited) * 1024, 0, sharers);
  return least;
}

ProcessTimes process_times() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {
      .cpu_ms = read_ms(CLOCK_PROCESS_CPUTIME_ID),
      .wall_ms = read_ms(CLOCK_MONOTONIC),
      .minor_faults = double(usage.ru_minflt),
      .major_faults = double(usage.ru_majflt),
      .voluntary_switches = double(usage.ru_nvcsw),
      .involuntary_switches = double(usage.ru_nivcsw),
  };
}

void ProcessTimes::add(const ProcessTimes& begin, const ProcessTimes& end) {
  for (double ProcessTimes::*reading :
       {&ProcessTimes::cpu_ms, &ProcessTimes::wall_ms, &ProcessTimes::minor_faults,
        &ProcessTimes::major_faults, &ProcessTimes::voluntary_switches,
        &ProcessTimes::involuntary_switches}) {
    this->*reading += end.*reading - begin.*reading;
  }
}

double peak_rss_mib() {
  return find_number("/proc/self/status", "VmHWM:", std::numeric_limits<double>::quiet_NaN()) /
         1024.0;
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
