// common/base/instruction_set.hpp - which of the implementations of a kernel this processor runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <vector>

namespace ddp {

// Note [Instruction sets]
// The bodies of kernels are written once, with the compiler's portable vectors, and compiled once
// per instruction set, each in a namespace of its own and with the target as an attribute of every
// function; the processor decides at run time which is called. So one binary serves all, and
// nothing is compiled with -march=native. A source of its own with -mavx512f would do too, but then
// inline functions of the standard library, compiled with AVX-512, could be the copy that the
// linker keeps for the whole program.

/// How many of portable, AVX2 and AVX-512 this machine runs, from the first. The compiler's
/// questions are put to the operating system too, not only to the processor. Every processor with
/// AVX2 has F16C, about which clang cannot ask.
inline std::size_t instruction_set_count() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx512 ? 3 : 2;
  }
#endif
  return 1;
}

/// Those of `implementations` that this machine runs, the fastest last.
/// @param implementations portable and, where there are such, AVX2 and AVX-512
template <typename Kernels>
std::vector<const Kernels*> usable_kernels(std::initializer_list<const Kernels*> implementations) {
  const std::size_t count = std::min(instruction_set_count(), implementations.size());
  return {implementations.begin(), implementations.begin() + count};
}

}  // namespace ddp
