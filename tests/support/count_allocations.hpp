// tests/support/count_allocations.hpp - counts allocations on the heap: it replaces malloc and
// related functions, so one source of a program includes it.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace {

std::atomic<uint64_t> requests{0};

void count() {
  requests.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

namespace ddp::test {

/// Number of heap allocations so far, by all threads and libraries of this program: malloc and
/// related functions, which operator new calls too.
inline uint64_t allocations() {
  return requests.load(std::memory_order_relaxed);
}

}  // namespace ddp::test

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

// Declared in <sanitizer/allocator_interface.h>, which g++ does not have.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*,
                                                                             size_t),
                                                         void (*free_hook)(const volatile void*));

namespace {

// A sanitizer has replaced malloc already, and counts.
const int installed = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, size_t) { count(); }, [](const volatile void*) {});

}  // namespace

#else

// The C library's own functions, by the names that stay when the usual names are replaced.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* pointer, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) noexcept {
  count();
  return __libc_malloc(size);
}
void* calloc(size_t items, size_t size) noexcept {
  count();
  return __libc_calloc(items, size);
}
void* realloc(void* pointer, size_t size) noexcept {
  count();
  return __libc_realloc(pointer, size);
}
void* aligned_alloc(size_t alignment, size_t size) noexcept {
  count();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** pointer, size_t alignment, size_t size) noexcept {
  count();
  *pointer = __libc_memalign(alignment, size);
  return *pointer == nullptr ? ENOMEM : 0;
}
}

#endif
