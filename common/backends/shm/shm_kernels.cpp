// Reductions and copies, by cache lines, and by elements at the ends of a buffer.
#include "common/backends/shm/shm_kernels.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

// Note [Instruction sets]: the compiler makes a copy of a kernel for each of these instruction
// sets, and the start of the program picks a copy by the processor. Functions that a kernel calls
// must be inlined to be part of the copy. Not for Clang 14, which does not know these levels, nor
// for the thread sanitizer, which is not ready when the copy is picked and does not see stores past
// the caches.
#if !defined(__x86_64__) || defined(__clang__) || defined(__SANITIZE_THREAD__)
#define DDP_KERNEL
#else
#define DDP_KERNEL [[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#endif
#define DDP_INLINE [[gnu::always_inline]] inline

namespace ddp::shm {
namespace {

constexpr size_t kPrefetchBytes = 1024;

/// Cache line of T: one register with AVX-512, two with AVX2, four with SSE2 or NEON.
template <typename T>
using CacheLine [[gnu::vector_size(kLineBytes)]] = T;

/// Fetches a line for writing: one transfer, instead of one for reading and one for ownership.
DDP_INLINE void prefetch_to_write(const char* address) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*address));  // does nothing on processors without it
#else
  __builtin_prefetch(address, 1);
#endif
}

template <typename Unit>
DDP_INLINE void write_past_caches(void* to, const Unit& line) {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  __m128i parts[4];
  std::memcpy(parts, &line, kLineBytes);
  for (int i = 0; i < 4; ++i) {
    _mm_stream_si128(static_cast<__m128i*>(to) + i, parts[i]);
  }
#else
  std::memcpy(to, &line, kLineBytes);
#endif
}

/// Orders stores past the caches, because the release store that follows does not.
DDP_INLINE void order_writes_past_caches() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

/// @tparam Unit T, or a cache line of T
template <typename Unit, typename T, ReduceOp kOp>
DDP_INLINE void reduce_unit(const Reduction& places, size_t input_count, size_t output_count,
                            size_t offset) {
  Unit result;
  std::memcpy(&result, static_cast<const char*>(places.inputs[0]) + offset, sizeof(Unit));
  for (size_t i = 1; i < input_count; ++i) {
    Unit other;
    std::memcpy(&other, static_cast<const char*>(places.inputs[i]) + offset, sizeof(Unit));
    if constexpr (kOp == ReduceOp::kMax) {
      result = ((other > result) | (other != other)) ? other : result;
    } else if constexpr (kOp == ReduceOp::kMin) {
      result = ((other < result) | (other != other)) ? other : result;
    } else {
      result = result + other;
    }
  }
  if constexpr (kOp == ReduceOp::kAverage) {
    result = result / static_cast<T>(input_count);
  }
  for (size_t i = 0; i < output_count; ++i) {
    std::memcpy(static_cast<char*>(places.outputs[i]) + offset, &result, sizeof(Unit));
  }
  char* const streamed_output = static_cast<char*>(places.streamed_output);
  if (streamed_output != nullptr && sizeof(Unit) == kLineBytes) {
    write_past_caches(streamed_output + offset, result);
  } else if (streamed_output != nullptr) {
    std::memcpy(streamed_output + offset, &result, sizeof(Unit));
  }
}

template <typename T, ReduceOp kOp>
DDP_INLINE void reduce_units(const Reduction& reduction, size_t input_count, size_t output_count) {
  // A copy, because for the compiler the stores may change the caller's object.
  Reduction places(reduction.dtype, reduction.op, reduction.count, input_count, output_count);
  std::copy_n(reduction.inputs.begin(), input_count, places.inputs.begin());
  std::copy_n(reduction.outputs.begin(), output_count, places.outputs.begin());
  places.streamed_output = reduction.streamed_output;
  const size_t bytes = places.count * sizeof(T);
  size_t begin = 0;
  if (output_count > 1) {
    // Writes only whole lines to other ranks' memory, where all begin at the same place in a line.
    const size_t in_line = reinterpret_cast<uintptr_t>(places.outputs[0]) % kLineBytes;
    begin = std::min(in_line == 0 ? 0 : kLineBytes - in_line, bytes);
  }
  size_t offset = 0;
  for (; offset < begin; offset += sizeof(T)) {
    reduce_unit<T, T, kOp>(places, input_count, output_count, offset);
  }
  for (; offset + kLineBytes <= bytes; offset += kLineBytes) {
    for (size_t i = 0; output_count > 1 && i < output_count; ++i) {
      prefetch_to_write(static_cast<char*>(places.outputs[i]) + offset + kPrefetchBytes);
    }
    reduce_unit<CacheLine<T>, T, kOp>(places, input_count, output_count, offset);
  }
  for (; offset < bytes; offset += sizeof(T)) {
    reduce_unit<T, T, kOp>(places, input_count, output_count, offset);
  }
  order_writes_past_caches();
}

/// Optimised for two ranks, the most frequent case.
template <typename T, ReduceOp kOp>
DDP_INLINE void reduce_elements(const Reduction& reduction) {
  if (reduction.input_count == 2 && reduction.output_count == 2) {
    reduce_units<T, kOp>(reduction, 2, 2);
  } else if (reduction.input_count == 2 && reduction.output_count == 1) {
    reduce_units<T, kOp>(reduction, 2, 1);
  } else {
    reduce_units<T, kOp>(reduction, reduction.input_count, reduction.output_count);
  }
}

/// @tparam Sum type of the sum: wraps where T must not
template <typename T, typename Sum = T>
DDP_INLINE void reduce_by(const Reduction& reduction) {
  if (reduction.op == ReduceOp::kSum) {
    reduce_elements<Sum, ReduceOp::kSum>(reduction);
  } else if (reduction.op == ReduceOp::kMax) {
    reduce_elements<T, ReduceOp::kMax>(reduction);
  } else if (reduction.op == ReduceOp::kMin) {
    reduce_elements<T, ReduceOp::kMin>(reduction);
  } else if constexpr (std::is_floating_point_v<T>) {
    reduce_elements<T, ReduceOp::kAverage>(reduction);
  }
}

}  // namespace

DDP_KERNEL void reduce(const Reduction& reduction) {
  if (reduction.dtype == DType::kFloat32) {
    reduce_by<float>(reduction);
  } else if (reduction.dtype == DType::kFloat64) {
    reduce_by<double>(reduction);
  } else {
    reduce_by<int64_t, uint64_t>(reduction);  // unsigned, which wraps by definition
  }
}

DDP_KERNEL void stream(void* to, const void* from, size_t bytes) {
  auto* const target = static_cast<char*>(to);
  const auto* const source = static_cast<const char*>(from);
  size_t offset = 0;
  for (; offset + kLineBytes <= bytes; offset += kLineBytes) {
    CacheLine<char> line;
    std::memcpy(&line, source + offset, kLineBytes);
    write_past_caches(target + offset, line);
  }
  if (offset < bytes) {  // `from` may be null if there are no bytes
    std::memcpy(target + offset, source + offset, bytes - offset);
  }
  order_writes_past_caches();
}

}  // namespace ddp::shm
