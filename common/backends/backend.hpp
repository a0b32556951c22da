// common/backends/backend.hpp - one factory for every way to communicate.
#pragma once

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

#include "common/launch/launch_environment.hpp"

namespace ddp {

struct BackendOptions {
  int rank;
  int world_size;
  torch::Device device;
  std::chrono::milliseconds timeout;  ///< of every collective; MPI has none
  std::string address;  ///< of this host, as a number: where peers reach it
};

/// "auto" is NCCL for CUDA devices; on the CPU make_backend() decides.
/// @throws UsageError if the backend cannot work on that device
std::string resolve_backend(const std::string& name, const torch::Device& device);

/// On all ranks alike, before they meet. MPI joins only processes that its own launcher started.
/// @throws UsageError if the processes of this launch cannot communicate in that way, or this build
/// cannot
void check_launch(const std::string& name, const LaunchEnvironment& environment,
                  const GetEnv& getenv = process_getenv);

/// Blocks until the other ranks are there, or throws when the timeout has passed.
/// @param name "auto" (shared memory if all ranks are on one host, else Gloo; all ranks agree, and
/// rank 0 says on stderr why if the memory of one host cannot be shared), "shm", "gloo", "mpi" or
/// "nccl"
/// @return its getBackendName() is never "auto"
c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& name,
                                               const c10::intrusive_ptr<c10d::Store>& store,
                                               const BackendOptions& options);

/// Gloo, LibTorch's own: TCP between processes, host memory.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const BackendOptions& options);

/// Blocks until the work of a backend by make_gloo_backend() is complete.
/// @throws what the work throws, or Error soon after a connection broke, by Note [Lost connections]
void wait_over_gloo(c10d::Backend& backend, c10d::Work& work);

}  // namespace ddp
