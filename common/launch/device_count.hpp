// common/launch/device_count.hpp - how many GPUs this process may use, without loading LibTorch or
// the CUDA runtime.
#pragma once

#include <string>

namespace ddp {

/// CUDA devices that CUDA_VISIBLE_DEVICES leaves visible, by index, by UUID or by MIG instance; 0
/// without a driver, with one that is too old, and in a build without CUDA.
int count_cuda_devices();

/// "8932f937-d72c-4106-c12f-20bd9faed9f6": what nvidia-smi -L has after "GPU-", or "MIG-". "" if
/// the driver does not tell (before CUDA 11.4).
/// @param index of the visible devices, as CUDA counts them
std::string cuda_device_uuid(int index);

/// What to say to a user who wants a CUDA device where there is none.
std::string why_no_cuda_device();

/// Why a driver that is there cannot be used, as "the CUDA driver is for CUDA 11.4, expected one
/// for CUDA 12 or newer, as LibTorch was built for"; else "".
const std::string& cuda_driver_problem();

}  // namespace ddp
