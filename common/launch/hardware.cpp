#include "common/launch/hardware.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cstddef>

namespace ddp {

int count_cores() {
  constexpr size_t kMaxCores = size_t{1} << 16;  // the kernel refuses a set that is too small
  std::array<cpu_set_t, kMaxCores / CPU_SETSIZE> set{};
  sched_getaffinity(0, sizeof(set), set.data());
  return std::max(1, CPU_COUNT_S(sizeof(set), set.data()));
}

int share_of_cores(int cores, int online, const LaunchEnvironment& environment) {
  const bool binds = environment.launcher == "openmpi" || environment.launcher == "slurm";
  return binds && cores < online ? cores : std::max(1, cores / environment.local_world_size);
}

int resolve_threads(const Options& options, const LaunchEnvironment& environment) {
  if (options.threads != kAutomaticThreads) {
    return options.threads;
  }
  const int cores =
      share_of_cores(count_cores(), static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), environment);
  // Stage 02's replicas compute side by side in this process.
  const int replicas = options.launch == Launch::kAlone ? options.nprocs.value_or(1) : 1;
  return std::max(1, cores / replicas);
}

namespace {

// Types of the driver's functions, copied from cuda.h so that a CPU build needs no toolkit. 0 is
// success.
using Uuid = std::array<unsigned char, 16>;
using DeviceAt = int (*)(int* device, int index);
using UuidOf = int (*)(Uuid* uuid, int device);

template <typename Function>
Function driver_function(const char* name) {
  // Never closed, because the driver has threads and exit handlers of its own.
  static void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

int ask_driver() {
  const auto initialise = driver_function<int (*)(unsigned flags)>("cuInit");
  const auto count = driver_function<int (*)(int* devices)>("cuDeviceGetCount");
  int devices = 0;
  const bool works =
      initialise != nullptr && count != nullptr && initialise(0) == 0 && count(&devices) == 0;
  return works ? devices : 0;
}

}  // namespace

int count_cuda_devices() {
  static const int devices = DDP_CUDA_VERSION_MAJOR == 0 ? 0 : ask_driver();
  return devices;
}

std::string cuda_device_uuid(int index) {
  if (index < 0 || index >= count_cuda_devices()) {
    return "";
  }
  const auto device_at = driver_function<DeviceAt>("cuDeviceGet");
  const auto uuid_of = driver_function<UuidOf>("cuDeviceGetUuid_v2");
  int device = 0;
  Uuid uuid{};
  if (device_at == nullptr || uuid_of == nullptr || device_at(&device, index) != 0 ||
      uuid_of(&uuid, device) != 0) {
    return "";
  }
  std::string text;
  for (size_t i = 0; i < uuid.size(); ++i) {
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
  }
  return text;
}

std::string why_no_cuda_device() {
  return DDP_CUDA_VERSION_MAJOR == 0
             ? "this build has no CUDA support, expected one configured with DDP_CUDA=ON"
             : "found no CUDA device, expected at least one";
}

}  // namespace ddp
