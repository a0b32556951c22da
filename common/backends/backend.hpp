// common/backends/backend.hpp - makes the backend of a process group.
#pragma once

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>

#include "common/launch/launch_environment.hpp"

namespace ddp {

struct BackendOptions {
  int rank;
  int world_size;
  torch::Device device;
  std::chrono::milliseconds timeout;  ///< limit of every collective; MPI has none
  std::string address;  ///< numeric address of this host, for its peers
};

/// @return "nccl" for "auto" on a CUDA device, else `name`: on the CPU make_backend() decides
/// @throws UsageError if the backend cannot work on that device
std::string resolve_backend(const std::string& name, const torch::Device& device);

/// Checks the backend on all ranks alike, before they meet: MPI joins only processes that its own
/// launcher started.
/// @throws UsageError if this launch or this build cannot use the backend
void check_launch(const std::string& name, const LaunchEnvironment& environment,
                  const Variables& variables = process_variables());

/// Blocks until the other ranks are there, or throws when the timeout has passed.
/// @param name "shm", "gloo", "mpi", "nccl", or "auto": shared memory if all ranks are on one host,
/// else Gloo. If one host's memory cannot be shared, all ranks use Gloo and rank 0 says why on
/// stderr.
/// @return its getBackendName() is never "auto"
c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& name,
                                               const c10::intrusive_ptr<c10d::Store>& store,
                                               const BackendOptions& options);

/// LibTorch's own Gloo: TCP between processes, host memory.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const BackendOptions& options);

/// wait_over_gloo() reached its limit.
struct GlooTimeout : std::runtime_error {
  GlooTimeout()
      : std::runtime_error("--timeout is over, no rank is late, the ranks may make other calls") {}
};

/// Blocks until the work of a backend by make_gloo_backend() is complete.
/// @throws the work's exception, or Error soon after a connection broke: Note [Lost connections]
/// @throws GlooTimeout after `timeout`
/// @param is_hopeless called several times per second: true ends the wait by an Error
void wait_over_gloo(c10d::Backend& backend, c10d::Work& work, std::chrono::milliseconds timeout,
                    const std::function<bool()>& is_hopeless);

}  // namespace ddp
