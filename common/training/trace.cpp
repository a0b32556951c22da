#include "common/training/trace.hpp"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <set>

#include "common/base/command_line.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"

namespace ddp {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

std::string path_of_rank(const std::string& path, int rank, int world_size) {
  if (world_size == 1) {
    return path;
  }
  const std::filesystem::path file(path);
  const std::string name =
      fmt::format("{}.rank{}{}", file.stem().native(), rank, file.extension().native());
  return (file.parent_path() / name).native();
}

}  // namespace

Trace::Trace(const std::string& path, int rank, int world_size, bool with_cuda)
    : path_(path_of_rank(path, rank, world_size)), with_cuda_(with_cuda) {
  check_output_file("--trace", path_);
  ScratchFolder("ddp-trace");  // refuses a TMPDIR that is not there before the training
  // On a machine without GPUs the profiler prints an error of the CUDA runtime.
  setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
}

Trace::~Trace() {
  try {
    if (running_) {
      stop();  // the run ended early
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
  }
}

void Trace::end_step() {
  ++steps_;
  if (steps_ == kWarmupSteps) {
    std::set<ActivityType> activities{ActivityType::CPU};
    if (with_cuda_) {
      activities.insert(ActivityType::CUDA);
    }
    const torch::profiler::impl::ProfilerConfig config(
        torch::profiler::impl::ProfilerState::KINETO);
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities);
    running_ = true;
  } else if (steps_ == kWarmupSteps + kSteps) {
    stop();
  }
}

void Trace::finish() {
  if (running_) {
    stop();
  } else if (steps_ < kWarmupSteps) {
    std::cerr << fmt::format("note: --trace: got {} steps, expected more than {}, the warm-up\n",
                             steps_, kWarmupSteps);
  }
}

void Trace::stop() {
  running_ = false;
  const ScratchFolder folder("ddp-trace");  // the profiler writes under a name that it derives
  const std::string saved = folder.path() + "/trace.json";
  profiler::disableProfiler()->save(saved);
  std::error_code error;
  if (!std::filesystem::exists(saved, error)) {
    throw Error(
        ExitCode::kTrainingFailed,
        fmt::format("--trace: the profiler cannot write {}, expected room for a trace in TMPDIR",
                    saved));
  }
  replace_file("trace", path_, MappedFile(saved).bytes());
}

}  // namespace ddp
