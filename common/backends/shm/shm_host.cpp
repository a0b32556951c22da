#include "common/backends/shm/shm_host.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <set>
#include <sstream>

#include "common/launch/cpu_share.hpp"

namespace ddp::shm {

HostIdentity read_host_identity() {
  HostIdentity identity;
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  identity.host_name = name.data();
  std::ifstream("/proc/sys/kernel/random/boot_id") >> identity.boot_id;
  struct stat status {};
  identity.shm_device = stat("/dev/shm", &status) == 0 ? status.st_dev : 0;
  identity.cpus = allowed_cores();
  identity.cpu_quota = cpu_quota();
  return identity;
}

std::string to_text(const HostIdentity& identity) {
  return fmt::format("{}\n{}\n{} {} {}", identity.host_name, identity.boot_id, identity.shm_device,
                     identity.cpu_quota, fmt::join(identity.cpus, " "));
}

HostIdentity host_identity_from(const std::string& text) {
  HostIdentity identity;
  std::istringstream fields(text);
  std::getline(fields, identity.host_name);
  std::getline(fields, identity.boot_id);
  std::string quota;
  fields >> identity.shm_device >> quota;
  identity.cpu_quota = std::stod(quota);  // "inf" too
  for (int cpu = 0; fields >> cpu;) {
    identity.cpus.push_back(cpu);
  }
  return identity;
}

std::string first_stranger(const std::vector<HostIdentity>& identities) {
  const HostIdentity& first = identities.at(0);
  for (size_t rank = 1; rank < identities.size(); ++rank) {
    const HostIdentity& other = identities[rank];
    const auto differs = [rank](const char* what, const auto& theirs, const auto& ours) {
      return fmt::format("rank {} has {} {}, rank 0 {}", rank, what, theirs, ours);
    };
    if (other.host_name != first.host_name) {
      return differs("host name", other.host_name, first.host_name);
    }
    if (other.boot_id != first.boot_id) {
      return differs("boot id", other.boot_id, first.boot_id);
    }
    if (other.shm_device != first.shm_device) {
      return differs("/dev/shm device", other.shm_device, first.shm_device);
    }
  }
  return "";
}

int count_cpus(const std::vector<HostIdentity>& identities) {
  std::set<int> all;
  double quota = std::numeric_limits<double>::infinity();
  for (const HostIdentity& identity : identities) {
    all.insert(identity.cpus.begin(), identity.cpus.end());
    quota = std::min(quota, identity.cpu_quota);
  }
  return count_processors({all.begin(), all.end()}, quota);
}

}  // namespace ddp::shm
