#include "common/backends/host_backend.hpp"
#include "common/backends/module.hpp"
#include "common/backends/mpi/mpi.hpp"
#include "common/backends/mpi/mpi_module.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp {
namespace {

Notes notes_in(const c10::intrusive_ptr<c10d::Store>& store) {
  return {
      .leave = [store](const std::string& key, const std::string& text) { store->set(key, text); },
      .find = [store](const std::string& key) -> std::optional<std::string> {
        if (!store->check({key})) {
          return std::nullopt;
        }
        const std::vector<uint8_t> bytes = store->get(key);
        return std::string(bytes.begin(), bytes.end());
      }};
}

}  // namespace

const MpiModule* mpi_module() {
  static const MpiModule* const module = []() -> const MpiModule* {
    void* const function = open_module("libddp_mpi.so", kMpiModuleSymbol);
    return function == nullptr ? nullptr : reinterpret_cast<MpiModuleFunction>(function)();
  }();
  return module;
}

std::string mpi_launch_problem(const LaunchEnvironment& environment, const GetEnv& getenv) {
  const std::string rank = std::to_string(environment.rank);
  const std::string world_size = std::to_string(environment.world_size);
  const std::string instead = ", expected mpirun: MPI joins no other processes; mpirun -n " +
                              world_size +
                              " build/bin/04_ddp_launcher --backend mpi, or --backend auto";
  const auto open_mpi_rank = getenv("OMPI_COMM_WORLD_RANK");
  const auto open_mpi_size = getenv("OMPI_COMM_WORLD_SIZE");
  if (open_mpi_rank || open_mpi_size) {
    return open_mpi_rank == rank && open_mpi_size == world_size
               ? ""
               : environment.launcher + " started rank " + rank + " of " + world_size +
                     " inside rank " + open_mpi_rank.value_or("?") + " of " +
                     open_mpi_size.value_or("?") + " of mpirun" + instead;
  }
  // srun --mpi=pmix: the size is known when MPI has begun.
  const auto pmix_rank = getenv("PMIX_RANK");
  if (environment.world_size == 1 || pmix_rank == rank) {
    return "";
  }
  return environment.launcher + " started the " + world_size + " ranks" + instead;
}

const MpiModule& need_mpi_module() {
  const MpiModule* const module = mpi_module();
  if (module == nullptr) {
    throw UsageError(
        "--backend mpi: this build has no lib/libddp_mpi.so, expected libopenmpi-dev (or another "
        "MPI) when it was built; use --backend auto");
  }
  return *module;
}

c10::intrusive_ptr<c10d::Backend> make_mpi_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const BackendOptions& options) {
  const MpiModule& module = need_mpi_module();
  auto communicator = module.connect({.rank = options.rank,
                                      .world_size = options.world_size,
                                      .timeout = options.timeout,
                                      .notes = notes_in(store)});
  return c10::make_intrusive<HostBackend>(
      "mpi", std::move(communicator),
      module.is_cuda_aware() ? HostBackend::Tensors::kDirect : HostBackend::Tensors::kStaged);
}

}  // namespace ddp
