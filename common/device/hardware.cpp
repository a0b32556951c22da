#include "common/device/hardware.hpp"

#include <dlfcn.h>
#include <sched.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "common/base/files.hpp"
#include "common/base/parse.hpp"

/// Of mask_at_start.cpp, which only programs link.
extern "C" [[gnu::weak]] cpu_set_t ddp_mask_at_start[64];

namespace ddp {
namespace {

/// @param pid 0: this thread
int cores_of(pid_t pid) {
  std::array<cpu_set_t, 64> mask{};  // the kernel refuses a set that is too small
  sched_getaffinity(pid, sizeof(mask), mask.data());
  return std::max(1, CPU_COUNT_S(sizeof(mask), mask.data()));
}

int own_cores() {
  return &ddp_mask_at_start == nullptr ? cores_of(0)
                                       : CPU_COUNT_S(sizeof(ddp_mask_at_start), ddp_mask_at_start);
}

/// Cores of the ranks of this host together. The launcher may have bound this rank to a part: then
/// those of its process count, or the scheduler's variables alone. A script or a container's
/// starter between the launcher and the rank has the rank's variables and cores.
int cores_of_host(const LaunchEnvironment& environment) {
  const Launcher& launcher = launcher_of(environment);
  if (!launcher.binds_cores) {
    return find_allowance(own_cores()).cores;
  }
  int64_t pid = launcher.parent_has_all_cores ? getppid() : 0;
  while (pid > 0 && read_text(fmt::format("/proc/{}/environ", pid)).find(launcher.shows) !=
                        std::string::npos) {
    pid = number_after("PPid:", read_text(fmt::format("/proc/{}/status", pid)));
  }
  return find_allowance(pid > 0 ? cores_of(static_cast<pid_t>(pid)) : get_nprocs_conf()).cores;
}

}  // namespace

Allowance find_allowance(int cores, const std::string& root, const Variables& variables) {
  int64_t most_cores = cores;
  int64_t most_bytes = number_after("MemAvailable:", read_text(root + "/proc/meminfo")) << 10;
  const auto lower = [](int64_t& limit, int64_t to) {
    limit = to > 0 ? std::min(limit, to) : limit;
  };
  const auto apply_group = [&](const std::string& folder) {
    const auto text = [&folder](const char* file) { return read_text(folder + "/" + file); };
    // Files of version 2 and 1; "max" and -1 are no limit.
    std::istringstream cpu(text("cpu.max") + text("cpu.cfs_quota_us") + text("cpu.cfs_period_us"));
    std::istringstream memory(text("memory.max") + text("memory.current") +
                              text("memory.limit_in_bytes") + text("memory.usage_in_bytes"));
    int64_t most = 0;
    int64_t other = 0;
    if (cpu >> most >> other && most > 0) {
      lower(most_cores, std::max<int64_t>(most / other, 1));
    }
    if (memory >> most >> other) {
      const std::string stat = text("memory.stat");
      const int64_t cache =
          std::max(number_after("file", stat), number_after("total_cache", stat)) -
          std::max(number_after("shmem", stat), number_after("total_shmem", stat));
      lower(most_bytes, std::max<int64_t>(most - other + cache, 1));
    }
  };
  std::istringstream groups(read_text(root + "/proc/self/cgroup"));
  // "4:memory:/job/step" of version 1, "0::/job/step" of version 2
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> fields = split(line + "::", ':');
    const std::string mount = root + "/sys/fs/cgroup/" + fields[1];
    // In a container the group's path may be the host's: then only the mount has files.
    for (std::filesystem::path group = line.substr(std::min(line.find('/'), line.size()));
         group.has_relative_path(); group = group.parent_path()) {
      apply_group(mount + group.native());
    }
    apply_group(mount);
  }
  const SchedulerLimits limits = scheduler_limits(variables);
  for (const int64_t cores_given : limits.cores) {
    lower(most_cores, cores_given);
  }
  for (const int64_t mib : limits.memory_mib) {
    lower(most_bytes, mib << 20);
  }
  return {static_cast<int>(most_cores), most_bytes};
}

std::string instruction_sets() {
  const std::string text = read_text("/proc/cpuinfo");
  const size_t begin = text.find(": ", text.find("\nflags")) + 2;
  return text.substr(begin, text.find('\n', begin) - begin);
}

int count_cores() {
  return find_allowance(own_cores()).cores;
}

void leave_openmp_place() {
  if (&ddp_mask_at_start != nullptr) {
    sched_setaffinity(0, sizeof(ddp_mask_at_start), ddp_mask_at_start);
  }
}

int share_of_cores(int own, int of_host, int ranks) {
  return std::max(1, std::min(own, of_host / ranks));
}

int resolve_threads(const DeviceOptions& options, const LaunchEnvironment& environment) {
  if (options.threads != kAutomaticThreads) {
    return options.threads;
  }
  const int cores =
      share_of_cores(own_cores(), cores_of_host(environment), environment.local_world_size);
  // Stage 02's replicas compute side by side in this process.
  const int replicas = options.started_by == StartedBy::kUser ? options.nprocs.value_or(1) : 1;
  return std::max(1, cores / replicas);
}

std::string note_on_cores(const LaunchEnvironment& environment) {
  const int ranks = environment.local_world_size;
  if (ranks == 1 || environment.local_rank != 0 || get_nprocs_conf() == 1) {
    return "";
  }
  const int cores = cores_of_host(environment);
  // If a launcher binds nobody, OpenMP's library binds all to the first core.
  return cores > 1 && (cores_of(0) > 1 || own_cores() < cores)
             ? ""
             : fmt::format("{} ranks share one core of {}: see OMP_PROC_BIND, binding, limits",
                           ranks, get_nprocs_conf());
}

namespace {

/// @tparam Function type, copied from cuda.h so that a CPU build needs no toolkit; 0 is success
template <typename Function>
Function driver_function(const char* name) {
  // Never closed, because the driver has threads and exit handlers of its own.
  static void* const library =
      DDP_HAS_CUDA ? dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) : nullptr;
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

int count_cuda_devices() {
  static const int answer = [] {
    const auto initialise = driver_function<int (*)(unsigned flags)>("cuInit");
    const auto count = driver_function<int (*)(int* devices)>("cuDeviceGetCount");
    int devices = 0;
    const bool works =
        initialise != nullptr && count != nullptr && initialise(0) == 0 && count(&devices) == 0;
    return works ? devices : 0;
  }();
  return answer;
}

std::string cuda_device_uuid(int index) {
  if (index < 0 || index >= count_cuda_devices()) {
    return "";
  }
  const auto device_at = driver_function<int (*)(int* device, int index)>("cuDeviceGet");
  const auto uuid_of =
      driver_function<int (*)(unsigned char* uuid, int device)>("cuDeviceGetUuid_v2");
  int device = 0;
  std::array<unsigned char, 16> uuid{};
  if (device_at == nullptr || uuid_of == nullptr || device_at(&device, index) != 0 ||
      uuid_of(uuid.data(), device) != 0) {
    return "";
  }
  std::string text;
  for (size_t i = 0; i < uuid.size(); ++i) {
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
  }
  return text;
}

std::string why_no_cuda_device() {
  return DDP_HAS_CUDA ? "found no CUDA device, expected at least one"
                      : "this build has no CUDA support, expected one configured with DDP_CUDA=ON";
}

}  // namespace ddp
