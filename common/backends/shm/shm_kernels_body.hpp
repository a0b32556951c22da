// common/backends/shm/shm_kernels_body.hpp - inside shm_kernels.cpp, once per instruction set:
// reductions and copies, line by line. See Note [Instruction sets].
//
// What is left at the ends of a buffer goes through the same code on a padded line, so that no
// element is ever computed in another way.

namespace ddp::shm::DDP_SHM_NAMESPACE {

struct Add {
  template <typename V>
  DDP_SHM_INLINE void apply(V& a, const V& b) {
    a = a + b;
  }
};
struct Multiply {
  template <typename V>
  DDP_SHM_INLINE void apply(V& a, const V& b) {
    a = a * b;
  }
};
struct Minimum {
  template <typename V>
  DDP_SHM_INLINE void apply(V& a, const V& b) {
    a = ((a != a) | (a < b)) ? a : b;  // a != a: NaN
  }
};
struct Maximum {
  template <typename V>
  DDP_SHM_INLINE void apply(V& a, const V& b) {
    a = ((a != a) | (a > b)) ? a : b;
  }
};

template <typename Element, typename Op, bool kDivide>
DDP_SHM_INLINE void reduce_line_inline(const void* const* inputs, size_t input_count, size_t offset,
                                       Line& line) {
  typename Element::Value result;
  Element::load(result, static_cast<const char*>(inputs[0]) + offset);
  for (size_t i = 1; i < input_count; ++i) {
    typename Element::Value value;
    Element::load(value, static_cast<const char*>(inputs[i]) + offset);
    Element::template combine<Op>(result, value);
  }
  if constexpr (kDivide) {
    Element::divide(result, input_count);
  }
  Element::pack(result, line);
}

template <typename Element, typename Op, bool kDivide>
DDP_SHM_TARGET __attribute__((noinline)) void reduce_line(const void* const* inputs,
                                                          size_t input_count, size_t offset,
                                                          Line& line) {
  reduce_line_inline<Element, Op, kDivide>(inputs, input_count, offset, line);
}

/// Less than a line, at either end.
template <typename Element, typename Op, bool kDivide>
DDP_SHM_TARGET void reduce_rest(const Reduction& reduction, size_t offset, size_t bytes) {
  if (bytes == 0) {
    return;
  }
  Line padded[kMaxInputs];
  const void* inputs[kMaxInputs]{};
  for (size_t i = 0; i < reduction.input_count; ++i) {
    padded[i] = Line{};
    inputs[i] = &padded[i];
    __builtin_memcpy(&padded[i], static_cast<const char*>(reduction.inputs[i]) + offset, bytes);
  }
  Line line;
  reduce_line<Element, Op, kDivide>(inputs, reduction.input_count, 0, line);
  for (size_t i = 0; i < reduction.output_count; ++i) {
    __builtin_memcpy(static_cast<char*>(reduction.outputs[i]) + offset, &line, bytes);
  }
  if (reduction.streamed_output != nullptr) {
    __builtin_memcpy(static_cast<char*>(reduction.streamed_output) + offset, &line, bytes);
  }
}

/// @tparam kInputs how many if that is known when compiling, else 0
/// @tparam kShared several outputs, which are other ranks' memory too
template <typename Element, typename Op, bool kDivide, size_t kInputs, bool kShared>
DDP_SHM_TARGET void reduce_lines(const Reduction& reduction, size_t begin, size_t end) {
  const size_t input_count = kInputs > 0 ? kInputs : reduction.input_count;
  const size_t output_count = !kShared ? 1 : kInputs > 0 ? kInputs : reduction.output_count;
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
      reduce_line_inline<Element, Op, kDivide>(inputs, kInputs, offset, line);
    } else {
      reduce_line<Element, Op, kDivide>(inputs, input_count, offset, line);
    }
    for (size_t i = 0; i < output_count; ++i) {
      __builtin_memcpy(outputs[i] + offset, &line, kLineBytes);
    }
    if (!kShared && streamed_output != nullptr) {
      write_past_caches(streamed_output + offset, line);
    }
  }
}

