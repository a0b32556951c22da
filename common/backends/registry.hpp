// common/backends/registry.hpp - chooses and makes the backend of a process group.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "common/backends/backend.hpp"
#include "common/backends/traits.hpp"
#include "common/meet/launch.hpp"

namespace ddp {

/// @return NCCL for "auto" on a CUDA device, else `name`: on the CPU make_backend() decides
/// @throws UsageError if the backend cannot work on that device
std::string resolve_backend(const std::string& name, const torch::Device& device);

/// Checks the backend on all ranks alike, before they meet: MPI joins only processes that its own
/// launcher started.
/// @throws UsageError if this launch or this build cannot use the backend
void check_launch(const std::string& name, const LaunchEnvironment& environment);

/// Blocks until the other ranks are there, or throws when the timeout has passed.
/// @param name a name of kBackends, or "auto": shared memory if all ranks are on one host, else
/// Gloo. If one host's memory cannot be shared, all ranks use Gloo and rank 0 says why on stderr.
/// @return its getBackendName() is never "auto"
c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& name,
                                               const c10::intrusive_ptr<c10d::Store>& store,
                                               const BackendOptions& options);

/// Makes `backend` the backend of `group` for `device`.
void attach_backend(c10d::ProcessGroup& group, const torch::Device& device,
                    const c10::intrusive_ptr<c10d::Backend>& backend);

/// Words for an exception that left a thread of a backend; nothing if no backend knows it.
/// @param what its message
std::optional<std::string> backend_error(const std::string& what,
                                         std::chrono::milliseconds timeout);

}  // namespace ddp
