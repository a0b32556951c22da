// common/device/hardware.hpp - the cores, the memory and the GPUs that this process may use.
#pragma once

#include "common/meet/launchers.hpp"

namespace ddp {

/// Who starts the processes of a training. Options and the default world depend on it.
enum class StartedBy {
  kUser,  ///< stages 01 and 02: one process for all devices
  kProgram,  ///< stage 03: the program starts one process per device itself
  kLauncher,  ///< stages 04 and 05: torchrun, mpirun, srun or HTCondor
};

inline constexpr int kAutomaticThreads = 0;  ///< `--threads auto`, until resolve_threads()
inline constexpr int kMaxNprocs = 1024;  ///< for --nprocs
inline const std::vector<std::string> kDevices = {"auto", "cpu", "cuda"};  ///< for --device

/// Devices and threads that the user asked for.
struct DeviceOptions {
  std::string program;  ///< base name of the executable, "01_single_gpu"
  StartedBy started_by = StartedBy::kUser;
  std::string device = "auto";  ///< one of kDevices
  std::vector<int> devices = {};  ///< CUDA device indices to use; empty: all
  std::optional<int> nprocs = {};  ///< stages 02 and 03: replicas or processes
  int threads = 1;  ///< compute threads of each rank, in stage 02 of each replica
  bool deterministic = false;
  bool graph = false;  ///< 03_ddp_spawn_fused: --graph
};

/// What all ranks of this host may use together.
struct Allowance {
  int cores = 0;
  int64_t memory_bytes = 0;  ///< free, or cached and so easily freed
};

/// The smallest of `cores` and of the limits of the machine, of the control groups of this process
/// (versions 1 and 2, parents too) and of its scheduler's variables that are numbers.
/// @param root folder that holds proc/ and sys/; tests make one up
Allowance find_allowance(int cores, const std::string& root = "",
                         const Variables& variables = process_variables());

/// Number of cores that this process may use: of its mask at its start, and allowed.
int count_cores();

/// The processor's instruction sets as the kernel names them, between blanks: "fpu vme de ...".
std::string instruction_sets();

/// Lets this thread, and threads and processes that it starts, run on all cores that this process
/// was given, although OpenMP's library has bound the first thread to one of them.
void leave_openmp_place();

/// Cores for each of `ranks` ranks of a host. @param own cores of the rank's mask, which is
/// narrower than the host's if its launcher has bound it @return at least 1
int share_of_cores(int own, int of_host, int ranks);

/// Threads of each rank, or of each replica in stage 02: --threads; auto is the share of cores.
int resolve_threads(const DeviceOptions& options, const LaunchEnvironment& environment);

/// Note for a launcher's ranks that share a single core of several; else empty.
std::string note_on_cores(const LaunchEnvironment& environment);

/// CUDA devices that CUDA_VISIBLE_DEVICES leaves visible; 0 without a driver, or in a CPU build.
int count_cuda_devices();

/// UUID, as nvidia-smi -L prints it after "GPU-": "8932f937-d72c-4106-c12f-20bd9faed9f6", of the
/// visible device at `index` in CUDA's order. Empty if the driver does not tell.
std::string cuda_device_uuid(int index);

/// Message for a user who wants a CUDA device on a machine without CUDA devices.
std::string why_no_cuda_device();

}  // namespace ddp
