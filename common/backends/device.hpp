// common/backends/device.hpp - which device a process computes on.
#pragma once

#include <torch/types.h>

#include <vector>

#include "common/launch/options.hpp"

namespace ddp {

/// The device of process `local_rank`: a CUDA device if there is any (the one that its launcher
/// shows it, else the one of its number), else the CPU. Also sets what belongs to it: the number of
/// compute threads, --deterministic, the current CUDA device.
///
/// Note [Threads]: a CPU "device" is --threads threads, one by default, under every launcher. The
/// launchers' own defaults differ, and a matrix product may round differently when it is split
/// differently. `--threads auto` is a rank's share of the cores. Ranks are not bound to cores: over
/// shared memory that made no step faster, Gloo's threads lose by it, and two jobs of one host
/// would be bound to the same cores.
/// @throws UsageError if --device cuda finds none, or if there are fewer devices than processes
torch::Device set_device(const Options& options, int local_rank = 0);
/// The same for a rank of a program without Options: their defaults.
torch::Device set_device(int local_rank);

/// The devices of stage 02's replicas: --devices, else --nprocs of them, else all GPUs, else two
/// CPU replicas. The first becomes the current CUDA device.
std::vector<torch::Device> set_devices(const Options& options);

}  // namespace ddp
