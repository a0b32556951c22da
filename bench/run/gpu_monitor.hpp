// bench/run/gpu_monitor.hpp - what the GPUs do while a program runs, through NVIDIA's NVML.
#pragma once

#include <memory>
#include <optional>

namespace ddp::bench {

/// Means over the samples of one run and over the GPUs; memory is the largest sum over the GPUs.
struct GpuUsage {
  double utilisation_percent = 0;
  double power_w = 0;
  double memory_mib = 0;
};

/// NVML is opened at run time, so that this program needs no driver. Where there is none, or no
/// GPU, sample() does nothing and take() returns nothing.
class GpuMonitor {
 public:
  GpuMonitor();
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  /// Reads all GPUs once; meant to be called now and then while a program runs.
  void sample();
  /// What was sampled since the last call.
  std::optional<GpuUsage> take();

 private:
  struct Nvml;
  std::unique_ptr<Nvml> nvml_;
  double utilisation_sum_ = 0;
  double power_sum_ = 0;
  double largest_memory_mib_ = 0;
  int samples_ = 0;
};

}  // namespace ddp::bench
