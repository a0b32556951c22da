// common/backends/shm/shm_elements_body.hpp - inside shm_kernels.cpp, once per instruction set:
// lines of 64 bytes, and what the elements in them are. See Note [Instruction sets].
//
// Lines are the compiler's own vector types: one register with AVX-512, two with AVX2, four with
// SSE2 or NEON.

#define DDP_SHM_INLINE DDP_SHM_TARGET __attribute__((always_inline)) static inline

namespace ddp::shm::DDP_SHM_NAMESPACE {

constexpr size_t kLineBytes = 64;
constexpr size_t kPrefetchBytes = 1024;
constexpr size_t kMaxInputs = kMaxRanks;

using Line [[gnu::vector_size(64)]] = uint8_t;
using Floats [[gnu::vector_size(64)]] = float;
using Words [[gnu::vector_size(64)]] = uint32_t;
using Halves [[gnu::vector_size(32)]] = uint16_t;

DDP_SHM_INLINE void write_past_caches(void* to, const Line& line) {
#if defined(DDP_SHM_PLAIN_STORES)
  __builtin_memcpy(to, &line, kLineBytes);
#elif DDP_SHM_LEVEL == 512
  _mm512_stream_si512(static_cast<__m512i*>(to), reinterpret_cast<__m512i>(line));
#elif DDP_SHM_LEVEL == 256
  __m256i parts[2];
  __builtin_memcpy(parts, &line, kLineBytes);
  for (int i = 0; i < 2; ++i) {
    _mm256_stream_si256(static_cast<__m256i*>(to) + i, parts[i]);
  }
#elif defined(__x86_64__)
  __m128i parts[4];
  __builtin_memcpy(parts, &line, kLineBytes);
  for (int i = 0; i < 4; ++i) {
    _mm_stream_si128(static_cast<__m128i*>(to) + i, parts[i]);
  }
#else
  __builtin_memcpy(to, &line, kLineBytes);
#endif
}

/// Such stores are ordered by nothing else, not even by the release store that follows.
DDP_SHM_INLINE void order_writes_past_caches() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

/// Elements that are computed with as they are.
template <typename T>
struct Plain {
  using Vector [[gnu::vector_size(64)]] = T;
  struct Value {
    Vector v;
  };
  static constexpr size_t kElementBytes = sizeof(T);
  static constexpr bool kFast = std::is_floating_point_v<T>;
  DDP_SHM_INLINE void load(Value& value, const void* from) {
    __builtin_memcpy(&value.v, from, kLineBytes);
  }
  DDP_SHM_INLINE void pack(const Value& value, Line& line) {
    __builtin_memcpy(&line, &value.v, kLineBytes);
  }
  template <typename Op>
  DDP_SHM_INLINE void combine(Value& value, const Value& other) {
    Op::apply(value.v, other.v);
  }
  DDP_SHM_INLINE void divide(Value& value, size_t divisor) {
    value.v = value.v / static_cast<T>(divisor);
  }
};

struct BFloat16Format {
  DDP_SHM_INLINE void widen(Floats& to, const Halves& from) {
    const Words bits = __builtin_convertvector(from, Words) << 16;
    __builtin_memcpy(&to, &bits, kLineBytes);
  }
  DDP_SHM_INLINE void narrow(Halves& to, const Floats& from) {
    Words bits;
    __builtin_memcpy(&bits, &from, kLineBytes);
    const Words rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const Words result = (bits & 0x7fffffffU) > 0x7f800000U ? Words{} + 0x7fc0U : rounded;
    to = __builtin_convertvector(result, Halves);
  }
};

struct Float16Format {
#if DDP_SHM_LEVEL >= 256
  DDP_SHM_INLINE void widen(Floats& to, const Halves& from) {
    __m128i parts[2];
    __builtin_memcpy(parts, &from, sizeof(parts));
    const __m256 wide[2] = {_mm256_cvtph_ps(parts[0]), _mm256_cvtph_ps(parts[1])};
    __builtin_memcpy(&to, wide, kLineBytes);
  }
  DDP_SHM_INLINE void narrow(Halves& to, const Floats& from) {
    __m256 wide[2];
    __builtin_memcpy(wide, &from, kLineBytes);
    const __m128i parts[2] = {
        _mm256_cvtps_ph(wide[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
        _mm256_cvtps_ph(wide[1], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
    __builtin_memcpy(&to, parts, sizeof(parts));
  }
#else
  // The bits are moved to where float32 has them; a float addition or multiplication with the right
  // power of two then does what the two formats' different exponents ask for, subnormals included.
  DDP_SHM_INLINE void widen(Floats& to, const Halves& from) {
    const Words half = __builtin_convertvector(from, Words);
    const Words exponent_and_mantissa = (half & 0x7fffU) << 13;
    Floats magnitude;
    __builtin_memcpy(&magnitude, &exponent_and_mantissa, kLineBytes);
    magnitude = magnitude * 0x1p112F;
    Words bits;
    __builtin_memcpy(&bits, &magnitude, kLineBytes);
    const Words special = exponent_and_mantissa | 0x7f800000U;
    const Words is_nan = (half & 0x7fffU) > 0x7c00U ? Words{} + 0x400000U : Words{};
    bits = (half & 0x7c00U) == 0x7c00U ? special | is_nan : bits;
    bits |= (half & 0x8000U) << 16;
    __builtin_memcpy(&to, &bits, kLineBytes);
  }
  DDP_SHM_INLINE void narrow(Halves& to, const Floats& from) {
    Words bits;
    __builtin_memcpy(&bits, &from, kLineBytes);
    const Words sign = (bits >> 16) & 0x8000U;
    const Words magnitude = bits & 0x7fffffffU;
    // Below half's smallest normal number: adding 0.5 leaves the result, rounded, in the low bits.
    Floats small;
    __builtin_memcpy(&small, &magnitude, kLineBytes);
    small = small + 0.5F;
    Words subnormal;
    __builtin_memcpy(&subnormal, &small, kLineBytes);
    subnormal -= 0x3f000000U;
    const Words normal = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    const Words nan = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
    Words result = magnitude < 0x38800000U ? subnormal : normal;
    result = magnitude >= 0x477ff000U ? Words{} + 0x7c00U : result;
    result = magnitude > 0x7f800000U ? nan : result;
    to = __builtin_convertvector(result | sign, Halves);
  }
#endif
};

/// Two bytes in memory, float32 while computing.
template <typename Format>
struct Half {
  struct Value {
    Floats low;
    Floats high;
  };
  static constexpr size_t kElementBytes = 2;
  static constexpr bool kFast = false;
  DDP_SHM_INLINE void load(Value& value, const void* from) {
    Halves parts[2];
    __builtin_memcpy(parts, from, kLineBytes);
    Format::widen(value.low, parts[0]);
    Format::widen(value.high, parts[1]);
  }
  DDP_SHM_INLINE void pack(const Value& value, Line& line) {
    Halves parts[2];
    Format::narrow(parts[0], value.low);
    Format::narrow(parts[1], value.high);
    __builtin_memcpy(&line, parts, kLineBytes);
  }
  template <typename Op>
  DDP_SHM_INLINE void combine(Value& value, const Value& other) {
    Op::apply(value.low, other.low);
    Op::apply(value.high, other.high);
  }
  DDP_SHM_INLINE void divide(Value& value, size_t divisor) {
    value.low = value.low / static_cast<float>(divisor);
    value.high = value.high / static_cast<float>(divisor);
  }
};

}  // namespace ddp::shm::DDP_SHM_NAMESPACE
