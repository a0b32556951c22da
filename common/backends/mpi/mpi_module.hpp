// common/backends/mpi/mpi_module.hpp - what needs libmpi.so, behind one table of functions.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/backends/shm/communicator.hpp"

namespace ddp {

struct MpiSettings {
  int rank = 0;
  int world_size = 1;
  std::chrono::milliseconds timeout{120000};  ///< of every collective
  // Where ranks leave word for each other when MPI says nothing any more. Either may throw.
  std::function<void(const std::string& key, const std::string& text)> leave_note;
  std::function<std::optional<std::string>(const std::string& key)> find_note;
  std::function<std::string()> last_call = nullptr;  ///< as BackendOptions has it
};

/// What libddp_mpi.so offers. It is opened only for --backend mpi: libmpi brings ten more libraries
/// with it, and programs are to start where there is no MPI.
struct MpiModule {
  /// Initialises MPI, once per process. Collective.
  /// @throws UsageError if this process is another rank in MPI's world, or that has another size
  std::unique_ptr<Communicator> (*connect)(const MpiSettings& settings);
  /// Whether MPI takes pointers to a GPU's memory.
  bool (*is_cuda_aware)();
};

/// Opens the module, once. @return nullptr if this build has none
/// @throws UsageError if it is there but cannot be opened, as where libmpi is not installed
const MpiModule* mpi_module();

}  // namespace ddp
