// common/backends/shm/shm_kernels_body.hpp - inside shm_kernels.cpp, once per instruction set:
// reductions and copies, line by line. See Note [Instruction sets].
//
// Lines are the compiler's own vector types: one register with AVX-512, two with AVX2, four with
// SSE2 or NEON. What is left at the ends of a buffer goes through the same code on a padded line,
// so that no element is ever computed in another way.

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

template <ReduceOp kOp, typename Vector>
DDP_SHM_INLINE void apply(Vector& a, const Vector& b) {
  if constexpr (kOp == ReduceOp::kProduct) {
    a = a * b;
  } else if constexpr (kOp == ReduceOp::kMin) {
    a = ((a != a) | (a < b)) ? a : b;  // a != a: NaN
  } else if constexpr (kOp == ReduceOp::kMax) {
    a = ((a != a) | (a > b)) ? a : b;
  } else {
    a = a + b;
  }
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
  template <ReduceOp kOp>
  DDP_SHM_INLINE void combine(Value& value, const Value& other) {
    apply<kOp>(value.v, other.v);
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
  template <ReduceOp kOp>
  DDP_SHM_INLINE void combine(Value& value, const Value& other) {
    apply<kOp>(value.low, other.low);
    apply<kOp>(value.high, other.high);
  }
  DDP_SHM_INLINE void divide(Value& value, size_t divisor) {
    value.low = value.low / static_cast<float>(divisor);
    value.high = value.high / static_cast<float>(divisor);
  }
};

template <typename Element, ReduceOp kOp>
DDP_SHM_INLINE void reduce_line_inline(const void* const* inputs, size_t input_count, size_t offset,
                                       Line& line) {
  typename Element::Value result;
  Element::load(result, static_cast<const char*>(inputs[0]) + offset);
  for (size_t i = 1; i < input_count; ++i) {
    typename Element::Value value;
    Element::load(value, static_cast<const char*>(inputs[i]) + offset);
    Element::template combine<kOp>(result, value);
  }
  if constexpr (kOp == ReduceOp::kAverage) {
    Element::divide(result, input_count);
  }
  Element::pack(result, line);
}

template <typename Element, ReduceOp kOp>
DDP_SHM_TARGET __attribute__((noinline)) void reduce_line(const void* const* inputs,
                                                          size_t input_count, size_t offset,
                                                          Line& line) {
  reduce_line_inline<Element, kOp>(inputs, input_count, offset, line);
}

/// Less than a line, at either end.
template <typename Element, ReduceOp kOp>
DDP_SHM_TARGET void reduce_rest(const Reduction& reduction, size_t offset, size_t bytes) {
  if (bytes == 0) {
    return;
  }
  Line padded[kMaxInputs];
  const void* inputs[kMaxInputs]{};
  for (size_t i = 0; i < reduction.inputs.size(); ++i) {
    padded[i] = Line{};
    inputs[i] = &padded[i];
    __builtin_memcpy(&padded[i], static_cast<const char*>(reduction.inputs[i]) + offset, bytes);
  }
  Line line;
  reduce_line<Element, kOp>(inputs, reduction.inputs.size(), 0, line);
  for (size_t i = 0; i < reduction.outputs.size(); ++i) {
    __builtin_memcpy(static_cast<char*>(reduction.outputs[i]) + offset, &line, bytes);
  }
  if (reduction.streamed_output != nullptr) {
    __builtin_memcpy(static_cast<char*>(reduction.streamed_output) + offset, &line, bytes);
  }
}

/// @tparam kInputs how many if that is known when compiling, else 0
/// @tparam kShared several outputs, which are other ranks' memory too
template <typename Element, ReduceOp kOp, size_t kInputs, bool kShared>
DDP_SHM_TARGET void reduce_lines(const Reduction& reduction, size_t begin, size_t end) {
  const size_t input_count = kInputs > 0 ? kInputs : reduction.inputs.size();
  const size_t output_count = !kShared ? 1 : kInputs > 0 ? kInputs : reduction.outputs.size();
  // Copies, because the compiler must assume that the stores below change the caller's.
  const void* inputs[kMaxInputs];
  char* outputs[kMaxInputs];
  for (size_t i = 0; i < input_count; ++i) {
    inputs[i] = reduction.inputs[i];
  }
  for (size_t i = 0; i < output_count; ++i) {
    outputs[i] = static_cast<char*>(reduction.outputs[i]);
  }
  char* const streamed_output = static_cast<char*>(reduction.streamed_output);
  for (size_t offset = begin; offset < end; offset += kLineBytes) {
    if constexpr (kShared) {
      // For writing: the line comes over once, instead of first to be read and then to be owned.
      for (size_t i = 0; i < output_count; ++i) {
        __builtin_prefetch(outputs[i] + offset + kPrefetchBytes, 1);
      }
    }
    Line line;
    // What gradients are summed with is inlined; the other 40 combinations take a call per line, or
    // the program would grow by a megabyte.
    if constexpr (kInputs > 0) {
      reduce_line_inline<Element, kOp>(inputs, kInputs, offset, line);
    } else {
      reduce_line<Element, kOp>(inputs, input_count, offset, line);
    }
    for (size_t i = 0; i < output_count; ++i) {
      __builtin_memcpy(outputs[i] + offset, &line, kLineBytes);
    }
    if (!kShared && streamed_output != nullptr) {
      write_past_caches(streamed_output + offset, line);
    }
  }
}

template <typename Element, ReduceOp kOp>
DDP_SHM_TARGET void reduce_elements(const Reduction& reduction) {
  const size_t bytes = reduction.count * Element::kElementBytes;
  const bool shared = reduction.outputs.size() > 1;
  size_t begin = 0;
  if (shared) {
    // Only whole lines are written to others' memory, where all begin at the same place in a line.
    const size_t in_line = reinterpret_cast<uintptr_t>(reduction.outputs[0]) % kLineBytes;
    begin = in_line == 0 ? 0 : kLineBytes - in_line;
    begin = begin < bytes ? begin : bytes;
    reduce_rest<Element, kOp>(reduction, 0, begin);
  }
  const size_t end = begin + (bytes - begin) / kLineBytes * kLineBytes;
  const bool two = reduction.inputs.size() == 2 && reduction.outputs.size() <= 2;
  if (Element::kFast && two) {
    constexpr size_t kTwo = Element::kFast ? 2 : 0;
    shared ? reduce_lines<Element, kOp, kTwo, true>(reduction, begin, end)
           : reduce_lines<Element, kOp, kTwo, false>(reduction, begin, end);
  } else {
    shared ? reduce_lines<Element, kOp, 0, true>(reduction, begin, end)
           : reduce_lines<Element, kOp, 0, false>(reduction, begin, end);
  }
  reduce_rest<Element, kOp>(reduction, end, bytes - end);
  order_writes_past_caches();
}

/// @tparam OrderedElement for minimum and maximum: sums and products wrap, which only unsigned
/// integers do by definition
template <typename Element, typename OrderedElement = Element>
void reduce_with(const Reduction& reduction) {
  switch (reduction.op) {
    case ReduceOp::kSum:
      return reduce_elements<Element, ReduceOp::kSum>(reduction);
    case ReduceOp::kAverage:
      return reduce_elements<Element, ReduceOp::kAverage>(reduction);
    case ReduceOp::kProduct:
      return reduce_elements<Element, ReduceOp::kProduct>(reduction);
    case ReduceOp::kMin:
      return reduce_elements<OrderedElement, ReduceOp::kMin>(reduction);
    case ReduceOp::kMax:
      return reduce_elements<OrderedElement, ReduceOp::kMax>(reduction);
  }
}

void reduce(const Reduction& reduction) {
  switch (reduction.dtype) {
    case DType::kFloat32:
      return reduce_with<Plain<float>>(reduction);
    case DType::kFloat64:
      return reduce_with<Plain<double>>(reduction);
    case DType::kFloat16:
      return reduce_with<Half<Float16Format>>(reduction);
    case DType::kBFloat16:
      return reduce_with<Half<BFloat16Format>>(reduction);
    case DType::kInt32:
      return reduce_with<Plain<uint32_t>, Plain<int32_t>>(reduction);
    case DType::kInt64:
      return reduce_with<Plain<uint64_t>, Plain<int64_t>>(reduction);
    case DType::kInt8:
      return reduce_with<Plain<uint8_t>, Plain<int8_t>>(reduction);
    case DType::kUint8:
      return reduce_with<Plain<uint8_t>>(reduction);
    case DType::kBool: {
      Reduction bytes = reduction;
      const bool any = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kMax;
      bytes.op = any ? ReduceOp::kMax : ReduceOp::kMin;
      return reduce_with<Plain<uint8_t>>(bytes);
    }
  }
}

DDP_SHM_TARGET void stream(void* to, const void* from, size_t bytes) {
  auto* const target = static_cast<char*>(to);
  const auto* const source = static_cast<const char*>(from);
  size_t offset = 0;
  for (; offset + kLineBytes <= bytes; offset += kLineBytes) {
    Line line;
    __builtin_memcpy(&line, source + offset, kLineBytes);
    write_past_caches(target + offset, line);
  }
  if (offset < bytes) {  // nothing may be at null
    __builtin_memcpy(target + offset, source + offset, bytes - offset);
  }
  order_writes_past_caches();
}

constexpr Kernels kKernels{DDP_SHM_NAME, reduce, stream};

}  // namespace ddp::shm::DDP_SHM_NAMESPACE

#undef DDP_SHM_INLINE
#undef DDP_SHM_LEVEL
#undef DDP_SHM_NAME
#undef DDP_SHM_NAMESPACE
#undef DDP_SHM_TARGET
