// common/device/gpu_monitor.hpp - use of the GPUs while a program runs, by NVIDIA's NVML.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

namespace ddp {

struct GpuReadings {
  double utilisation_percent = 0;  ///< time in which a kernel ran, mean over samples and GPUs
  double memory_mib = 0;  ///< largest sum over the GPUs
};

/// Samples the use of GPUs. NVML is opened at run time, so that this program needs no driver.
/// Without a driver or a GPU take() returns nothing.
class GpuMonitor {
 public:
  GpuMonitor();
  ~GpuMonitor();

  /// Restricts samples to `devices` of the visible devices, from index `first` on.
  void watch(int first, int devices) {
    first_ = static_cast<size_t>(first);
    watched_ = static_cast<size_t>(devices);
  }
  /// Reads the GPUs once; call it now and then while a program runs.
  void sample();
  /// Mean and largest readings since the last call.
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
