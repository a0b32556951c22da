// common/backends/mpi/mpi_module.hpp - what needs libmpi.so, behind one table of functions.
#pragma once

#include <memory>

#include "common/backends/shm/communicator.hpp"

namespace ddp {

/// The functions of libddp_mpi.so. It is opened only for --backend mpi: libmpi brings ten more
/// libraries with it, and programs are to start where there is no MPI.
struct MpiModule {
  /// Initialises MPI, once per process. Collective.
  /// @throws UsageError if this process is another rank in MPI's world, or that has another size
  std::unique_ptr<Communicator> (*connect)(int rank, int world_size);
};

/// Opens the module, once. @return nullptr if this build has none
/// @throws UsageError if it is there but cannot be opened, as where libmpi is not installed
const MpiModule* mpi_module();

}  // namespace ddp
