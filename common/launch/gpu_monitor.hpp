// common/launch/gpu_monitor.hpp - what the GPUs do while a program runs, through NVIDIA's NVML.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace ddp {

struct GpuReadings {
  double utilisation_percent = 0;  ///< time in which a kernel ran, mean over samples and GPUs
  double memory_mib = 0;  ///< largest sum over the GPUs
  int gpus = 0;
};

/// NVML is opened at run time, so that this program needs no driver. Without a driver or a GPU
/// take() returns nothing.
class GpuMonitor {
 public:
  GpuMonitor();
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  /// From now on only these of the devices that CUDA_VISIBLE_DEVICES leaves.
  void watch(int first, int devices) {
    first_ = static_cast<size_t>(first);
    watched_ = static_cast<size_t>(devices);
  }
  /// Reads these GPUs once; call it now and then while a program runs.
  void sample();
  /// Readings since the last call.
  std::optional<GpuReadings> take();

 private:
  struct Nvml;
  std::unique_ptr<Nvml> nvml_;
  size_t first_ = 0;
  size_t watched_ = SIZE_MAX;
  GpuReadings sum_;
  int samples_ = 0;
};

}  // namespace ddp
