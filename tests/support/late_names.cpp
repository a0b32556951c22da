// tests/support/late_names.cpp - preloaded: the host name $DDP_LATE_NAME is unknown to the first
// $DDP_LATE_TRIES of those who ask, and this host's from then on.
#include <dlfcn.h>
#include <netdb.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  static std::atomic<int> tries{0};
  using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  const auto original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const char* const late = std::getenv("DDP_LATE_NAME");
  if (late == nullptr || host == nullptr || std::strcmp(host, late) != 0) {
    return original(host, service, hints, found);
  }
  const int count = ++tries;
  if (count <= std::atoi(std::getenv("DDP_LATE_TRIES"))) {
    return count % 2 == 1 ? EAI_NONAME : EAI_AGAIN;
  }
  return original("127.0.0.1", service, hints, found);
}
