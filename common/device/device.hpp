// common/device/device.hpp - picks a process's device, and waits for a device of any type.
#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include "common/device/hardware.hpp"

namespace ddp {

/// Picks the device of process `local_rank`: a CUDA device if there is any, else the CPU. If the
/// launcher shows the process a single CUDA device, that is it, else number `local_rank`. Also sets
/// the number of compute threads, --deterministic and the current CUDA device.
///
/// Note [Threads]: a rank on the CPU computes with --threads threads, one by default, under every
/// launcher. The launchers' own defaults differ, and the number of threads may change how a matrix
/// product rounds. `--threads auto` is a rank's share of the cores. Ranks are not bound to cores:
/// that made no step over shared memory faster, it slows Gloo's threads down, and two jobs of one
/// host would be bound to the same cores.
/// @throws UsageError if --device cuda finds none, or if there are fewer devices than processes
torch::Device set_device(const DeviceOptions& options, int local_rank = 0);
/// The same with default options, for a rank of a program of your own.
torch::Device set_device(int local_rank);

/// Picks the devices of stage 02's replicas: --devices, else --nprocs GPUs, else all GPUs, else two
/// CPU replicas. The first becomes the current CUDA device.
std::vector<torch::Device> set_devices(const DeviceOptions& options);

/// Stream that this thread's operators on `device` go to.
inline c10::Stream current_stream(const torch::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}
/// Waits for all work on all streams of `device`; on the CPU there is none.
inline void synchronize(const torch::Device& device) {
  if (!device.is_cpu()) {
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  }
}

}  // namespace ddp
