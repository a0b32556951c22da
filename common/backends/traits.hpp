// common/backends/traits.hpp - the backends and what sets them apart, also without LibTorch.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace ddp {

inline constexpr const char* kNccl = "nccl";
inline constexpr const char* kGloo = "gloo";
inline constexpr const char* kMpi = "mpi";
inline constexpr const char* kShm = "shm";

/// Backend that "auto" becomes, if one host's memory can be shared.
constexpr const char* automatic_backend(bool on_cuda, bool on_one_host) {
  return on_cuda ? kNccl : on_one_host ? kShm : kGloo;
}

/// Properties of a backend, so that no other code compares names. A new backend needs a row here
/// and a row with its functions in registry.cpp.
struct BackendTraits {
  const char* name = "";  ///< value of --backend
  bool on_cpu = true;  ///< takes ranks on the CPU
  bool on_cuda = true;
  bool has_average = true;  ///< ReduceOp AVG; else callers divide before the sum
  /// AVG sums in the order of the ranks and then divides, so gradients use it. NCCL's AVG scales
  /// before it sums, which changes bits and prevents sums in NVSwitch.
  bool divides = false;
  bool has_all_to_all = false;
  bool has_subgroups = true;
  bool has_watchdog = false;  ///< a thread of its own ends the process after a timeout
  bool waits_in_slices = false;  ///< see wait_over_gloo()
  bool needs_mpirun = false;  ///< joins no processes that another launcher started
  int64_t piece_bytes = INT64_MAX;  ///< of a broadcast: each piece has --timeout
};

/// In the order of --help.
inline constexpr std::array kBackends = {
    BackendTraits{.name = kNccl, .on_cpu = false, .has_all_to_all = true, .has_watchdog = true},
    BackendTraits{.name = kGloo,
                  .has_average = false,
                  .has_all_to_all = true,
                  .waits_in_slices = true,
                  .piece_bytes = 4 << 20},
    BackendTraits{.name = kMpi, .has_subgroups = false, .needs_mpirun = true},
    BackendTraits{.name = kShm, .on_cuda = false, .divides = true},
};

/// Values of --backend beside "auto".
inline std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  std::ranges::transform(kBackends, std::back_inserter(names), &BackendTraits::name);
  return names;
}

/// @param name of a backend, or of c10d's class for it, which LibTorch 2.15 calls "nccl2"
/// @return the defaults for an unknown one
inline const BackendTraits& traits_of(std::string_view name) {
  static constexpr BackendTraits kUnknown;
  const auto found =
      std::ranges::find(kBackends, name == "nccl2" ? kNccl : name, &BackendTraits::name);
  return found == kBackends.end() ? kUnknown : *found;
}

}  // namespace ddp
