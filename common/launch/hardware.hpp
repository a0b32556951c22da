// common/launch/hardware.hpp - the cores and the GPUs that this process may use.
#pragma once

#include <string>

#include "common/launch/launch_environment.hpp"
#include "common/launch/options.hpp"

namespace ddp {

/// The cores that the kernel lets this process run on.
int count_cores();

/// The part of `cores` that is for this process: the ranks of a node divide them. Open MPI and
/// Slurm bind ranks themselves: a rank with fewer than the node's `online` cores has its part
/// already.
/// @return at least 1
int share_of_cores(int cores, int online, const LaunchEnvironment& environment);

/// Threads of each rank, or of each replica in stage 02: --threads, or with auto the share of
/// cores.
int resolve_threads(const Options& options, const LaunchEnvironment& environment);

/// CUDA devices that CUDA_VISIBLE_DEVICES leaves visible; 0 without a driver, and in a build
/// without CUDA.
int count_cuda_devices();

/// "8932f937-d72c-4106-c12f-20bd9faed9f6": what nvidia-smi -L prints after "GPU-". Empty if the
/// driver does not tell.
/// @param index of the visible devices, as CUDA counts them
std::string cuda_device_uuid(int index);

/// Message for a user who wants a CUDA device where there is none.
std::string why_no_cuda_device();

}  // namespace ddp
