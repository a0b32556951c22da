// common/backends/backend.hpp - one factory for every way to communicate.
#pragma once

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <string>

#include "common/launch/launch_environment.hpp"

namespace ddp {

struct BackendOptions {
  int rank;
  int world_size;
  torch::Device device;
  std::chrono::milliseconds timeout;  ///< of every collective
  std::string address;  ///< of this host, as a number: where peers reach it
  int num_nodes = 1;  ///< as the launcher has it
  /// "collective 2, called at main.cpp:21": the collective at hand, for messages of other threads;
  /// may be null.
  std::function<std::string()> last_call = nullptr;
};

/// "auto" is NCCL for CUDA devices; on the CPU make_backend() decides.
/// @throws UsageError if the backend cannot work on that device
std::string resolve_backend(const std::string& name, const torch::Device& device);

/// @throws UsageError if the processes of this launch cannot communicate in that way, or this build
/// cannot. On all ranks alike, before they meet
void check_launch(const std::string& name, const LaunchEnvironment& environment);

/// Why the ranks of this launch are no MPI world, or nothing: MPI joins only processes that its own
/// launcher started. Asks the environment only, before anybody waits for anybody.
std::string mpi_launch_problem(const LaunchEnvironment& environment, const GetEnv& getenv);

/// Blocks until the other ranks are there, or throws when the timeout has passed.
/// @param name "auto" (shared memory if all ranks are on one host, hierarchical if several hosts
/// have several ranks each, else Gloo; all ranks agree, and rank 0 says on stderr why if memory
/// cannot be shared), "shm", "hierarchical", "gloo", "mpi" or "nccl"
/// @return its getBackendName() is never "auto"
c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& name,
                                               const c10::intrusive_ptr<c10d::Store>& store,
                                               const BackendOptions& options);

/// A backend that can tell between two collectives that a rank is gone. Others see it in the next.
class NoticesLostRanks {
 public:
  /// "rank 1 (pid 123) died", or what else is known of a rank that can be reached no more; empty if
  /// there is none. Not for while a collective runs, nor once the ranks part.
  virtual std::string lost_rank() const = 0;

 protected:
  ~NoticesLostRanks() = default;
};

/// What `backend` says of it; empty if that notices no lost ranks, or is null.
std::string lost_rank(const c10d::Backend* backend);

/// Gloo, LibTorch's own: TCP between processes, host memory.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const BackendOptions& options);

/// Blocks until the work of a backend by make_gloo_backend() is complete.
/// @throws what the work throws, or Error soon after a connection broke, by Note [Lost connections]
void wait_over_gloo(c10d::Backend& backend, c10d::Work& work);

}  // namespace ddp
