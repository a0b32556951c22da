#include "common/backends/shm/shm_kernels.hpp"

#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// The thread sanitizer sees no stores past the caches: there they are ordinary ones.
#if defined(__SANITIZE_THREAD__)
#define DDP_SHM_PLAIN_STORES
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DDP_SHM_PLAIN_STORES
#endif
#endif

// Note [Instruction sets]
// The same source is compiled once per instruction set, each in a namespace of its own and with the
// target as an attribute of every function. A source of its own with -mavx512f would do too, but
// then inline functions of the standard library, compiled with AVX-512, could be the copy that the
// linker keeps for the whole program.

#define DDP_SHM_LEVEL 0
#define DDP_SHM_NAMESPACE portable
#define DDP_SHM_TARGET
#include "common/backends/shm/shm_elements_body.hpp"
#include "common/backends/shm/shm_kernels_body.hpp"
#undef DDP_SHM_LEVEL
#undef DDP_SHM_NAMESPACE
#undef DDP_SHM_TARGET

#if defined(__x86_64__)
#define DDP_SHM_LEVEL 256
#define DDP_SHM_NAMESPACE avx2
#define DDP_SHM_TARGET __attribute__((target("avx2,f16c,prfchw")))
#include "common/backends/shm/shm_elements_body.hpp"
#include "common/backends/shm/shm_kernels_body.hpp"
#undef DDP_SHM_LEVEL
#undef DDP_SHM_NAMESPACE
#undef DDP_SHM_TARGET

#define DDP_SHM_LEVEL 512
#define DDP_SHM_NAMESPACE avx512
#define DDP_SHM_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prfchw")))
#include "common/backends/shm/shm_elements_body.hpp"
#include "common/backends/shm/shm_kernels_body.hpp"
#undef DDP_SHM_LEVEL
#undef DDP_SHM_NAMESPACE
#undef DDP_SHM_TARGET
#endif

namespace ddp::shm {

std::vector<const Kernels*> all_kernels() {
  std::vector<const Kernels*> usable{&portable::kKernels};
#if defined(__x86_64__)
  // These ask the operating system too, not only the processor.
  // Every processor with AVX2 has F16C, about which clang cannot ask.
  if (__builtin_cpu_supports("avx2")) {
    usable.push_back(&avx2::kKernels);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      usable.push_back(&avx512::kKernels);
    }
  }
#endif
  return usable;
}

const Kernels& kernels() {
  static const Kernels& best = *all_kernels().back();
  return best;
}

}  // namespace ddp::shm
