#include "bench/run/machine.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "bench/report/verdict.hpp"
#include "bench/run/processor_use.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/process.hpp"
#include "common/base/seconds_since.hpp"
#include "common/launch/cpu_share.hpp"

namespace ddp::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr double kAnswerTimeoutSeconds = 10;
constexpr double kLookSeconds = 1;  // for how long the processors are looked at
constexpr double kInstallTimeoutSeconds = 1800;  // some frameworks are gigabytes

/// True inside an allocation of Slurm's, where srun starts at once.
bool inside_slurm_allocation() {
  const char* const job = std::getenv("SLURM_JOB_ID");
  return job != nullptr && *job != '\0';
}

/// The checkout's own environment first: its torchrun belongs to the LibTorch that was built with.
std::optional<std::string> find_torchrun(const fs::path& stage_dir) {
  for (fs::path folder = stage_dir;; folder = folder.parent_path()) {
    const fs::path candidate = folder / ".venv" / "bin" / "torchrun";
    if (is_executable(candidate.string())) {
      return candidate.string();
    }
    if (folder == folder.parent_path()) {
      return find_in_path("torchrun");
    }
  }
}

/// Standard output of a command that tells a version; empty if it fails.
std::string ask(const std::vector<std::string>& argv, Session& session) {
  const ChildResult result = run_child({.argv = argv, .timeout_s = kAnswerTimeoutSeconds}, session);
  return result.ok() ? result.out : "";
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find_first_of("\r\n"));
}

std::string last_line(std::string text) {
  text.erase(text.find_last_not_of('\n') + 1);
  return text.substr(text.rfind('\n') + 1);
}

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

void find_launchers(Plan& plan) {
  const std::vector<std::string>& asked = plan.settings.launchers;
  const bool has_allocation = inside_slurm_allocation();
  for (const std::string name : {"spawn", "torchrun", "mpirun", "srun"}) {
    const bool is_srun = name == "srun";
    if (asked.empty() ? is_srun && !has_allocation : !contains(asked, name)) {
      continue;
    }
    if (name == "spawn") {
      plan.launchers[name] = {""};
      continue;
    }
    const bool is_torchrun = name == "torchrun";
    std::string missing = is_torchrun ? "neither in .venv nor in PATH" : "not in PATH";
    std::optional<std::string> path =
        is_torchrun ? find_torchrun(plan.settings.stage_dir) : find_in_path(name);
    if (is_srun && path && !has_allocation) {
      path.reset();
      missing = "no allocation (SLURM_JOB_ID is not set)";
    }
    if (path) {
      plan.launchers[name] = {*path};
    } else if (asked.empty()) {
      plan.not_run.push_back({name, missing});
    } else {
      throw UsageError(fmt::format("--launchers {}: {}, expected {}", name, missing,
                                   is_srun ? "to run inside an allocation" : "an executable"));
    }
  }
}

void ask_launchers(Plan& plan, Session& session) {
  bool is_other_mpi = false;
  for (auto& [name, launcher] : plan.launchers) {
    if (name == "spawn") {
      continue;
    }
    std::vector<std::string> question = {launcher.path, "--version"};
    if (name == "torchrun") {
      // It takes seconds to answer; the Python beside it knows too.
      question = {(fs::path(launcher.path).parent_path() / "python3").string(), "-c",
                  "from importlib.metadata import version; print('torch', version('torch'))"};
    }
    const std::string answer = ask(question, session);
    launcher.version = first_line(answer);
    // One that was interrupted had no time to answer.
    if (name == "mpirun" && !session.interrupts.requested()) {
      is_other_mpi = answer.find("Open MPI") == std::string::npos &&
                     answer.find("OpenRTE") == std::string::npos;
    }
  }
  if (is_other_mpi) {
    const Launcher& mpirun = plan.launchers.at("mpirun");
    plan.not_run.push_back({"mpirun", fmt::format("{} is not Open MPI's (it says \"{}\")",
                                                  mpirun.path, mpirun.version)});
    plan.launchers.erase("mpirun");
    // What has one launcher only then takes the other one of one host.
    const auto has_another = [&](const Configuration& one) {
      return std::ranges::any_of(plan.configurations, [&](const Configuration& c) {
        return c.program.name == one.program.name && c.launcher != "mpirun";
      });
    };
    for (Configuration& c : plan.configurations) {
      if (c.launcher == "mpirun" && c.backend != "mpi" && plan.launchers.contains("torchrun") &&
          !has_another(c)) {
        c.launcher = "torchrun";
      }
    }
    std::erase_if(plan.configurations,
                  [](const Configuration& c) { return c.launcher == "mpirun"; });
  }
}

