// Fake libnvidia-ml.so.1: two GPUs with known answers and the names of fake_cuda_driver's devices 5
// and 0.
#include <cstring>

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
