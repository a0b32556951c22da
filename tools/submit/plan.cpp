// tools/submit/plan.cpp - the jobs of a sweep, and what a scheduler or a program cannot do.
#include "tools/submit/plan.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <system_error>

#include "common/base/command_line.hpp"
#include "common/base/process.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

constexpr mode_t kAnybodyMayExecute = S_IXUSR | S_IXGRP | S_IXOTH;

/// What is known of the programs of this suite. Another one is started once on one node, and once
/// per GPU on several.
struct Program {
  std::string name;
  bool starts_itself = false;  ///< stages 01 to 03: one process is started, it does the rest
  bool needs_launcher = false;  ///< stages 04 and 05: all processes are started

  bool is_stage() const { return starts_itself || needs_launcher; }
};

Program describe_program(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  const auto is = [&name](std::string_view stage) { return name.starts_with(stage); };
  return {name, is("01_single_gpu") || is("02_data_parallel") || is("03_ddp_spawn"),
          is("04_ddp_launcher") || is("05_multinode")};
}

/// "--batch_size=32" -> "batch-size"; empty if `argument` is no option with a name.
std::string option_name(const std::string& argument) {
  return argument.starts_with("--") ? with_dashes(argument).substr(2, argument.find('=') - 2) : "";
}

/// Short, and safe as a file's name: of a sweep "lr-0.1_seed-1", else the program's.
std::string point_name(const SweepPoint& point, const std::string& program) {
  constexpr std::size_t kLongest = 60;
  std::string text;
  for (const auto& [key, value] : point) {
    text += (text.empty() ? "" : "_") + key + "-" + value;
  }
  std::string name;
  for (const char c : (point.empty() ? program : text).substr(0, kLongest)) {
    name += is_plain(std::string_view(&c, 1), "._-") ? c : '-';
  }
  return name.empty() || name.front() == '.' || name.front() == '-' ? "job" + name : name;
}

/// A Python script that the kernel cannot start by itself.
bool needs_python(const std::string& path, mode_t mode) {
  if (!path.ends_with(".py")) {
    return false;
  }
  std::string start(2, '\0');
  std::ifstream(path).read(start.data(), 2);
  return (mode & kAnybodyMayExecute) == 0 || start != "#!";
}

/// python3 as PATH has it: an environment that is active comes first there. Empty: not there.
std::string find_python() {
  const std::optional<std::string> found = find_in_path("python3");
  return found ? std::filesystem::absolute(*found).string() : "";
}

/// What is started and is given the program's path; empty: the program itself is.
std::string interpreter_of(const Settings& settings) {
  const std::string& path = settings.script_path;
  const std::string& interpreter = settings.interpreter;
  const auto refuse_program = [&path](const std::string& expected) {
    refuse_value("script_path", quote_bytes(path), "a program" + expected);
  };
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) {
    refuse_program(" (" + std::generic_category().message(errno) + ")");
  }
  if (!S_ISREG(status.st_mode)) {
    refuse_program(S_ISDIR(status.st_mode) ? ", not a folder" : ", not a special file");
  }
  if (!interpreter.empty()) {
    if (!is_executable(interpreter)) {
      refuse_value("interpreter", quote_bytes(interpreter), "a program that can be run");
    }
    return interpreter;
  }
  if (needs_python(path, status.st_mode)) {
    const std::string python = find_python();
    if (python.empty()) {
      refuse_program(": python3 on PATH or interpreter in the settings, or a #! line and chmod +x");
    }
    check_path("python3", python);
    return python;
  }
  // Not access(): root may execute anything that anybody may.
  if ((status.st_mode & kAnybodyMayExecute) == 0) {
    refuse_program(", or a script with a #! line, that is executable (chmod +x)");
  }
  return "";
}

void refuse_if(bool is_wrong, const std::string& name, const std::string& got,
               const std::string& expected) {
  if (is_wrong) {
    refuse_value(name, got, expected);
  }
}

