// common/backends/mpi/mpi_module.hpp - functions that need libmpi.so, in one table.
#pragma once

#include "common/backends/communicator.hpp"

namespace ddp {

/// Functions of libddp_mpi.so, which is opened only for --backend mpi: libmpi loads ten more
/// libraries, and programs must start on machines without MPI too.
struct MpiModule {
  /// Initialises MPI, once per process. Collective.
  /// @throws UsageError if this process has another rank or world size in MPI's world
  std::unique_ptr<Communicator> (*connect)(int rank, int world_size);
};

}  // namespace ddp
