// bench/run/gpu_monitor.hpp - what the GPUs do while a program runs, through NVIDIA's NVML.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "bench/report/record.hpp"

namespace ddp::bench {

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
  /// Reads these GPUs once; meant to be called now and then while a program runs.
  void sample();
  /// What was sampled since the last call.
  std::optional<GpuUsage> take();

 private:
  struct Nvml;
  std::unique_ptr<Nvml> nvml_;
  size_t watched_ = SIZE_MAX;
  GpuUsage sum_;  ///< of all samples; the memory is the largest
  int samples_ = 0;
};

}  // namespace ddp::bench
