// common/launch/hardware.hpp - the cores and the GPUs that this process may use.
#pragma once

#include <string>

#include "common/launch/launch_environment.hpp"
#include "common/launch/options.hpp"

namespace ddp {

/// Number of cores that the kernel lets this process run on.
int count_cores();

/// Share of this process in `cores`, which the ranks of a node divide. Open MPI and Slurm may have
/// bound the rank to its share: then `cores` is less than the node's `online` cores.
/// @return at least 1
int share_of_cores(int cores, int online, const LaunchEnvironment& environment);

/// Threads of each rank, or of each replica in stage 02: --threads, where auto is the share of
/// cores.
int resolve_threads(const Options& options, const LaunchEnvironment& environment);

/// Number of CUDA devices that CUDA_VISIBLE_DEVICES leaves visible; 0 without a driver, and in a
/// build without CUDA.
int count_cuda_devices();

/// UUID as nvidia-smi -L prints it after "GPU-": "8932f937-d72c-4106-c12f-20bd9faed9f6". Empty if
/// the driver does not tell.
/// @param index index among the visible devices, in CUDA's order
std::string cuda_device_uuid(int index);

/// Message for a user who wants a CUDA device on a machine without CUDA devices.
std::string why_no_cuda_device();

}  // namespace ddp
