#include "bench/run/gpu_monitor.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace ddp::bench {
namespace {

// NVML's C interface, as far as it is used; its ABI has been stable since 2013. 0 is success.
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

template <typename Function>
bool load(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

struct GpuMonitor::Nvml {
  void* library = nullptr;
  int (*shutdown)() = nullptr;
  int (*utilisation)(Device, Utilisation*) = nullptr;
  int (*power_mw)(Device, unsigned*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  std::vector<Device> devices;
};

GpuMonitor::GpuMonitor() {
  auto nvml = std::make_unique<Nvml>();
  nvml->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (nvml->library == nullptr) {
    return;
  }
  int (*initialise)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, Device*) = nullptr;
  const bool complete = load(nvml->library, "nvmlInit_v2", initialise) &&
                        load(nvml->library, "nvmlShutdown", nvml->shutdown) &&
                        load(nvml->library, "nvmlDeviceGetCount_v2", count) &&
                        load(nvml->library, "nvmlDeviceGetHandleByIndex_v2", handle) &&
                        load(nvml->library, "nvmlDeviceGetUtilizationRates", nvml->utilisation) &&
                        load(nvml->library, "nvmlDeviceGetPowerUsage", nvml->power_mw) &&
                        load(nvml->library, "nvmlDeviceGetMemoryInfo", nvml->memory);
  if (!complete || initialise() != 0) {
    dlclose(nvml->library);
    return;
  }
  unsigned devices = 0;
  if (count(&devices) != 0) {
    devices = 0;
  }
  for (unsigned i = 0; i < devices; ++i) {
    if (Device device = nullptr; handle(i, &device) == 0) {
      nvml->devices.push_back(device);
    }
  }
  nvml_ = std::move(nvml);
}

GpuMonitor::~GpuMonitor() {
  if (nvml_) {
    nvml_->shutdown();
    dlclose(nvml_->library);
  }
}

void GpuMonitor::sample() {
  if (!nvml_ || nvml_->devices.empty()) {
    return;
  }
  double utilisation_percent = 0;
  double power_w = 0;
  double memory_mib = 0;
  for (const Device device : nvml_->devices) {
    Utilisation utilisation{};
    unsigned power_mw = 0;
    Memory memory{};
    if (nvml_->utilisation(device, &utilisation) != 0 || nvml_->power_mw(device, &power_mw) != 0 ||
        nvml_->memory(device, &memory) != 0) {
      return;  // half a sample would be a wrong one
    }
    utilisation_percent += utilisation.gpu_percent;
    power_w += power_mw / 1e3;
    memory_mib += static_cast<double>(memory.used_bytes) / (1024.0 * 1024.0);
  }
  const auto devices = static_cast<double>(nvml_->devices.size());
  utilisation_sum_ += utilisation_percent / devices;
  power_sum_ += power_w / devices;
  largest_memory_mib_ = std::max(largest_memory_mib_, memory_mib);
  ++samples_;
}

std::optional<GpuUsage> GpuMonitor::take() {
  const int samples = std::exchange(samples_, 0);
  const double utilisation = std::exchange(utilisation_sum_, 0);
  const double power = std::exchange(power_sum_, 0);
  const double memory_mib = std::exchange(largest_memory_mib_, 0);
  if (samples == 0) {
    return std::nullopt;
  }
  return GpuUsage{utilisation / samples, power / samples, memory_mib};
}

}  // namespace ddp::bench
