// common/backends/mpi/mpi_reduction.hpp - MPI's names for types and operations.
#pragma once

#include <mpi.h>

#include "common/backends/shm/communicator.hpp"

namespace ddp::mpi {

struct Reduction {
  MPI_Datatype type;
  MPI_Op op;
};

/// MPI's own operations for integers, truth values, and sums and products of float32 and float64.
/// Ours, the kernels of the shared memory's collectives, for what MPI lacks: half precision, and
/// minimum and maximum that are NaN where any rank's value is. MPI is initialised.
Reduction find_reduction(DType dtype, ReduceOp op);

}  // namespace ddp::mpi
