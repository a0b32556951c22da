#include "bench/run/software.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "bench/run/child_process.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/process.hpp"

namespace ddp::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr double kAnswerTimeoutSeconds = 10;
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

ordered_json known_or_null(const std::string& text) {
  return text.empty() ? ordered_json(nullptr) : ordered_json(text);
}

std::string last_line(std::string text) {
  text.erase(text.find_last_not_of('\n') + 1);
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace

void find_launchers(const Settings& settings, Plan& plan) {
  const std::vector<std::string>& asked = settings.launchers;
  const bool has_allocation = inside_slurm_allocation();
  for (const std::string name : {"spawn", "torchrun", "mpirun", "srun"}) {
    const bool is_srun = name == "srun";
    if (asked.empty() ? is_srun && !has_allocation
                      : std::find(asked.begin(), asked.end(), name) == asked.end()) {
      continue;
    }
    const std::optional<std::string> path = name == "spawn"      ? ""
                                            : name == "torchrun" ? find_torchrun(plan.stage_dir)
                                                                 : find_in_path(name);
    const std::string missing = is_srun && path && !has_allocation
                                    ? "no allocation (SLURM_JOB_ID is not set)"
                                : path               ? ""
                                : name == "torchrun" ? "neither in .venv nor in PATH"
                                                     : "not in PATH";
    if (missing.empty()) {
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
    std::erase_if(plan.configurations,
                  [](const Configuration& c) { return c.launcher == "mpirun"; });
  }
}

void install_peers(Plan& plan, Session& session) {
  for (auto& [peer, python] : plan.peer_pythons) {
    session.progress.note(fmt::format("peer {}: checking what is installed", peer));
    const std::string script = (fs::path(plan.peers_dir) / "install.sh").string();
    const ChildResult result =
        run_child({.argv = {script, peer}, .timeout_s = kInstallTimeoutSeconds}, session);
    if (result.interrupted) {
      return;
    }
    python = last_line(result.out);
    if (!result.ok() || python.empty()) {
      throw UsageError(
          fmt::format("--peers {} cannot be installed: {}", peer, last_line(result.err)));
    }
  }
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
                         {"version", known_or_null(found->second.version)}};
    }
  }
  return {
      {"compiler", compiler},
      {"assertions", kAssertions},
      {"libtorch", DDP_TORCH_VERSION},
      {"git_commit",
       known_or_null(first_line(ask({"git", "-C", plan.stage_dir, "describe", "--always", "--dirty",
                                     "--abbrev=40", "--exclude=*"},
                                    session)))},
      {"launchers", launchers},
  };
}

}  // namespace ddp::bench
