#include "common/device/gpu_monitor.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

#include "common/device/hardware.hpp"

namespace ddp {
namespace {

// The used part of NVML's C interface, with an ABI that is stable since 2013. 0 is success.
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

}  // namespace

struct GpuMonitor::Nvml {
  template <typename Function>
  void load(const char* name, Function& function) {
    function = library ? reinterpret_cast<Function>(dlsym(library.get(), name)) : nullptr;
    is_complete = is_complete && function != nullptr;
  }

  std::unique_ptr<void, int (*)(void*)> library{dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL),
                                                dlclose};
  bool is_complete = true;
  int (*initialise)();
  int (*shutdown)();
  int (*utilisation)(Device, Utilisation*);
  int (*memory)(Device, Memory*);
  int (*by_uuid)(const char*, Device*);
  std::vector<Device> devices;  ///< in CUDA's order; nullptr: unknown to NVML
};

GpuMonitor::GpuMonitor() {
  auto nvml = std::make_unique<Nvml>();
  nvml->load("nvmlInit_v2", nvml->initialise);
  nvml->load("nvmlShutdown", nvml->shutdown);
  nvml->load("nvmlDeviceGetUtilizationRates", nvml->utilisation);
  nvml->load("nvmlDeviceGetMemoryInfo", nvml->memory);
  nvml->load("nvmlDeviceGetHandleByUUID", nvml->by_uuid);
  if (!nvml->is_complete || nvml->initialise() != 0) {
    return;
  }
  // By UUID, because NVML's order differs from CUDA's, and NVML ignores CUDA_VISIBLE_DEVICES.
  for (int i = 0; i < count_cuda_devices(); ++i) {
    Device device = nullptr;
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
    const Device device = nvml_->devices[first_ + i];
    Utilisation utilisation{};
    Memory memory{};
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
