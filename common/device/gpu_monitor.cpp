#include "common/device/gpu_monitor.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

#include "common/device/hardware.hpp"

namespace ddp {
/// The used part of NVML's C interface, with an ABI that is stable since 2013. 0 is success.
struct GpuMonitor::Nvml {
  using Device = void*;
  struct Utilisation {
    unsigned gpu_percent;
    unsigned memory_percent;
  };
  struct Memory {
    unsigned long long total_bytes;
    unsigned long long free_bytes;
    unsigned long long used_bytes;
  };

  template <typename... Arguments>
  using Function = int (*)(Arguments...);
  template <typename... Arguments>
  Function<Arguments...> load(const char* name) const {
    return library ? reinterpret_cast<Function<Arguments...>>(dlsym(library.get(), name)) : nullptr;
  }
  bool is_complete() const { return initialise && shutdown && utilisation && memory && by_uuid; }

  std::unique_ptr<void, int (*)(void*)> library{dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL),
                                                dlclose};
  Function<> initialise = load<>("nvmlInit_v2");
  Function<> shutdown = load<>("nvmlShutdown");
  Function<Device, Utilisation*> utilisation =
      load<Device, Utilisation*>("nvmlDeviceGetUtilizationRates");
  Function<Device, Memory*> memory = load<Device, Memory*>("nvmlDeviceGetMemoryInfo");
  Function<const char*, Device*> by_uuid = load<const char*, Device*>("nvmlDeviceGetHandleByUUID");
  std::vector<Device> devices;  ///< in CUDA's order; nullptr: unknown to NVML
};

GpuMonitor::GpuMonitor() {
  auto nvml = std::make_unique<Nvml>();
  if (!nvml->is_complete() || nvml->initialise() != 0) {
    return;
  }
  // By UUID, because NVML's order differs from CUDA's, and NVML ignores CUDA_VISIBLE_DEVICES.
  for (int i = 0; i < count_cuda_devices(); ++i) {
    Nvml::Device device = nullptr;
    const bool found = nvml->by_uuid(("GPU-" + cuda_device_uuid(i)).c_str(), &device) == 0;
    nvml->devices.push_back(found ? device : nullptr);
  }
  nvml_ = std::move(nvml);
}

GpuMonitor::~GpuMonitor() {
  if (nvml_) {
    nvml_->shutdown();
  }
}

void GpuMonitor::sample() {
  if (!nvml_ || nvml_->devices.size() <= first_ || watched_ == 0) {
    return;
  }
  const size_t watched = std::min(watched_, nvml_->devices.size() - first_);
  GpuReadings now;
  for (size_t i = 0; i < watched; ++i) {
    const Nvml::Device device = nvml_->devices[first_ + i];
    Nvml::Utilisation utilisation{};
    Nvml::Memory memory{};
    if (device == nullptr || nvml_->utilisation(device, &utilisation) != 0 ||
        nvml_->memory(device, &memory) != 0) {
      return;  // a sample must have all GPUs
    }
    now.utilisation_percent += utilisation.gpu_percent / static_cast<double>(watched);
    now.memory_mib += static_cast<double>(memory.used_bytes) / (1024.0 * 1024.0);
  }
  sum_ = {sum_.utilisation_percent + now.utilisation_percent,
          std::max(sum_.memory_mib, now.memory_mib)};
  ++samples_;
}

std::optional<GpuReadings> GpuMonitor::take() {
  const int samples = std::exchange(samples_, 0);
  GpuReadings readings = std::exchange(sum_, {});
  if (samples == 0) {
    return std::nullopt;
  }
  readings.utilisation_percent /= samples;
  return readings;
}

}  // namespace ddp
