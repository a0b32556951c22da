// tests/device/fake_nvidia.cpp - a libcuda.so.1 that counts the devices in CUDA_VISIBLE_DEVICES,
// out of eight; FAKE_DRIVER_FAILS is the result of cuInit(). And a libnvidia-ml.so.1 with two GPUs,
// the driver's devices 5 and 0, and known answers.
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidDevice = 101;

/// Devices up to the first name that is no device, as in the real driver.
std::vector<std::string> visible_devices() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::istringstream names(visible == nullptr ? "0,1,2,3,4,5,6,7" : visible);
  std::vector<std::string> devices;
  for (std::string name; std::getline(names, name, ',');) {
    const bool is_index = name.find_first_not_of("0123456789") == std::string::npos;
    if (!is_index && !name.starts_with("GPU-")) {
      break;
    }
    devices.push_back(name);
  }
  return devices;
}

}  // namespace

extern "C" int cuInit(unsigned int /*flags*/) {
  const char* const code = std::getenv("FAKE_DRIVER_FAILS");
  return code == nullptr ? kSuccess : std::atoi(code);
}

extern "C" int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(visible_devices().size());
  return kSuccess;
}

extern "C" int cuDeviceGet(int* device, int index) {
  *device = index;
  return kSuccess;
}

/// UUID 03030303-... for device 3, and 8932f937-00... for GPU-8932f937....
extern "C" int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  const std::vector<std::string> devices = visible_devices();
  if (device < 0 || static_cast<size_t>(device) >= devices.size()) {
    return kInvalidDevice;
  }
  const std::string& name = devices[static_cast<size_t>(device)];
  const bool is_index = name.size() == 1;
  std::memset(uuid, is_index ? name[0] - '0' : 0, 16);
  if (!is_index) {
    std::sscanf(name.c_str(), "GPU-%2hhx%2hhx%2hhx%2hhx", uuid, uuid + 1, uuid + 2, uuid + 3);
  }
  return kSuccess;
}

extern "C" int cuDriverGetVersion(int* version) {
  *version = 99000;
  return kSuccess;
}

extern "C" {

struct FakeUtilisation {
  unsigned gpu_percent;
  unsigned memory_percent;
};
struct FakeMemory {
  unsigned long long total_bytes;
  unsigned long long free_bytes;
  unsigned long long used_bytes;
};

static int devices[2];
static unsigned looks = 0;

int nvmlInit_v2() {
  return 0;
}
int nvmlShutdown() {
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  const bool first = std::strcmp(uuid, "GPU-05050505-0505-0505-0505-050505050505") == 0;
  const bool second = std::strcmp(uuid, "GPU-00000000-0000-0000-0000-000000000000") == 0;
  *device = &devices[second ? 1 : 0];
  return first || second ? 0 : 6;
}
int nvmlDeviceGetUtilizationRates(void* device, FakeUtilisation* utilisation) {
  const bool second = device == &devices[1];
  utilisation->gpu_percent = (second ? 60u : 40u) + (looks / 2) * 10u;
  ++looks;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, FakeMemory* memory) {
  memory->used_bytes = (device == &devices[1] ? 1ull : 2ull) << (looks > 2 ? 29 : 30);
  return 0;
}

}  // extern "C"
