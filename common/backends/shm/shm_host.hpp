// common/backends/shm/shm_host.hpp - which host a rank is on.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace ddp::shm {

/// What two ranks must agree in to share memory. The name alone is not enough: two hosts may be
/// called localhost, and two containers of one host see different files.
struct HostIdentity {
  std::string host_name;
  std::string boot_id;
  uint64_t shm_device = 0;  ///< device number of /dev/shm; 0 if there is none
  std::vector<int> cpus;  ///< those that this rank may run on; no part of the comparison
  double cpu_quota = std::numeric_limits<double>::infinity();  ///< of its container, likewise
};

HostIdentity read_host_identity();

/// For the other ranks to read.
std::string to_text(const HostIdentity& identity);
HostIdentity host_identity_from(const std::string& text);

/// @return empty if all ranks are on one host, else which rank differs from rank 0 and in what
std::string first_stranger(const std::vector<HostIdentity>& identities);

/// How many processors the ranks have between them. A quota is one container's, which all are in.
int count_cpus(const std::vector<HostIdentity>& identities);

}  // namespace ddp::shm