template <typename Element, typename Op, bool kDivide>
DDP_SHM_TARGET void reduce_elements(const Reduction& reduction) {
  const size_t bytes = reduction.count * Element::kElementBytes;
  const bool shared = reduction.output_count > 1;
  size_t begin = 0;
  if (shared) {
    // Only whole lines are written to other ranks' memory, where all begin at the same place in a
    // line.
    const size_t in_line = reinterpret_cast<uintptr_t>(reduction.outputs[0]) % kLineBytes;
    begin = in_line == 0 ? 0 : kLineBytes - in_line;
    begin = begin < bytes ? begin : bytes;
    reduce_rest<Element, Op, kDivide>(reduction, 0, begin);
  }
  const size_t end = begin + (bytes - begin) / kLineBytes * kLineBytes;
  const bool two = reduction.input_count == 2 && reduction.output_count <= 2;
  if (Element::kFast && two) {
    constexpr size_t kTwo = Element::kFast ? 2 : 0;
    shared ? reduce_lines<Element, Op, kDivide, kTwo, true>(reduction, begin, end)
           : reduce_lines<Element, Op, kDivide, kTwo, false>(reduction, begin, end);
  } else {
    shared ? reduce_lines<Element, Op, kDivide, 0, true>(reduction, begin, end)
           : reduce_lines<Element, Op, kDivide, 0, false>(reduction, begin, end);
  }
  reduce_rest<Element, Op, kDivide>(reduction, end, bytes - end);
  order_writes_past_caches();
}

template <typename Element, typename OrderedElement>
void reduce_with(const Reduction& reduction) {
  switch (reduction.op) {
    case ReduceOp::kSum:
      return reduce_elements<Element, Add, false>(reduction);
    case ReduceOp::kAverage:
      return reduce_elements<Element, Add, true>(reduction);
    case ReduceOp::kProduct:
      return reduce_elements<Element, Multiply, false>(reduction);
    case ReduceOp::kMin:
      return reduce_elements<OrderedElement, Minimum, false>(reduction);
    case ReduceOp::kMax:
      return reduce_elements<OrderedElement, Maximum, false>(reduction);
  }
}

void reduce(const Reduction& reduction) {
  switch (reduction.dtype) {
    case DType::kFloat32:
      return reduce_with<Plain<float>, Plain<float>>(reduction);
    case DType::kFloat64:
      return reduce_with<Plain<double>, Plain<double>>(reduction);
    case DType::kFloat16:
      return reduce_with<Half<Float16Format>, Half<Float16Format>>(reduction);
    case DType::kBFloat16:
      return reduce_with<Half<BFloat16Format>, Half<BFloat16Format>>(reduction);
    // Sums and products wrap, which only unsigned integers do by definition.
    case DType::kInt32:
      return reduce_with<Plain<uint32_t>, Plain<int32_t>>(reduction);
    case DType::kInt64:
      return reduce_with<Plain<uint64_t>, Plain<int64_t>>(reduction);
    case DType::kInt8:
      return reduce_with<Plain<uint8_t>, Plain<int8_t>>(reduction);
    case DType::kUint8:
      return reduce_with<Plain<uint8_t>, Plain<uint8_t>>(reduction);
    case DType::kBool: {
      Reduction bytes = reduction;
      const bool any = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kMax;
      bytes.op = any ? ReduceOp::kMax : ReduceOp::kMin;
      return reduce_with<Plain<uint8_t>, Plain<uint8_t>>(bytes);
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
  __builtin_memcpy(target + offset, source + offset, bytes - offset);
  order_writes_past_caches();
}

#if DDP_SHM_LEVEL == 512
constexpr Kernels kKernels{"avx512", reduce, stream};
#elif DDP_SHM_LEVEL == 256
constexpr Kernels kKernels{"avx2", reduce, stream};
#else
constexpr Kernels kKernels{"portable", reduce, stream};
#endif

}  // namespace ddp::shm::DDP_SHM_NAMESPACE

#undef DDP_SHM_INLINE
