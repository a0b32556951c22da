// bench/backends.hpp - what bench knows of backends, a row each. Nobody else asks for their names.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace ddp::bench {

struct Backend {
  std::string name;
  bool is_on_gpus = false;
  bool spans_nodes = true;
  bool needs_mpi = false;  ///< only under a launcher that starts MPI's world
};

inline constexpr const char* kGloo = "gloo";  ///< over which frameworks train on CPUs
inline constexpr const char* kShm = "shm";

/// The first that fits is the default.
inline const std::vector<Backend> kBackends = {
    {.name = kShm, .spans_nodes = false},
    {.name = kGloo},
    {.name = "mpi", .needs_mpi = true},
    {.name = "nccl", .is_on_gpus = true},
};

inline bool needs_mpi(const std::string& name) {
  const auto row = std::ranges::find(kBackends, name, &Backend::name);
  return row != kBackends.end() && row->needs_mpi;
}

inline std::string default_backend(bool on_gpus, int nodes) {
  return std::ranges::find_if(kBackends,
                              [&](const Backend& row) {
                                return row.is_on_gpus == on_gpus && (nodes == 1 || row.spans_nodes);
                              })
      ->name;
}

}  // namespace ddp::bench
