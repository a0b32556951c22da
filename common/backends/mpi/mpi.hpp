// common/backends/mpi/mpi.hpp - Open MPI's collectives as a c10d::Backend.
#pragma once

#include <string>

#include "common/backends/backend.hpp"
#include "common/launch/launch_environment.hpp"

namespace ddp {

/// Why the ranks of this launch are no MPI world, or nothing: MPI joins only processes that its own
/// launcher started. Asks the environment only, before anybody waits for anybody.
std::string mpi_launch_problem(const LaunchEnvironment& environment, const GetEnv& getenv);

/// Initialises MPI. The store only tells who is missing when a collective does not end. A
/// collective that does not return within options.timeout ends the process with code 1. Tensors of
/// a GPU go through host memory.
/// @throws UsageError if there is no libddp_mpi.so or MPI's ranks are others
c10::intrusive_ptr<c10d::Backend> make_mpi_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const BackendOptions& options);

}  // namespace ddp
