// common/launch/device_count.hpp - how many GPUs this process may use, without loading LibTorch or
// the CUDA runtime.
#pragma once

#include <string>

namespace ddp {

/// CUDA devices that CUDA_VISIBLE_DEVICES leaves visible, by index, by UUID or by MIG instance; 0
/// without a driver, with one that is too old, and in a build without CUDA.
int count_cuda_devices();

/// What to say to a user who wants a CUDA device where there is none.
std::string why_no_cuda_device();

/// Why a driver that is there cannot be used, as "the CUDA driver is for CUDA 11.4, expected one
/// for CUDA 12 or newer, as LibTorch was built for"; else "".
const std::string& cuda_driver_problem();

}  // namespace ddp
