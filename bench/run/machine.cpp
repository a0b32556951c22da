#include "bench/run/machine.hpp"

#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace ddp::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

ordered_json text_or_null(const std::string& text) {
  return text.empty() ? ordered_json(nullptr) : ordered_json(text);
}

/// The value of the first "key<separator>value" line; empty without one.
std::string value_of(const fs::path& path, const std::string& key, char separator = ':') {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t at = line.find(separator);
    if (at != std::string::npos && trimmed(line.substr(0, at)) == key) {
      return trimmed(line.substr(at + 1));
    }
  }
  return "";
}

ordered_json memory_mib() {
  const std::int64_t kib = std::atoll(value_of("/proc/meminfo", "MemTotal").c_str());
  return kib > 0 ? ordered_json(kib / 1024) : ordered_json(nullptr);
}

ordered_json load_average() {
  std::array<double, 3> loads{};
  return getloadavg(loads.data(), 3) == 3 ? ordered_json(loads) : ordered_json(nullptr);
}

std::string cpu_governor() {
  std::string governor;
  std::ifstream("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") >> governor;
  return governor;
}

/// The flag that processors show to guests; nothing on processors without flags in /proc/cpuinfo.
ordered_json is_virtualised() {
  const std::string flags = value_of("/proc/cpuinfo", "flags");
  return flags.empty()
             ? ordered_json(nullptr)
             : ordered_json((" " + flags + " ").find(" hypervisor ") != std::string::npos);
}

ordered_json gpu_names() {
  ordered_json names = ordered_json::array();
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", ignored)) {
    names.push_back(text_or_null(value_of(entry.path() / "information", "Model")));
  }
  return names;
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0
                        ? CPU_COUNT(&set)
                        : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(cores, 1);
}

int visible_gpus() {
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    const std::string list = visible;
    const bool none = list.empty() || list[0] == '-';
    return none ? 0 : 1 + static_cast<int>(std::count(list.begin(), list.end(), ','));
  }
  int count = 0;
  while (fs::exists("/dev/nvidia" + std::to_string(count))) {
    ++count;
  }
  return count;
}

ordered_json describe_machine() {
  utsname kernel{};
  uname(&kernel);
  std::string os = value_of("/etc/os-release", "PRETTY_NAME", '=');
  std::erase(os, '"');
  return {
      {"host", text_or_null(kernel.nodename)},
      {"cpu_model", text_or_null(value_of("/proc/cpuinfo", "model name"))},
      {"cores", available_cores()},
      {"memory_mib", memory_mib()},
      {"gpus", gpu_names()},
      {"load_average", load_average()},
      {"cpu_governor", text_or_null(cpu_governor())},
      {"virtualised", is_virtualised()},
      {"kernel", text_or_null(kernel.release)},
      {"os", text_or_null(os)},
  };
}

}  // namespace ddp::bench
