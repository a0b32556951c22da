// tests/support/slow_mpi.cpp - preloaded: every MPI_Allreduce takes so long, as over a network that
// is slow, DDP_SLOW_MPI_SECONDS.
#include <mpi.h>

#include <chrono>
#include <cstdlib>
#include <thread>

extern "C" int MPI_Allreduce(const void* input, void* output, int count, MPI_Datatype type,
                             MPI_Op op, MPI_Comm communicator) {
  const char* const seconds = std::getenv("DDP_SLOW_MPI_SECONDS");
  std::this_thread::sleep_for(
      std::chrono::duration<double>(seconds == nullptr ? 0 : std::atof(seconds)));
  return PMPI_Allreduce(input, output, count, type, op, communicator);
}