void install_peers(Plan& plan, Session& session) {
  for (auto& [peer, python] : plan.peer_pythons) {
    session.progress.note(fmt::format("peer {}: checking what is installed", peer));
    const bool is_asked = contains(plan.settings.peers, peer);
    std::vector<std::string> argv = {(fs::path(plan.settings.peers_dir) / "install.sh").string(),
                                     peer};
    if (!is_asked) {
      argv.insert(argv.begin() + 1, "--only-look");
    }
    const ChildResult result =
        run_child({.argv = argv, .timeout_s = kInstallTimeoutSeconds}, session);
    if (result.interrupted) {
      return;
    }
    python = last_line(result.out);
    const bool is_there = result.ok() && !python.empty();
    if (!is_there && !is_asked) {
      plan.not_run.push_back(
          {peer, fmt::format("it is not installed; --peers {} installs it first", peer)});
      std::erase_if(plan.configurations,
                    [&](const Configuration& c) { return c.program.name == peer; });
    } else if (!is_there) {
      throw UsageError(
          fmt::format("--peers {} cannot be installed: {}", peer, last_line(result.err)));
    }
  }
}

std::optional<double> wait_for_quiet(int most_s, Session& session) {
  using std::chrono::steady_clock;
  const auto end = steady_clock::now() + std::chrono::seconds(most_s);
  std::optional<double> others_share;
  bool told = false;
  while (steady_clock::now() < end && !session.interrupts.requested()) {
    const std::optional<ProcessorTimes> before = processor_times();
    const auto begin = steady_clock::now();
    while (seconds_since(begin) < kLookSeconds && !session.interrupts.requested()) {
      session.interrupts.wait_for_child(kLookSeconds - seconds_since(begin));
    }
    others_share = use_between(before, processor_times()).others_share;
    if (!others_share || *others_share < kDisturbedShare) {
      break;
    }
    if (!std::exchange(told, true)) {
      session.progress.note(fmt::format(
          "waiting at most {} s: other programs use {:.0f} % of the processors, expected less than "
          "{:.0f} %",
          most_s, *others_share * 100, kDisturbedShare * 100));
    }
  }
  return others_share;
}

ordered_json describe_machine(const std::optional<double>& busy_before_share) {
  utsname kernel{};
  uname(&kernel);
  std::string os = value_of("/etc/os-release", "PRETTY_NAME", '=');
  std::erase(os, '"');
  return {
      {"host", text_or_null(kernel.nodename)},
      {"cpu_model", text_or_null(value_of("/proc/cpuinfo", "model name"))},
      {"cores", count_processors(allowed_cores())},
      {"memory_mib", memory_mib()},
      {"gpus", gpu_names()},
      {"load_average", load_average()},
      {"busy_before_share",
       busy_before_share ? ordered_json(*busy_before_share) : ordered_json(nullptr)},
      {"cpu_governor", text_or_null(cpu_governor())},
      {"virtualised", is_virtualised()},
      {"kernel", text_or_null(kernel.release)},
      {"os", text_or_null(os)},
  };
}

ordered_json describe_software(const Plan& plan, Session& session) {
#ifdef __clang__
  const std::string compiler = std::string("clang ") + __clang_version__;
#else
  const std::string compiler = std::string("g++ ") + __VERSION__;
#endif
#ifdef NDEBUG
  constexpr bool kAssertions = false;
#else
  constexpr bool kAssertions = true;
#endif
  ordered_json launchers = ordered_json::object();
  for (const char* name : {"torchrun", "mpirun", "srun"}) {
    const auto found = plan.launchers.find(name);
    launchers[name] = nullptr;
    if (found != plan.launchers.end()) {
      launchers[name] = {{"path", found->second.path},
                         {"version", text_or_null(found->second.version)}};
    }
  }
  return {
      {"compiler", compiler},
      {"assertions", kAssertions},
      {"libtorch", DDP_TORCH_VERSION},
      {"git_commit",
       text_or_null(first_line(ask({"git", "-C", plan.settings.stage_dir, "describe", "--always",
                                    "--dirty", "--abbrev=40", "--exclude=*"},
                                   session)))},
      {"launchers", launchers},
  };
}

}  // namespace ddp::bench
