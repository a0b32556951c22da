// tests/support/no_thread.cpp - preloaded into a program: its n-th thread, and all after it, cannot
// be started, as where a limit on processes is reached.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include <atomic>

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*body)(void*), void* argument) noexcept {
  static std::atomic<int> calls{0};
  static auto* const original =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  const char* const from = getenv("DDP_NO_THREAD_FROM");
  if (from != nullptr && ++calls >= atoi(from)) {
    return EAGAIN;
  }
  return original(thread, attributes, body, argument);
}
