#include "common/backends/registry.hpp"

#include <iostream>
#include <regex>

#include "common/backends/cuda_module.hpp"
#include "common/backends/gloo.hpp"
#include "common/backends/host_backend.hpp"
#include "common/backends/mpi/mpi_module.hpp"
#include "common/backends/shm/shm_collectives.hpp"
#include "common/meet/board.hpp"

namespace ddp {
namespace {

using NewBackend = c10::intrusive_ptr<c10d::Backend>;
using StorePointer = c10::intrusive_ptr<c10d::Store>;

Board board_of(const StorePointer& store, const BackendOptions& options) {
  return {store, options.rank, options.world_size, options.timeout};
}

/// Meets the other ranks through the store; later calls use memory only.
/// @throws as shm::Collectives::connect() does, or TransientError naming the ranks that are late
NewBackend connect_shm(const StorePointer& store, const BackendOptions& options) {
  Board board = board_of(store, options);
  return make_host_backend(
      kShm, shm::Collectives::connect(options.rank, options.world_size, options.timeout,
                                      [&board](const std::string& mine) {
                                        return board.gather("shm", mine,
                                                            "the start of --backend shm");
                                      }));
}

/// Shared memory if all ranks can share it, else Gloo.
NewBackend make_cpu_backend(const StorePointer& store, const BackendOptions& options) {
  try {
    return connect_shm(store, options);
  } catch (const shm::SeveralHosts&) {
    // Gloo connects the hosts.
  } catch (const shm::SegmentError& error) {
    if (options.rank == 0) {
      std::cerr << fmt::format("note: --backend auto uses gloo, because shm cannot be used: {}\n",
                               error.what());
    }
  }
  return make_gloo_backend(store, options);
}

/// @throws UsageError if this build has no such module, or it cannot be opened (no libmpi)
const MpiModule& need_mpi_module() {
  static const auto* const module = static_cast<const MpiModule*>(open_module(kMpiModule));
  if (module == nullptr) {
    refuse(
        "--backend mpi: this build has no lib/libddp_mpi.so, expected libopenmpi-dev (or another "
        "MPI) when it was built; use --backend auto");
  }
  return *module;
}

NewBackend make_nccl(const StorePointer& store, const BackendOptions& options) {
  return cuda_module()->make_nccl_backend(store, options);
}

NewBackend make_mpi(const StorePointer&, const BackendOptions& options) {
  return make_host_backend(kMpi, need_mpi_module().connect(options.rank, options.world_size));
}

NewBackend make_shm(const StorePointer& store, const BackendOptions& options) {
  try {
    return connect_shm(store, options);
  } catch (const shm::SegmentError& error) {
    board_of(store, options).wait_for_readers("shm");
    refuse("--backend shm: {}; use --backend gloo", error.what());
  }
}

void check_mpi_launch(const LaunchEnvironment& environment) {
  need_mpi_module();
  if (!is_mpi_world(environment)) {
    refuse(
        "--backend mpi: {} started the {} ranks, expected mpirun: MPI joins no other processes; "
        "mpirun -n {} build/bin/04_ddp_launcher --backend mpi, or --backend auto",
        environment.launcher, environment.world_size, environment.world_size);
  }
}

/// The collective in the text of ProcessGroupNCCL's watchdog.
std::optional<std::string> nccl_error(const std::string& what, std::chrono::milliseconds timeout) {
  static const std::regex work("timeout: WorkNCCL\\(SeqNum=\\d+, OpType=(\\w+), NumelIn=(\\d+)");
  std::smatch match;
  if (std::regex_search(what, match, work)) {
    return fmt::format("NCCL's {} of {} elements did not end within {} s", match.str(1),
                       match.str(2), in_seconds(timeout));
  }
  return what == kNcclWatchdog ? std::optional(what) : std::nullopt;
}

std::optional<std::string> gloo_error(const std::string& what, std::chrono::milliseconds) {
  if (what.find("[enforce fail at ") == std::string::npos) {
    return std::nullopt;
  }
  return "Gloo got a message of another size than this rank expects: " + what;
}

/// Functions of a backend; kBackends has its traits.
struct Row {
  const char* name;
  NewBackend (*make)(const StorePointer& store, const BackendOptions& options);
  void (*check)(const LaunchEnvironment& environment) = nullptr;
  decltype(nccl_error)* error = nullptr;  ///< see backend_error()
};

constexpr std::array<Row, kBackends.size()> kRows = {{
    {kNccl, make_nccl, nullptr, nccl_error},
    {kGloo, make_gloo_backend, nullptr, gloo_error},
    {kMpi, make_mpi, check_mpi_launch},
    {kShm, make_shm},
}};

/// @return null for "auto", and for a name that no row has
const Row* find_row(std::string_view name) {
  const auto* const row = std::ranges::find(kRows, name, &Row::name);
  return row == kRows.end() ? nullptr : row;
}

}  // namespace

std::string resolve_backend(const std::string& name, const torch::Device& device) {
  if (name == "auto" && device.is_cuda()) {
    return kNccl;
  }
  const BackendTraits& traits = traits_of(name);
  if (device.is_cpu() ? !traits.on_cpu : !traits.on_cuda) {
    refuse("--backend {}: got device {}, expected {}", name, device.str(),
           device.is_cpu() ? "a CUDA device; use --backend shm or gloo"
                           : "the CPU; use --backend nccl");
  }
  return name;
}

void check_launch(const std::string& name, const LaunchEnvironment& environment) {
  if (const Row* const row = find_row(name); row != nullptr && row->check != nullptr) {
    row->check(environment);
  }
}

c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& name,
                                               const c10::intrusive_ptr<c10d::Store>& store,
                                               const BackendOptions& options) {
  if (name == "auto") {
    return make_cpu_backend(store, options);
  }
  const Row* const row = find_row(name);
  TORCH_CHECK(row != nullptr, "Expected backend auto, ", c10::Join(", ", backend_names()), ", got ",
              name);
  return row->make(store, options);
}

void attach_backend(c10d::ProcessGroup& group, const torch::Device& device,
                    const c10::intrusive_ptr<c10d::Backend>& backend) {
  const auto type = c10d::ProcessGroup::strToBackendType(traits_of(backend->getBackendName()).name);
  group.setBackend(device.type(), type, backend);
  group.setDefaultBackend(type);
  group.setGroupName("world");
}

std::optional<std::string> backend_error(const std::string& what,
                                         std::chrono::milliseconds timeout) {
  for (const Row& row : kRows) {
    if (const auto error = row.error == nullptr ? std::nullopt : row.error(what, timeout)) {
      return error;
    }
  }
  return std::nullopt;
}

}  // namespace ddp
