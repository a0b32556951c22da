// tools/submit/plan.cpp - the jobs of a sweep, and what a scheduler or a program cannot do.
#include "tools/submit/plan.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>

#include "common/base/exit_codes.hpp"
#include "tools/submit/quoting.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

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
std::string option_name(std::string_view argument) {
  if (!argument.starts_with("--")) {
    return "";
  }
  std::string name(argument.substr(2, argument.find('=') - 2));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

bool has_option(const std::vector<std::string>& arguments, const std::string& name) {
  return std::any_of(arguments.begin(), arguments.end(),
                     [&](const std::string& argument) { return option_name(argument) == name; });
}

/// What a job adds to the arguments that its program was given. In front of a "--", behind which
/// nothing is an option.
class Arguments {
 public:
  explicit Arguments(const std::vector<std::string>& given)
      : values_(given), end_(std::find(values_.begin(), values_.end(), "--") - values_.begin()) {}

  void add(const std::vector<std::string>& more) {
    values_.insert(values_.begin() + end_, more.begin(), more.end());
    end_ += static_cast<std::ptrdiff_t>(more.size());
  }
  void add_unless_given(const std::string& name, const std::string& value) {
    if (!has_option(values_, name)) {
      add({"--" + name, value});
    }
  }
  bool has(const std::string& name) const { return has_option(values_, name); }
  const std::vector<std::string>& values() const { return values_; }

 private:
  std::vector<std::string> values_;
  std::ptrdiff_t end_;
};

/// A name that is safe as a file's, and short.
std::string slug(const std::string& text) {
  constexpr std::size_t kLongest = 60;
  std::string result;
  for (const char c : text.substr(0, kLongest)) {
    result += is_plain(std::string_view(&c, 1), "._-") ? c : '-';
  }
  return result.empty() || result.front() == '.' || result.front() == '-' ? "job" + result : result;
}

std::string point_name(const SweepPoint& point, const std::string& program) {
  if (point.empty()) {
    return slug(program);
  }
  std::string name;
  for (const auto& [key, value] : point) {
    name += (name.empty() ? "" : "_") + key + "-" + value;
  }
  return slug(name);
}

void check_program(const std::string& path) {
  const auto refuse = [&path](const std::string& expected) {
    refuse_value("script_path", quote_bytes(path), "a program" + expected);
  };
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) {
    refuse(" (" + std::generic_category().message(errno) + ")");
  }
  if (!S_ISREG(status.st_mode)) {
    refuse(S_ISDIR(status.st_mode) ? ", not a folder" : ", not a special file");
  }
  // Not access(): root may execute anything that anybody may.
  if ((status.st_mode & (S_IXUSR | S_IXGRP | S_IXOTH)) == 0) {
    refuse(", or a script with a #! line, that is executable (chmod +x)");
  }
}

/// What holds whatever came from the file or from the command line.
void check_devices(const Settings& settings, Scheduler scheduler) {
  const Resources& resources = settings.resources;
  if (settings.device == "cpu" && resources.gpus > 0) {
    refuse_value("num_gpus", std::to_string(resources.gpus) + " with device cpu",
                 "0: they would stand idle");
  }
  if (resources.gpu_memory_mb && resources.gpus == 0) {
    refuse_value("memory_gpus", std::to_string(*resources.gpu_memory_mb) + " with num_gpus 0",
                 "at least one GPU");
  }
  if (scheduler != Scheduler::kLocal && settings.device == "cuda" && resources.gpus == 0) {
    refuse_value("device", "cuda with num_gpus 0", "at least one GPU, or device auto");
  }
}

void check_can_run(const Settings& settings, const Program& program, const PlanOptions& options) {
  const Resources& resources = settings.resources;
  check_program(settings.script_path);
  if (resources.nodes > 1 && options.scheduler == Scheduler::kLocal) {
    refuse_value("nodes", std::to_string(resources.nodes) + " with --scheduler local", "1");
  }
  if (resources.nodes > 1 && program.starts_itself) {
    refuse_value("nodes", std::to_string(resources.nodes),
                 "1 because " + program.name + " runs on one node; 05_multinode runs on several");
  }
  if (options.scheduler == Scheduler::kLocal && !options.gpus.empty() && !program.is_stage()) {
    refuse_value("--gpus", "devices for " + quote_bytes(program.name) + " with --scheduler local",
                 "a stage of this suite; for other programs "
                 "set CUDA_VISIBLE_DEVICES");
  }
  if (options.scheduler == Scheduler::kSlurm) {
    if (resources.gpu_memory_mb && resources.constraint.empty()) {
      throw UsageError("memory_gpus: got " + std::to_string(*resources.gpu_memory_mb) +
                       ", but Slurm cannot be asked for GPU memory; expected constraint: with the "
                       "feature that such nodes have here (sinfo -o '%f %G' lists them), or no "
                       "memory_gpus");
    }
    if (!resources.transfer_files.empty()) {
      refuse_value(
          "transfer_files",
          std::to_string(resources.transfer_files.size()) + " files with --scheduler slurm",
          "none: nodes must see them");
    }
    if (settings.out_dir.find_first_of("%\\") != std::string::npos) {
      refuse_value("out_dir", quote_bytes(settings.out_dir),
                   "a path without % and \\, which Slurm replaces in the names of "
                   "output files");
    }
  }
  if (options.scheduler == Scheduler::kCondor) {
    condor_path("script_path", settings.script_path);
    condor_path("out_dir", settings.out_dir);
    if (!resources.transfer_files.empty() && resources.nodes > 1) {
      refuse_value("transfer_files",
                   std::to_string(resources.transfer_files.size()) + " files with nodes " +
                       std::to_string(resources.nodes),
                   "none: the processes meet through a file that all nodes see");
    }
    for (const std::string& file : resources.transfer_files) {
      condor_path("transfer_files", file);
      if (file.find(',') != std::string::npos) {
        refuse_value("transfer_files", quote_bytes(file),
                     "a path without commas, which separate files for HTCondor");
      }
      if (!std::filesystem::exists(file)) {
        refuse_value("transfer_files", quote_bytes(file), "a file");
      }
    }
  }
}

