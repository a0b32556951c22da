// bench/backends.hpp - what bench knows of backends, a row each. Nobody else asks for their names.
#pragma once

#include <algorithm>
#include <iterator>
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
inline const std::vector<Backend>& backends() {
  static const std::vector<Backend> rows = {
      {.name = kShm, .spans_nodes = false},
      {.name = kGloo},
      {.name = "mpi", .needs_mpi = true},
      {.name = "nccl", .is_on_gpus = true},
  };
  return rows;
}

inline std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  std::ranges::transform(backends(), std::back_inserter(names), &Backend::name);
  return names;
}

inline bool needs_mpi(const std::string& name) {
  return std::ranges::any_of(backends(),
                             [&](const Backend& row) { return row.name == name && row.needs_mpi; });
}

inline std::string default_backend(bool on_gpus, int nodes) {
  return std::ranges::find_if(backends(),
                              [&](const Backend& row) {
                                return row.is_on_gpus == on_gpus && (nodes == 1 || row.spans_nodes);
                              })
      ->name;
}

}  // namespace ddp::bench
