// common/base/pause.hpp - what a processor does between two looks at memory others write.
#pragma once

namespace ddp {

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace ddp
