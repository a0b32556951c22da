// common/launch/device_count.cpp - asks the CUDA driver itself, which is there only on machines
// with a GPU.
#include "common/launch/device_count.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

namespace ddp {

namespace {

// The driver's ABI, from cuda.h: the first two have not changed since CUDA 2.2. Declared here so
// that a CPU build needs no toolkit.
using DriverInit = int (*)(unsigned int flags);
using DriverNumber = int (*)(int* number);
using DriverDevice = int (*)(int* device, int index);
using DriverUuid = int (*)(std::array<unsigned char, 16>* uuid, int device);
constexpr int kDriverSuccess = 0;
constexpr int kDriverNoDevice = 100;

struct Driver {
  int devices = 0;
  std::string problem;
  void* library = nullptr;
};

Driver ask_driver() {
  if (DDP_CUDA_VERSION_MAJOR == 0) {
    return {};
  }
  // Never closed: the driver keeps threads and exit handlers of its own.
  void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    return {};
  }
  const auto init = reinterpret_cast<DriverInit>(dlsym(library, "cuInit"));
  const auto device_count = reinterpret_cast<DriverNumber>(dlsym(library, "cuDeviceGetCount"));
  const auto driver_version = reinterpret_cast<DriverNumber>(dlsym(library, "cuDriverGetVersion"));
  int devices = 0;
  int version = 0;  // 12040: CUDA 12.4
  if (init == nullptr || device_count == nullptr || driver_version == nullptr) {
    return {};
  }
  if (const int code = init(0); code != kDriverSuccess) {
    return {.devices = 0,
            .problem = code == kDriverNoDevice
                           ? ""  // 803, for example, is a driver whose library has another version
                           : fmt::format("the CUDA driver cannot be used (cuInit gives {}), "
                                         "expected 0",
                                         code)};
  }
  if (device_count(&devices) != kDriverSuccess || devices == 0 ||
      driver_version(&version) != kDriverSuccess) {
    return {};
  }
  // Within a major version a runtime works with any driver ("minor version compatibility").
  if (version / 1000 < DDP_CUDA_VERSION_MAJOR) {
    return {.devices = 0,
            .problem = fmt::format("the CUDA driver is for CUDA {}.{}, expected one for CUDA {} or "
                                   "newer, as LibTorch was built for",
                                   version / 1000, version % 1000 / 10, DDP_CUDA_VERSION_MAJOR)};
  }
  return {.devices = devices, .problem = "", .library = library};
}

const Driver& driver() {
  static const Driver answer = ask_driver();
  return answer;
}

}  // namespace

int count_cuda_devices() {
  return driver().devices;
}

std::string cuda_device_uuid(int index) {
  if (index < 0 || index >= driver().devices) {
    return "";
  }
  const auto device_at = reinterpret_cast<DriverDevice>(dlsym(driver().library, "cuDeviceGet"));
  // Of a MIG instance its own, where the call without _v2 gives that of the whole GPU.
  const auto uuid_of = reinterpret_cast<DriverUuid>(dlsym(driver().library, "cuDeviceGetUuid_v2"));
  int device = 0;
  std::array<unsigned char, 16> uuid{};
  if (device_at == nullptr || uuid_of == nullptr || device_at(&device, index) != kDriverSuccess ||
      uuid_of(&uuid, device) != kDriverSuccess) {
    return "";
  }
  std::string text;
  for (size_t i = 0; i < uuid.size(); ++i) {
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
  }
  return text;
}

std::string why_no_cuda_device() {
  if (DDP_CUDA_VERSION_MAJOR == 0) {
    return "this build has no CUDA support, expected one configured with DDP_CUDA=ON";
  }
  return driver().problem.empty() ? "found no CUDA device, expected at least one"
                                  : driver().problem;
}

const std::string& cuda_driver_problem() {
  return driver().problem;
}

}  // namespace ddp