/// What holds whatever came from the file or from the command line.
void check_can_run(const Settings& settings, const Program& program, bool is_local,
                   const std::vector<int>& gpus) {
  const Resources& resources = settings.resources;
  const std::int64_t gpu_memory_mb = resources.gpu_memory_mb.value_or(0);
  refuse_if(settings.device == "cpu" && resources.gpus > 0, "num_gpus",
            fmt::format("{} with device cpu", resources.gpus), "0: they would stand idle");
  refuse_if(gpu_memory_mb > 0 && resources.gpus == 0, "memory_gpus",
            fmt::format("{} with num_gpus 0", gpu_memory_mb), "at least one GPU");
  refuse_if(!is_local && settings.device == "cuda" && resources.gpus == 0, "device",
            "cuda with num_gpus 0", "at least one GPU, or device auto");
  refuse_if(resources.nodes > 1 && is_local, "nodes",
            fmt::format("{} with --scheduler local", resources.nodes), "1");
  refuse_if(resources.nodes > 1 && program.starts_itself, "nodes", std::to_string(resources.nodes),
            "1 because " + program.name + " runs on one node; 05_multinode runs on several");
  refuse_if(
      resources.nodes > 1 && resources.gpus > 0 && program.name == "04_ddp_launcher", "nodes",
      std::to_string(resources.nodes),
      "1 because 04_ddp_launcher takes the GPU of its rank's number, which a second node does "
      "not have; 05_multinode takes that of its local rank");
  refuse_if(is_local && !gpus.empty() && !program.is_stage(), "--gpus",
            "devices for " + quote_bytes(program.name) + " with --scheduler local",
            "a stage of this suite; for other programs set CUDA_VISIBLE_DEVICES");
}

void check_slurm_can_run(const Settings& settings) {
  const Resources& resources = settings.resources;
  if (resources.gpu_memory_mb && resources.constraint.empty()) {
    refuse(
        "memory_gpus: got {}, but Slurm cannot be asked for GPU memory; expected constraint: with "
        "the feature that such nodes have here (sinfo -o '%f %G' lists them), or no memory_gpus",
        *resources.gpu_memory_mb);
  }
  refuse_if(!resources.transfer_files.empty(), "transfer_files",
            fmt::format("{} files with --scheduler slurm", resources.transfer_files.size()),
            "none: nodes must see them");
  refuse_if(settings.out_dir.find_first_of("%\\") != std::string::npos, "out_dir",
            quote_bytes(settings.out_dir),
            "a path without % and \\, which Slurm replaces in the names of output files");
}

void check_condor_can_run(const Resources& resources) {
  refuse_if(!resources.transfer_files.empty() && resources.nodes > 1, "transfer_files",
            fmt::format("{} files with nodes {}", resources.transfer_files.size(), resources.nodes),
            "none: the processes meet through a file that all nodes see");
  for (const std::string& file : resources.transfer_files) {
    refuse_if(file.find(',') != std::string::npos, "transfer_files", quote_bytes(file),
              "a path without commas, which separate files for HTCondor");
    refuse_if(!std::filesystem::exists(file), "transfer_files", quote_bytes(file), "a file");
  }
}

/// Beside the build folder that this program is in, else on PATH; empty: not there.
std::string find_torchrun() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  const fs::path ours = self.parent_path().parent_path().parent_path() / ".venv/bin/torchrun";
  if (!error && is_executable(ours.string())) {
    return ours.string();
  }
  const std::optional<std::string> found = find_in_path("torchrun");
  return found ? fs::absolute(*found).string() : "";
}

/// The processes per node, and whether the scheduler starts them or torchrun does.
void choose_processes(JobRequest& job, const Program& program) {
  const Resources& resources = job.resources;
  const std::int64_t per_device = std::max<std::int64_t>(1, resources.gpus);
  std::int64_t processes = 1;
  if (resources.nodes > 1 || (program.needs_launcher && job.scheduler == Scheduler::kSlurm)) {
    processes = per_device;
    job.processes_per_node = per_device;
    job.several = resources.nodes > 1 || per_device > 1;
  } else if (program.needs_launcher && per_device > 1) {
    const std::string torchrun = find_torchrun();
    if (torchrun.empty()) {
      refuse(
          "{} needs a launcher for its {} processes, expected torchrun in .venv/bin or on PATH; "
          "03_ddp_spawn needs none",
          program.name, per_device);
    }
    check_path("torchrun", torchrun);
    processes = per_device;
    const std::vector<std::string> launcher = {
        torchrun, "--standalone", fmt::format("--nproc-per-node={}", per_device), "--no-python"};
    job.command.insert(job.command.begin(), launcher.begin(), launcher.end());
  }
  const std::int64_t cpus = resources.cpus.value_or(per_device);
  refuse_if(cpus < processes, "num_cpus", std::to_string(cpus),
            fmt::format("at least {}, one for each process of a node", processes));
  job.resources.cpus = cpus;
}

