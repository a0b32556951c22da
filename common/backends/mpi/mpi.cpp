// libddp_mpi.so: MPI's beginning and end.
#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>  // Open MPI's
#endif

#include <array>
#include <cstdlib>

#include "common/backends/mpi/mpi_communicator.hpp"
#include "common/backends/mpi/mpi_module.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::mpi {
namespace {

/// Communicators that were made and not closed, and whether MPI is ours to end.
int open_communicators = 0;

/// Note [MPI's end]: MPI_Finalize() waits for the other ranks. It is called when the program ends
/// and every communicator was closed, which all ranks did together. A rank that ends by an error
/// leaves without it: mpirun sees that, and ends the others.
void finalize() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (open_communicators == 0 && finalized == 0) {
    MPI_Finalize();
  }
}

class CountedCommunicator : public MpiCommunicator {
 public:
  explicit CountedCommunicator(const MpiSettings& settings) : MpiCommunicator(settings) {
    ++open_communicators;
  }
  void close() override {
    MpiCommunicator::close();
    --open_communicators;
  }
};

void initialize() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) {
    return;
  }
  // A process that mpirun did not start would start a daemon, for ranks that it never adds.
  setenv("OMPI_MCA_ess_singleton_isolated", "1", /*overwrite=*/0);
  // Backward hooks call from autograd's threads, one call at a time.
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  open_communicators = 1;  // until it has proved right: see connect()
  if (provided < MPI_THREAD_SERIALIZED) {
    throw UsageError("--backend mpi: MPI gives thread level " + std::to_string(provided) +
                     ", expected MPI_THREAD_SERIALIZED, " + std::to_string(MPI_THREAD_SERIALIZED));
  }
  std::atexit(finalize);
  open_communicators = 0;
}

std::unique_ptr<Communicator> connect(const MpiSettings& settings) {
  initialize();
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank != settings.rank || size != settings.world_size) {
    ++open_communicators;  // nobody else may come to the end
    throw UsageError("--backend mpi: MPI has rank " + std::to_string(rank) + " of " +
                     std::to_string(size) + ", expected rank " + std::to_string(settings.rank) +
                     " of " + std::to_string(settings.world_size) + ", as the launcher has it");
  }
  return std::make_unique<CountedCommunicator>(settings);
}

bool is_cuda_aware() {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

std::string version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string all = text.data();
  return all.substr(0, all.find('\n'));
}

}  // namespace
}  // namespace ddp::mpi

extern "C" const ddp::MpiModule* ddp_mpi_module() {
  static const ddp::MpiModule module{.connect = ddp::mpi::connect,
                                     .version = ddp::mpi::version,
                                     .is_cuda_aware = ddp::mpi::is_cuda_aware};
  return &module;
}
