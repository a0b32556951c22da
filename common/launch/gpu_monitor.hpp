// common/launch/gpu_monitor.hpp - what the GPUs do while a program runs, through NVIDIA's NVML.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace ddp {

/// Means over samples and over the GPUs that were looked at; memory is the largest sum over them.
struct GpuReadings {
  double utilisation_percent = 0;  ///< of the time in which a kernel ran
  double power_w = 0;
  double memory_mib = 0;
  int gpus = 0;  ///< that were looked at
};

/// NVML is opened at run time, so that this program needs no driver. Where there is none, or no
/// GPU, sample() does nothing and take() returns nothing.
class GpuMonitor {
 public:
  GpuMonitor();
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  /// From now on only the first `devices` of those that CUDA_VISIBLE_DEVICES leaves: what ranks
  /// 0, 1 and so on take.
  void watch_first(int devices) { watched_ = static_cast<size_t>(devices); }
  /// Only this one of them.
  void watch_one(int device) {
    first_ = static_cast<size_t>(device);
    watched_ = 1;
  }
  /// Reads these GPUs once; meant to be called now and then while a program runs.
  /// @return what take() takes the means of
  std::optional<GpuReadings> sample();
  /// What was sampled since the last call.
  std::optional<GpuReadings> take();

 private:
  struct Nvml;
  std::unique_ptr<Nvml> nvml_;
  size_t first_ = 0;
  size_t watched_ = SIZE_MAX;
  GpuReadings sum_;  ///< of all samples; the memory is the largest
  int samples_ = 0;
};

}  // namespace ddp
