// bench/run/catalog.hpp - the models, programs and peers that bench knows by name.
#pragma once

#include <string>
#include <vector>

#include "bench/run/configuration.hpp"

namespace ddp::bench {

/// The program that everything is compared with.
inline constexpr const char* kBaseline = "01_single_gpu";
/// The only one whose ranks may be on several nodes.
inline constexpr const char* kMultinode = "05_multinode";

const std::vector<Workload>& known_workloads();
/// For people, with the batch; empty for a name that is not known.
std::string workload_description(const std::string& name);
const std::vector<StageProgram>& known_programs();

/// One way in which a peer can be set up.
struct PeerVariant {
  std::string peer;  ///< "pytorch"
  std::string variant;  ///< what --variant is given
  bool one_process;  ///< for world size 1, else for more
  bool cuda_only = false;
  bool built_here = false;  ///< a program beside the stages, for each of their backends
};

const std::vector<PeerVariant>& known_peers();

}  // namespace ddp::bench
