// tests/fake_cuda_driver.cpp - a libcuda.so.1 that counts what CUDA_VISIBLE_DEVICES names, of eight
// devices. Its version is FAKE_DRIVER_VERSION, what cuInit() says FAKE_DRIVER_FAILS.
#include <cstdlib>
#include <sstream>
#include <string>

namespace {

constexpr int kSuccess = 0;

}  // namespace

extern "C" int cuInit(unsigned int /*flags*/) {
  const char* const code = std::getenv("FAKE_DRIVER_FAILS");
  return code == nullptr ? kSuccess : std::atoi(code);
}

/// As the real one: up to the first that is no device.
extern "C" int cuDeviceGetCount(int* count) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::istringstream names(visible == nullptr ? "0,1,2,3,4,5,6,7" : visible);
  *count = 0;
  for (std::string name; std::getline(names, name, ',');) {
    const bool is_index = name.find_first_not_of("0123456789") == std::string::npos;
    const bool is_uuid = name.rfind("GPU-", 0) == 0 || name.rfind("MIG-", 0) == 0;
    if (!is_index && !is_uuid) {
      break;
    }
    ++*count;
  }
  return kSuccess;
}

extern "C" int cuDriverGetVersion(int* version) {
  const char* const pretended = std::getenv("FAKE_DRIVER_VERSION");
  *version = pretended == nullptr ? 99000 : std::atoi(pretended);
  return kSuccess;
}
