#include "bench/machine.hpp"

#include <fmt/ranges.h>
#include <sched.h>
#include <sys/times.h>
#include <sys/utsname.h>

#include <cstdio>
#include <filesystem>

#include "bench/command.hpp"
#include "bench/launchers.hpp"
#include "common/device/blas.hpp"
#include "common/device/hardware.hpp"

namespace ddp::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr double kInstallTimeoutSeconds = 1800;  // some frameworks are gigabytes

std::string last_line(std::string text) {
  text.erase(text.find_last_not_of('\n') + 1);
  return text.substr(text.rfind('\n') + 1);
}

/// Value of the first line "key: value" of a file, or "unknown".
std::string value_of(const fs::path& path, const std::string& key) {
  for (const std::string& line : split(read_text(path), '\n')) {
    const std::size_t begin = line.find_first_not_of(": \t", key.size());
    if (line.starts_with(key) && begin != std::string::npos) {
      return line.substr(begin);
    }
  }
  return "unknown";
}

/// Seconds since boot in which other programs, or other virtual machines, used this process's
/// cores; NaN if the kernel does not tell.
double used_by_others_s() {
  cpu_set_t own;
  tms used{};  // of this process and its ended children
  if (sched_getaffinity(0, sizeof(own), &own) != 0 || ::times(&used) == -1) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  long long ticks = -(used.tms_utime + used.tms_stime + used.tms_cutime + used.tms_cstime);
  for (const std::string& line : split(read_text("/proc/stat"), '\n')) {
    unsigned core = 0;
    long long user = 0, nice = 0, system = 0, irq = 0, softirq = 0, steal = 0;
    const int found =  // without idle and iowait
        std::sscanf(line.c_str(), "cpu%u %lld %lld %lld %*d %*d %lld %lld %lld", &core, &user,
                    &nice, &system, &irq, &softirq, &steal);
    if (found == 7 && CPU_ISSET(core, &own)) {
      ticks += user + nice + system + irq + softirq + steal;
    }
  }
  return static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

/// Cores that others used on average, to a hundredth.
double cores_since(std::chrono::steady_clock::time_point begin, double begin_used_s) {
  const double cores = (used_by_others_s() - begin_used_s) / seconds_since(begin);
  return std::round(100 * std::clamp<double>(cores, 0, count_cores())) / 100;
}

bool is_much(double cores) {
  return cores > 0.05 * count_cores();
}

std::string busy_text(const char* verb, double cores) {
  return fmt::format("Other programs {} {:.1f} of {} cores: close them, or distrust the numbers.",
                     verb, cores, count_cores());
}

}  // namespace

void install_peers(Plan& plan, Session& session) {
  for (auto& [peer, python] : plan.pythons) {
    session.progress.note(fmt::format("peer {}: looking what is installed", peer));
    const ChildResult result = run_child({.argv = {plan.settings.peers_dir + "/install.sh", peer},
                                          .timeout_s = kInstallTimeoutSeconds},
                                         session);
    if (result.interrupted) {
      return;
    }
    python = last_line(result.out);
    if (!result.ok() || python.empty()) {
      refuse("--peers {}: cannot be installed: {}", peer, last_line(result.err));
    }
  }
}

void add_facts(const Plan& plan, Report& report) {
  const Settings& settings = plan.settings;
  ordered_json gpus = ordered_json::array();
  std::error_code ignored;
  for (const auto& folder : fs::directory_iterator("/proc/driver/nvidia/gpus", ignored)) {
    gpus.push_back(value_of(folder.path() / "information", "Model"));
  }
  utsname kernel{};
  uname(&kernel);
  const std::int64_t memory_kib = number_after("MemTotal:", read_text("/proc/meminfo"));
  report.machine = {{"host", kernel.nodename},
                    {"cpu_model", value_of("/proc/cpuinfo", "model name")},
                    {"cores", count_cores()},
                    {"memory_mib", memory_kib / 1024},
                    {"gpus", gpus},
                    {"kernel", kernel.release}};
  const std::string commit =
      last_line(answer_of({"git", "-C", settings.peers_dir, "describe", "--always", "--dirty",
                           "--abbrev=40", "--exclude=*"}));
  report.software = {{"compiler", DDP_COMPILER},
                     {"libtorch", DDP_TORCH_VERSION},
                     {"blas", find_blas()},
                     {"git_commit", commit},
                     {"launchers", plan.launchers}};
  std::vector<std::string> command = {"bench"};
  command.insert(command.end(), settings.arguments.begin(), settings.arguments.end());
  report.settings = {{"command", shell_line(command)},
                     {"repetitions", settings.most_repetitions()},
                     {"seed", settings.seed},
                     {"timeout_s", settings.timeout_s},
                     {"parity_tolerance", kParityTolerance}};
  report.not_run = plan.not_run;
}

