// common/launch/device_count.cpp - asks the CUDA driver itself, which is there only on machines
// with a GPU.
#include "common/launch/device_count.hpp"

#include <dlfcn.h>

namespace ddp {

namespace {

// The driver's ABI, from cuda.h: these two have not changed since CUDA 2.0. Declared here so that a
// CPU build needs no toolkit.
using DriverInit = int (*)(unsigned int flags);
using DriverDeviceCount = int (*)(int* count);
constexpr int kDriverSuccess = 0;

int ask_driver() {
  // Never closed: the driver keeps threads and exit handlers of its own.
  void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    return 0;
  }
  const auto init = reinterpret_cast<DriverInit>(dlsym(library, "cuInit"));
  const auto device_count = reinterpret_cast<DriverDeviceCount>(dlsym(library, "cuDeviceGetCount"));
  int count = 0;
  if (init == nullptr || device_count == nullptr || init(0) != kDriverSuccess ||
      device_count(&count) != kDriverSuccess) {
    return 0;
  }
  return count;
}

}  // namespace

int count_cuda_devices() {
  static const int count = ask_driver();
  return count;
}

}  // namespace ddp
