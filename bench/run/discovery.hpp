// bench/run/discovery.hpp - which launchers and GPUs this machine has.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace ddp::bench {

/// The checkout's own environment first: its torchrun belongs to the LibTorch that was built with.
std::optional<std::string> find_torchrun(const std::filesystem::path& stage_dir);

/// As CUDA_VISIBLE_DEVICES or else the device files say; no driver is asked.
int visible_gpus();

/// True inside an allocation of Slurm's, where srun starts at once.
bool inside_slurm_allocation();

}  // namespace ddp::bench
