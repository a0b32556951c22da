// common/launch/device_count.hpp - how many GPUs this process may use, without loading LibTorch or
// the CUDA runtime.
#pragma once

namespace ddp {

/// CUDA devices that CUDA_VISIBLE_DEVICES leaves visible, by index or by UUID; 0 without a driver.
int count_cuda_devices();

}  // namespace ddp