/// The program's arguments at one point of a sweep.
/// @param devices that it is to use; empty: as it likes
std::vector<std::string> point_arguments(const Settings& settings, const Program& program,
                                         const std::vector<int>& devices, const SweepPoint& point) {
  // Behind a "--" nothing is an option.
  const std::vector<std::string>& given = settings.arguments;
  const auto end = std::find(given.begin(), given.end(), "--");
  std::vector<std::string> arguments(given.begin(), end);
  const auto has = [&arguments](const std::string& name) {
    return std::any_of(arguments.begin(), arguments.end(),
                       [&](const std::string& word) { return option_name(word) == name; });
  };
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!has(name)) {
      arguments.insert(arguments.end(), {"--" + name, value});
    }
  };
  for (const auto& [key, value] : point) {
    if (has(option_name("--" + key))) {
      refuse("--sweep {0}: the program's arguments have --{0} too, expected it once", key);
    }
    add(key, value);
  }
  if (program.is_stage()) {
    if (settings.device != "auto") {
      add("device", settings.device);
    }
    if (!devices.empty() && !has("gpus") && !has("devices")) {
      arguments.emplace_back("--devices");
      for (const int device : devices) {
        arguments.push_back(std::to_string(device));
      }
    }
    // All relative: a job runs in its own folder.
    add("snapshot", "snapshot.safetensors");
    add("metrics", "metrics.jsonl");
    add("resume", "auto");
  }
  arguments.insert(arguments.end(), end, given.end());
  return arguments;
}

}  // namespace

SweepAxis parse_sweep(const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::size_t start = std::min(text.find_first_not_of('-'), text.size());
  SweepAxis axis;
  axis.key = text.substr(start, std::max(equals, start) - start);
  if (equals == std::string::npos || axis.key.empty() || !is_plain(axis.key, "_-")) {
    refuse_value("--sweep", quote_bytes(text), "an option and its values, e.g. lr=0.1,0.01");
  }
  std::string value;
  const auto finish = [&] {
    check_text("--sweep " + axis.key, value);
    if (std::find(axis.values.begin(), axis.values.end(), value) != axis.values.end()) {
      refuse_value("--sweep " + axis.key, quote_bytes(value) + " twice", "different values");
    }
    axis.values.push_back(std::move(value));
    value.clear();
  };
  for (std::size_t i = equals + 1; i < text.size(); ++i) {
    const bool escaped =
        text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == ',' || text[i + 1] == '\\');
    if (text[i] == ',') {
      finish();
    } else {
      value += escaped ? text[++i] : text[i];
    }
  }
  finish();
  return axis;
}

std::vector<SweepPoint> sweep_points(const std::vector<SweepAxis>& axes) {
  constexpr std::size_t kMostJobs = 10000;
  std::vector<SweepPoint> points = {{}};
  std::set<std::string> names;
  for (const SweepAxis& axis : axes) {
    if (!names.insert(option_name("--" + axis.key)).second) {
      refuse("--sweep {} was given twice, expected all values in one", axis.key);
    }
    if (points.size() * axis.values.size() > kMostJobs) {
      refuse_value("--sweep", fmt::format("more than {} combinations", kMostJobs), "fewer");
    }
    std::vector<SweepPoint> product;
    for (const SweepPoint& point : points) {
      for (const std::string& value : axis.values) {
        product.push_back(point);
        product.back().emplace_back(axis.key, value);
      }
    }
    points = std::move(product);
  }
  return points;
}

std::vector<JobRequest> plan_jobs(const Settings& settings, Scheduler scheduler,
                                  const std::vector<SweepAxis>& sweep, const std::vector<int>& gpus,
                                  int first_index) {
  const bool is_local = scheduler == Scheduler::kLocal;
  const Program program = describe_program(settings.script_path);
  const std::string interpreter = interpreter_of(settings);
  check_can_run(settings, program, is_local, gpus);
  refuse_if(!interpreter.empty() && !settings.resources.transfer_files.empty() &&
                scheduler == Scheduler::kCondor,
            "transfer_files",
            fmt::format("{} files with a script that {} runs",
                        settings.resources.transfer_files.size(), quote_path(interpreter)),
            "none, or a script with a #! line and chmod +x");
  if (scheduler == Scheduler::kSlurm) {
    check_slurm_can_run(settings);
  } else if (scheduler == Scheduler::kCondor) {
    check_condor_can_run(settings.resources);
  }
  std::vector<JobRequest> jobs;
  for (const SweepPoint& point : sweep_points(sweep)) {
    const std::vector<std::string> arguments =
        point_arguments(settings, program, is_local ? gpus : std::vector<int>(), point);
    JobRequest job;
    job.index = first_index + static_cast<int>(jobs.size());
    job.name = point_name(point, program.name);
    job.folder = fmt::format("jobs/{}-{}", job.index, job.name);
    job.scheduler = scheduler;
    job.single = sweep.empty();
    job.resources = settings.resources;
    job.command = {settings.script_path};
    if (!interpreter.empty()) {
      job.command.insert(job.command.begin(), interpreter);
    }
    job.command.insert(job.command.end(), arguments.begin(), arguments.end());
    choose_processes(job, program);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace ddp::submit