/// The processes per node, and whether the scheduler starts them or torchrun does.
void choose_processes(JobRequest& job, const Program& program, const PlanOptions& options) {
  const Resources& resources = job.resources;
  const int per_device = std::max(1, resources.gpus);
  const bool by_launcher = program.needs_launcher;
  int processes = 1;
  if (resources.nodes > 1 || (by_launcher && job.scheduler == Scheduler::kSlurm)) {
    processes = per_device;
    job.processes_per_node = per_device;
    job.several = resources.nodes > 1 || per_device > 1;
  } else if (by_launcher && per_device > 1) {
    if (options.torchrun.empty()) {
      throw UsageError(program.name + " needs a launcher for its " + std::to_string(per_device) +
                       " processes, expected torchrun in .venv/bin or on PATH; 03_ddp_spawn needs "
                       "none");
    }
    check_path("torchrun", options.torchrun);
    processes = per_device;
    const std::vector<std::string> launcher = {options.torchrun, "--standalone",
                                               "--nproc-per-node=" + std::to_string(per_device),
                                               "--no-python"};
    job.command.insert(job.command.begin(), launcher.begin(), launcher.end());
  }
  if (resources.cpus && *resources.cpus < processes) {
    refuse_value("num_cpus", std::to_string(*resources.cpus),
                 "at least " + std::to_string(processes) + ", one for each process of a node");
  }
  job.resources.cpus = resources.cpus.value_or(per_device);
}

}  // namespace

SweepAxis parse_sweep(const std::string& text) {
  const std::size_t equals = text.find('=');
  SweepAxis axis;
  axis.key = text.substr(0, equals);
  while (axis.key.starts_with('-')) {
    axis.key.erase(0, 1);
  }
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
    if (escaped) {
      value += text[++i];
    } else if (text[i] == ',') {
      finish();
    } else {
      value += text[i];
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
      throw UsageError("--sweep " + axis.key + " was given twice, expected all values in one");
    }
    if (points.size() * axis.values.size() > kMostJobs) {
      refuse_value("--sweep", "more than " + std::to_string(kMostJobs) + " combinations", "fewer");
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

std::vector<JobRequest> plan_jobs(const Settings& settings, const PlanOptions& options) {
  check_devices(settings, options.scheduler);
  const Program program = describe_program(settings.script_path);
  check_can_run(settings, program, options);
  std::vector<JobRequest> jobs;
  for (const SweepPoint& point : sweep_points(options.sweep)) {
    Arguments arguments(settings.arguments);
    for (const auto& [key, value] : point) {
      if (arguments.has(option_name("--" + key))) {
        throw UsageError("--sweep " + key + ": the program's arguments have --" + key +
                         " too, expected it once");
      }
      arguments.add({"--" + key, value});
    }
    if (program.is_stage()) {
      if (settings.device != "auto") {
        arguments.add_unless_given("device", settings.device);
      }
      if (options.scheduler == Scheduler::kLocal && !options.gpus.empty() &&
          !arguments.has("gpus") && !arguments.has("devices")) {
        std::vector<std::string> devices = {"--devices"};
        for (const int gpu : options.gpus) {
          devices.push_back(std::to_string(gpu));
        }
        arguments.add(devices);
      }
      // All relative: a job runs in its own folder.
      arguments.add_unless_given("snapshot", "snapshot.safetensors");
      arguments.add_unless_given("metrics", "metrics.jsonl");
      arguments.add_unless_given("resume", "auto");
    }
    JobRequest job;
    job.index = options.first_index + static_cast<int>(jobs.size());
    job.name = point_name(point, program.name);
    job.folder = "jobs/" + std::to_string(job.index) + "-" + job.name;
    job.scheduler = options.scheduler;
    job.single = options.sweep.empty();
    job.resources = settings.resources;
    job.command = {settings.script_path};
    job.command.insert(job.command.end(), arguments.values().begin(), arguments.values().end());
    if (job.scheduler == Scheduler::kCondor) {
      condor_arguments(
          {job.command.begin() + 1, job.command.end()});  // refuses what cannot be written
    }
    choose_processes(job, program, options);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace ddp::submit
