#include "common/device/device.hpp"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <malloc.h>

#include <cstdlib>
#include <iostream>

#include "common/base/command_line.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/module.hpp"

namespace ddp {
namespace {

/// @return 0 if the run is on the CPU @throws UsageError if CUDA was asked for and is not there
int usable_cuda_devices(const DeviceOptions& options) {
  const int devices = options.device == "cpu" ? 0 : count_cuda_devices();
  const bool usable = devices > 0 && open_module(kCudaModule) != nullptr;
  if (options.device == "cuda" && !usable) {
    refuse("--device cuda: {}", devices == 0
                                    ? why_no_cuda_device()
                                    : "found no libddp_cuda.so, expected it in the build's lib");
  }
  if (!options.devices.empty() && !usable) {
    refuse("--devices: found no CUDA device that can be used, expected one");
  }
  return usable ? devices : 0;
}

/// Forbids TF32's 10 bits in float32 products, unless the user has asked for them.
void pin_precision(const std::string& program, int local_rank) {
  for (const char* const name : {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0' && std::string(value) != "0") {
      if (local_rank == 0) {
        std::cerr << fmt::format(
            "{}: note: {}={}: products may be rounded to TF32, expect weights that differ from "
            "other runs' in the third digit\n",
            program, name, value);
      }
      return;
    }
  }
  at::globalContext().setFloat32MatmulPrecision("highest");
  at::globalContext().setAllowTF32CuDNN(false);  // convolutions
}

torch::Device cuda_device(int index, int devices) {
  if (index >= devices) {
    refuse("--devices: got {}, expected 0 to {}", index, devices - 1);
  }
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

/// Note [Memory of a step]: the memory that autograd frees in backward is allocated again in the
/// next forward. By default malloc returns the free top of the heap to the kernel. Then a step of
/// model M has 60 page faults, which take 3 to 6 % of it. The user's settings have precedence.
void keep_freed_memory() {
  for (const char* const name :
       {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}) {
    if (std::getenv(name) != nullptr) {
      return;
    }
  }
  constexpr int kBytes = 32 << 20;  // the largest that glibc takes for M_MMAP_THRESHOLD
  mallopt(M_MMAP_THRESHOLD, kBytes);
  mallopt(M_TRIM_THRESHOLD, kBytes);
}

void apply_settings(const DeviceOptions& options) {
  keep_freed_memory();
  at::set_num_threads(options.threads);
  // One thread makes MKL's first square root alone, and not Adam's first step on several: of first
  // calls at the same time one may take a kernel of few digits (pytorch#188792).
  at::ones({1}).sqrt();
  if (options.deterministic) {
    // Must be set before cuBLAS is first used.
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setBenchmarkCuDNN(false);
  }
}

}  // namespace

torch::Device set_device(const DeviceOptions& options, int local_rank) {
  if (options.started_by == StartedBy::kUser &&
      (options.devices.size() > 1 || options.nprocs.value_or(1) != 1)) {
    refuse("{}, expected one device; stages 02 and 03 use several",
           options.nprocs ? fmt::format("--nprocs: got {}", *options.nprocs)
                          : fmt::format("--devices: got {}", options.devices.size()));
  }
  apply_settings(options);
  const int devices = usable_cuda_devices(options);
  if (devices == 0) {
    if (options.graph) {
      refuse("--graph: got device cpu, expected one CUDA device per process");
    }
    return torch::kCPU;
  }
  pin_precision(options.program, local_rank);
  // A launcher may show each process a single device. If the other processes of the node see the
  // same device, init_process_group() refuses them.
  const bool given_one =
      devices == 1 && options.devices.empty() && options.started_by == StartedBy::kLauncher;
  const auto usable =
      options.devices.empty() ? static_cast<size_t>(devices) : options.devices.size();
  const auto index = given_one ? 0 : static_cast<size_t>(local_rank);
  if (index >= usable) {
    refuse(
        "local rank {} has no device of its own: got {} CUDA devices, expected one per process "
        "on this node",
        local_rank, usable);
  }
  const torch::Device device = cuda_device(
      options.devices.empty() ? static_cast<int>(index) : options.devices[index], devices);
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  return device;
}

torch::Device set_device(int local_rank) {
  return set_device({.program = program_name(), .started_by = StartedBy::kLauncher}, local_rank);
}

std::vector<torch::Device> set_devices(const DeviceOptions& options) {
  apply_settings(options);
  const int devices = usable_cuda_devices(options);
  if (devices == 0) {
    constexpr int kCpuReplicas = 2;  // shows all that stage 02 teaches
    return {static_cast<size_t>(options.nprocs.value_or(kCpuReplicas)), torch::Device(torch::kCPU)};
  }
  pin_precision(options.program, /*local_rank=*/0);
  std::vector<int> indices = options.devices;
  if (indices.empty()) {
    const int replicas = options.nprocs.value_or(devices);
    if (replicas > devices) {
      refuse("--nprocs: got {}, expected at most {}, the number of CUDA devices", replicas,
             devices);
    }
    for (int i = 0; i < replicas; ++i) {
      indices.push_back(i);
    }
  }
  std::vector<torch::Device> picked;
  for (const int index : indices) {
    picked.push_back(cuda_device(index, devices));
  }
  c10::impl::VirtualGuardImpl(torch::kCUDA).setDevice(picked.front());
  return picked;
}

}  // namespace ddp
