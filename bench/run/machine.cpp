#include "bench/run/machine.hpp"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
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

ordered_json or_null(const std::string& text) {
  return text.empty() ? ordered_json(nullptr) : ordered_json(text);
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return trimmed(line);
}

/// The value of the first "key<separator>value" line.
std::string value_of(const fs::path& path, const std::string& key, char separator) {
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
  std::istringstream text(value_of("/proc/meminfo", "MemTotal", ':'));
  double kib = 0;
  return text >> kib ? ordered_json(static_cast<std::int64_t>(kib / 1024)) : ordered_json(nullptr);
}

ordered_json load_average() {
  std::ifstream file("/proc/loadavg");
  double one = 0;
  double five = 0;
  double fifteen = 0;
  return file >> one >> five >> fifteen ? ordered_json{one, five, fifteen} : ordered_json(nullptr);
}

/// The flag that processors show to guests; nothing on processors without flags in /proc/cpuinfo.
ordered_json is_virtualised() {
  const std::string flags = value_of("/proc/cpuinfo", "flags", ':');
  if (flags.empty()) {
    return nullptr;
  }
  return (" " + flags + " ").find(" hypervisor ") != std::string::npos;
}

ordered_json gpu_names() {
  ordered_json names = ordered_json::array();
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", ignored)) {
    names.push_back(or_null(value_of(entry.path() / "information", "Model", ':')));
  }
  return names;
}

/// Standard output of a command that tells a version; empty if it fails.
std::string ask(const std::vector<std::string>& argv, const std::string& scratch,
                Interrupts& interrupts) {
  const Command command = {
      .argv = argv,
      .env = {},
      .cwd = "",
      .timeout_s = 10,
  };
  const ChildResult result = run_child(command, scratch, interrupts);
  return result.ok() ? result.out : "";
}

std::string first_line_of(const std::string& text) {
  return trimmed(text.substr(0, text.find('\n')));
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

ordered_json describe_machine() {
  utsname kernel{};
  uname(&kernel);
  std::string os = value_of("/etc/os-release", "PRETTY_NAME", '=');
  os.erase(std::remove(os.begin(), os.end(), '"'), os.end());
  ordered_json machine;
  machine["host"] = or_null(kernel.nodename);
  machine["cpu_model"] = or_null(value_of("/proc/cpuinfo", "model name", ':'));
  machine["cores"] = available_cores();
  machine["memory_mib"] = memory_mib();
  machine["gpus"] = gpu_names();
  machine["load_average"] = load_average();
  machine["cpu_governor"] =
      or_null(first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
  machine["virtualised"] = is_virtualised();
  machine["kernel"] = or_null(kernel.release);
  machine["os"] = or_null(os);
  return machine;
}

void ask_launchers(Plan& plan, const std::string& scratch, Interrupts& interrupts) {
  if (const auto found = plan.launchers.find("torchrun"); found != plan.launchers.end()) {
    const fs::path python = fs::path(found->second.path).parent_path() / "python3";
    const std::string version =
        !fs::exists(python)
            ? ""
            : first_line_of(ask({python.string(), "-c",
                                 "from importlib.metadata import version; print(version('torch'))"},
                                scratch, interrupts));
    found->second.version =
        version.empty() ? std::nullopt : std::optional<std::string>("torch " + version);
  }
  if (const auto found = plan.launchers.find("srun"); found != plan.launchers.end()) {
    const std::string version =
        first_line_of(ask({found->second.path, "--version"}, scratch, interrupts));
    found->second.version = version.empty() ? std::nullopt : std::optional<std::string>(version);
  }
  if (const auto found = plan.launchers.find("mpirun"); found != plan.launchers.end()) {
    const std::string text = ask({found->second.path, "--version"}, scratch, interrupts);
    if (interrupts.requested()) {
      return;  // it had no time to answer
    }
    const std::string version = first_line_of(text);
    if (text.find("Open MPI") != std::string::npos || text.find("OpenRTE") != std::string::npos) {
      found->second.version = version;
      return;
    }
    plan.not_run.push_back(
        {"mpirun", found->second.path + " is not Open MPI's (it says \"" + version + "\")"});
    plan.launchers.erase(found);
    plan.configurations.erase(
        std::remove_if(plan.configurations.begin(), plan.configurations.end(),
                       [](const Configuration& c) { return c.launcher == "mpirun"; }),
        plan.configurations.end());
  }
}

ordered_json describe_software(const Plan& plan, const std::string& scratch,
                               Interrupts& interrupts) {
  ordered_json software;
#ifdef __clang__
  software["compiler"] = std::string("clang ") + __clang_version__;
#else
  software["compiler"] = std::string("g++ ") + __VERSION__;
#endif
#ifdef NDEBUG
  software["assertions"] = false;
#else
  software["assertions"] = true;
#endif
#ifdef DDP_TORCH_VERSION
  software["libtorch"] = DDP_TORCH_VERSION;
#else
  software["libtorch"] = nullptr;
#endif
  software["git_commit"] =
      or_null(first_line_of(ask({"git", "-C", plan.stage_dir, "describe", "--always", "--dirty",
                                 "--abbrev=40", "--exclude=*"},
                                scratch, interrupts)));
  ordered_json launchers = ordered_json::object();
  for (const char* name : {"torchrun", "mpirun", "srun"}) {
    const auto found = plan.launchers.find(name);
    if (found == plan.launchers.end()) {
      launchers[name] = nullptr;
      continue;
    }
    launchers[name] = {
        {"path", found->second.path},
        {"version", found->second.version ? ordered_json(*found->second.version) : nullptr},
    };
  }
  software["launchers"] = launchers;
  return software;
}

}  // namespace ddp::bench
