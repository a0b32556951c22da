#include "common/backends/shm/shm_host.hpp"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <set>
#include <sstream>

namespace ddp::shm {
namespace {

/// A word, whatever it was: the text that ranks exchange is split at blanks.
std::string word(std::string text) {
  for (char& c : text) {
    c = c <= ' ' ? '?' : c;
  }
  return text.empty() ? "?" : text;
}

std::vector<int> usable_cpus() {
  std::vector<int> cpus;
  // Larger than cpu_set_t, which ends at 1024.
  constexpr size_t kMaxCpus = 8192;
  cpu_set_t* const set = CPU_ALLOC(kMaxCpus);
  const size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  if (set != nullptr && sched_getaffinity(0, bytes, set) == 0) {
    for (size_t cpu = 0; cpu < kMaxCpus; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set)) {
        cpus.push_back(static_cast<int>(cpu));
      }
    }
  }
  CPU_FREE(set);
  return cpus;
}

}  // namespace

HostIdentity read_host_identity() {
  HostIdentity identity;
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  identity.host_name = word(name.data());
  std::ifstream("/proc/sys/kernel/random/boot_id") >> identity.boot_id;
  identity.boot_id = word(identity.boot_id);
  struct stat status {};
  identity.shm_device = stat("/dev/shm", &status) == 0 ? status.st_dev : 0;
  identity.cpus = usable_cpus();
  return identity;
}

std::string to_text(const HostIdentity& identity) {
  std::ostringstream text;
  text << identity.host_name << ' ' << identity.boot_id << ' ' << identity.shm_device;
  for (const int cpu : identity.cpus) {
    text << ' ' << cpu;
  }
  return text.str();
}

HostIdentity host_identity_from(const std::string& text) {
  HostIdentity identity;
  std::istringstream fields(text);
  fields >> identity.host_name >> identity.boot_id >> identity.shm_device;
  for (int cpu = 0; fields >> cpu;) {
    identity.cpus.push_back(cpu);
  }
  return identity;
}

std::string first_stranger(const std::vector<HostIdentity>& identities) {
  const HostIdentity& first = identities.at(0);
  for (size_t rank = 1; rank < identities.size(); ++rank) {
    const HostIdentity& other = identities[rank];
    const auto differs = [&](const std::string& what, const std::string& theirs,
                             const std::string& ours) {
      return "rank " + std::to_string(rank) + " has " + what + " " + theirs + ", rank 0 " + ours;
    };
    if (other.host_name != first.host_name) {
      return differs("host name", other.host_name, first.host_name);
    }
    if (other.boot_id != first.boot_id) {
      return differs("boot id", other.boot_id, first.boot_id);
    }
    if (other.shm_device != first.shm_device) {
      return differs("/dev/shm device", std::to_string(other.shm_device),
                     std::to_string(first.shm_device));
    }
  }
  return "";
}

int count_cpus(const std::vector<HostIdentity>& identities) {
  std::set<int> all;
  for (const HostIdentity& identity : identities) {
    all.insert(identity.cpus.begin(), identity.cpus.end());
  }
  return static_cast<int>(all.size());
}

}  // namespace ddp::shm