OtherPrograms::OtherPrograms(Session& session) {
  const double begin_s = used_by_others_s();
  begin_ = std::chrono::steady_clock::now();
  while (seconds_since(begin_) < 1 && !session.interrupted) {
    session.wait(1 - seconds_since(begin_));
  }
  before_ = cores_since(begin_, begin_s);
  if (is_much(before_)) {
    session.progress.note(busy_text("use", before_));
  }
  begin_used_s_ = used_by_others_s();
  begin_ = std::chrono::steady_clock::now();
}

void OtherPrograms::add_to(const Plan& plan, Report& report) const {
  const bool are_children = std::ranges::none_of(plan.runs, [](const PlannedRun& planned) {
    return find_starter(planned.run.launcher).spans_nodes;
  });
  const double during = cores_since(begin_, begin_used_s_);
  report.machine["other_cores_before"] = before_;
  report.machine["other_cores_during"] = are_children ? ordered_json(during) : ordered_json();
  if (are_children && is_much(during)) {
    report.machine["warning"] = busy_text("used", during);
  }
}

void compile_steps(Plan& plan, Session& session) {
  std::vector<std::string> failed;
  for (const PlannedRun& planned : plan.runs) {
    const std::string file = step_file(planned, plan.settings);
    if (planned.row.has("model") || fs::exists(fs::path(file).replace_extension(".safetensors")) ||
        contains(failed, file) || session.interrupted) {
      continue;
    }
    session.progress.note(fmt::format("{} of {}: compiling its step, once", planned.row.program(),
                                      planned.run.model));
    std::error_code unwritable;  // of which the tool speaks
    fs::create_directories(fs::path(file).parent_path(), unwritable);
    const ChildResult result =
        run_child({.argv = {plan.settings.peers_dir + "/../../tools/compile_step", "--layers",
                            fmt::format("{}", fmt::join(planned.run.layers, ",")), "--seed",
                            std::to_string(plan.settings.seed), "--device", plan.settings.device,
                            "--output", file},
                   .timeout_s = kInstallTimeoutSeconds},
                  session);
    if (result.ok()) {
      session.progress.note(fmt::format("it took {:.0f} s, which no step counts", result.seconds));
    } else {
      failed.push_back(file);
      plan.not_run.push_back({planned.run.model + "/" + planned.row.program(), result.failure()});
    }
  }
  std::erase_if(plan.runs, [&](const PlannedRun& planned) {
    return !planned.row.has("model") && contains(failed, step_file(planned, plan.settings));
  });
}

std::optional<std::int64_t> lines_of_code(const Run& run, const std::string& peers_dir) {
  const fs::path peers = peers_dir;
  const bool python = run.kind == "peer";
  const fs::path source =
      python ? peers / (run.stage + ".py") : peers / "../.." / run.stage / (run.variant + ".cpp");
  const std::string comment = python ? "#" : "//";
  std::optional<std::int64_t> lines;
  bool in_docstring = false;
  for (const std::string& text : split(read_text(source), '\n')) {
    const std::string line = text.substr(std::min(text.find_first_not_of(" \t"), text.size()));
    if (python && (in_docstring || line.starts_with("\"\"\""))) {
      in_docstring = line.find("\"\"\"", in_docstring ? 0 : 3) == std::string::npos;
    } else if (!line.empty() && !line.starts_with(comment)) {
      lines = lines.value_or(0) + 1;
    }
  }
  return lines;
}

}  // namespace ddp::bench
