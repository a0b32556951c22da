#include "common/launch/gpu_monitor.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/launch/device_count.hpp"

namespace ddp {
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

}  // namespace

struct GpuMonitor::Nvml {
  /// @return false if the library lacks it
  template <typename Function>
  bool load(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library.get(), name));
    return function != nullptr;
  }

  std::unique_ptr<void, int (*)(void*)> library{dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL),
                                                dlclose};
  int (*shutdown)() = nullptr;
  int (*utilisation)(Device, Utilisation*) = nullptr;
  int (*power_mw)(Device, unsigned*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*by_uuid)(const char*, Device*) = nullptr;
  int (*by_index)(unsigned, Device*) = nullptr;
  int (*count)(unsigned*) = nullptr;
  std::vector<Device> devices;

  /// NVML has another order than CUDA, and knows no CUDA_VISIBLE_DEVICES: what is visible is asked
  /// for by name. (All that there is if CUDA sees nothing.)
  void find_devices() {
    const int visible = count_cuda_devices();
    unsigned all = 0;
    if (visible == 0 && count(&all) == 0) {
      for (unsigned i = 0; i < all; ++i) {
        add([&](Device* device) { return by_index(i, device); });
      }
    }
    for (int i = 0; i < visible; ++i) {
      const std::string uuid = cuda_device_uuid(i);
      add([&](Device* device) {
        const int error = by_uuid(("GPU-" + uuid).c_str(), device);
        return error == 0 ? error : by_uuid(("MIG-" + uuid).c_str(), device);
      });
    }
  }

 private:
  /// One that is not found leaves its place empty, so that the others keep their numbers.
  /// @param find returns NVML's error
  template <typename Find>
  void add(const Find& find) {
    Device device = nullptr;
    devices.push_back(find(&device) == 0 ? device : nullptr);
  }
};

GpuMonitor::GpuMonitor() {
  auto nvml = std::make_unique<Nvml>();
  int (*initialise)() = nullptr;
  const bool usable = nvml->library && nvml->load("nvmlInit_v2", initialise) &&
                      nvml->load("nvmlShutdown", nvml->shutdown) &&
                      nvml->load("nvmlDeviceGetCount_v2", nvml->count) &&
                      nvml->load("nvmlDeviceGetHandleByIndex_v2", nvml->by_index) &&
                      nvml->load("nvmlDeviceGetHandleByUUID", nvml->by_uuid) &&
                      nvml->load("nvmlDeviceGetUtilizationRates", nvml->utilisation) &&
                      nvml->load("nvmlDeviceGetPowerUsage", nvml->power_mw) &&
                      nvml->load("nvmlDeviceGetMemoryInfo", nvml->memory) && initialise() == 0;
  if (!usable) {
    return;
  }
  nvml->find_devices();
  nvml_ = std::move(nvml);
}

GpuMonitor::~GpuMonitor() {
  if (nvml_) {
    nvml_->shutdown();
  }
}

std::optional<GpuReadings> GpuMonitor::sample() {
  const size_t there = nvml_ && nvml_->devices.size() > first_ ? nvml_->devices.size() - first_ : 0;
  const size_t watched = std::min(watched_, there);
  if (watched == 0) {
    return std::nullopt;
  }
  const auto devices = static_cast<double>(watched);
  GpuReadings now{.gpus = static_cast<int>(watched)};
  for (size_t i = 0; i < watched; ++i) {
    const Device device = nvml_->devices[first_ + i];
    Utilisation utilisation{};
    unsigned power_mw = 0;
    Memory memory{};
    if (device == nullptr || nvml_->utilisation(device, &utilisation) != 0 ||
        nvml_->power_mw(device, &power_mw) != 0 || nvml_->memory(device, &memory) != 0) {
      return std::nullopt;  // half a sample would be a wrong one
    }
    now.utilisation_percent += utilisation.gpu_percent / devices;
    now.power_w += power_mw / 1e3 / devices;
    now.memory_mib += static_cast<double>(memory.used_bytes) / (1024.0 * 1024.0);
  }
  sum_ = {sum_.utilisation_percent + now.utilisation_percent, sum_.power_w + now.power_w,
          std::max(sum_.memory_mib, now.memory_mib), now.gpus};
  ++samples_;
  return now;
}

std::optional<GpuReadings> GpuMonitor::take() {
  const int samples = std::exchange(samples_, 0);
  const GpuReadings sum = std::exchange(sum_, {});
  return samples == 0 ? std::nullopt
                      : std::optional(GpuReadings{sum.utilisation_percent / samples,
                                                  sum.power_w / samples, sum.memory_mib, sum.gpus});
}

}  // namespace ddp
