#include "common/backends/shm/shm_kernels.hpp"

#include <type_traits>

#include "common/base/instruction_set.hpp"

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

// The same source once per instruction set: see Note [Instruction sets].

#define DDP_SHM_LEVEL 0
#define DDP_SHM_NAME "portable"
#define DDP_SHM_NAMESPACE portable
#define DDP_SHM_TARGET
#include "common/backends/shm/shm_kernels_body.hpp"

#if defined(__x86_64__)
#define DDP_SHM_LEVEL 256
#define DDP_SHM_NAME "avx2"
#define DDP_SHM_NAMESPACE avx2
#define DDP_SHM_TARGET __attribute__((target("avx2,f16c,prfchw")))
#include "common/backends/shm/shm_kernels_body.hpp"

#define DDP_SHM_LEVEL 512
#define DDP_SHM_NAME "avx512"
#define DDP_SHM_NAMESPACE avx512
#define DDP_SHM_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prfchw")))
#include "common/backends/shm/shm_kernels_body.hpp"
#endif

namespace ddp::shm {

std::vector<const Kernels*> all_kernels() {
#if defined(__x86_64__)
  return usable_kernels({&portable::kKernels, &avx2::kKernels, &avx512::kKernels});
#else
  return usable_kernels({&portable::kKernels});
#endif
}

const Kernels& kernels() {
  static const Kernels& best = *all_kernels().back();
  return best;
}

}  // namespace ddp::shm
