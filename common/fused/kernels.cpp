#include "common/fused/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/instruction_set.hpp"

// Note [Tiles]
// A product is computed in tiles of c that stay in registers: 6 rows by up to 4 vectors. For each
// step in depth a tile reads 6 scalars of a, each multiplied with the same 4 vectors of b. So only
// b must be contiguous along its rows, and it is always an activation: (features, samples) or
// (samples, features). The weights are read where they lie, never packed or transposed, which is
// why this beats a general matrix product: with 32 or 64 samples it would copy as much as compute.

namespace ddp::fused {
namespace {

constexpr int64_t kDepthBlock = 192;

#define DDP_INLINE [[gnu::always_inline]] static inline

template <int kLanes, int kTileVectors>
struct Body {
  typedef float Float __attribute__((vector_size(4 * kLanes)));
  typedef int32_t Int __attribute__((vector_size(4 * kLanes)));
  // What may lie anywhere in an array of floats.
  typedef float Unaligned __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

  // Vectors are passed by reference: by value they need an instruction set's calling convention.
  DDP_INLINE void load(Float& to, const float* from) {
    to = *reinterpret_cast<const Unaligned*>(from);
  }
  DDP_INLINE void store(float* to, const Float& from) { *reinterpret_cast<Unaligned*>(to) = from; }

  /// Calls `visit(r, v)` for every vector of a tile. Unrolled, so that the tile stays in registers.
  template <int kRows, int kVectors, typename Visit>
  DDP_INLINE void for_tile(const Visit& visit) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        visit(r, v);
      }
    }
  }

  /// Adds the terms [from, from + kDepthBlock) of the sums, or what is left of them.
  template <int kRows, int kVectors>
  DDP_INLINE void tile(const Product& p, int64_t row, int64_t column, int64_t from, float* c,
                       int64_t c_row) {
    Float sum[size_t{kRows}][size_t{kVectors}];
    if (p.accumulate || from > 0) {
      for_tile<kRows, kVectors>([&](int r, int v) __attribute__((always_inline)) {
        load(sum[r][v], c + r * c_row + v * kLanes);
      });
    } else {
      for_tile<kRows, kVectors>([&](int r, int v) __attribute__((always_inline)) {
        sum[r][v] = Float{};
        if (p.bias != nullptr) {
          sum[r][v] += p.bias[row + r];
        }
      });
    }
    const float* a = p.a + row * p.a_row + from * p.a_depth;
    const float* b = p.b + column + from * p.b_row;
    const int64_t a_row = p.a_row;
    const int64_t a_depth = p.a_depth;
    const int64_t b_row = p.b_row;
    for (int64_t k = std::min(p.depth - from, kDepthBlock); k > 0; --k) {
      Float factor[size_t{kVectors}];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        load(factor[v], b + v * kLanes);
      }
      for_tile<kRows, kVectors>([&](int r, int v) __attribute__((always_inline)) {
        sum[r][v] += a[r * a_row] * factor[v];
      });
      a += a_depth;
      b += b_row;
    }
    if (p.after != After::kNothing && p.depth - from <= kDepthBlock) {
      // `<= 0`, not `> 0`: what is not a number must stay so.
      if (p.after == After::kRelu) {
        for_tile<kRows, kVectors>([&](int r, int v) __attribute__((always_inline)) {
          sum[r][v] = sum[r][v] <= Float{} ? Float{} : sum[r][v];
        });
      } else {
        const float* const activations = p.activations + row * p.c_row + column;
        for_tile<kRows, kVectors>([&](int r, int v) __attribute__((always_inline)) {
          Float activation;
          load(activation, activations + r * p.c_row + v * kLanes);
          sum[r][v] = activation <= Float{} ? Float{} : sum[r][v];
        });
      }
    }
    for_tile<kRows, kVectors>([&](int r, int v) __attribute__((always_inline)) {
      store(c + r * c_row + v * kLanes, sum[r][v]);
    });
    if (p.marks != nullptr && p.depth - from <= kDepthBlock) {
      Float mark;
      load(mark, p.marks);
      for_tile<kRows, kVectors>([&](int r, int v) __attribute__((always_inline)) {
        mark += sum[r][v] * Float{};  // an infinity times zero is not a number, either
      });
      store(p.marks, mark);
    }
  }

  /// In blocks of the depth: short sums that are added up have smaller rounding errors than one
  /// long sum.
  /// @tparam Set the set of functions below that this is compiled for
  template <typename Set, int kRows, int kVectors>
  DDP_INLINE void whole_depth(const Product& p, int64_t row, int64_t column, float* c,
                              int64_t c_row) {
    int64_t from = 0;
    do {
      Set::template run_tile<kRows, kVectors>(p, row, column, from, c, c_row);
      from += kDepthBlock;
    } while (from < p.depth);
  }

  /// As many tiles of kRows rows as [row, end) has. @return the first row that is left
  template <typename Set, int kRows, int kVectors>
  DDP_INLINE int64_t tiles_of(const Product& p, int64_t row, int64_t end, int64_t column) {
    for (; row + kRows <= end; row += kRows) {
      float* const c = p.c + row * p.c_row + column;
      if constexpr (kVectors > 0) {
        whole_depth<Set, kRows, kVectors>(p, row, column, c, p.c_row);
      } else {
        // The last columns, fewer than a vector: b has room for a whole one, c has not.
        const size_t bytes = static_cast<size_t>(p.columns - column) * sizeof(float);
        alignas(64) float part[size_t{kRows} * size_t{kLanes}]{};
        for (int r = 0; r < kRows; ++r) {
          std::memcpy(part + r * kLanes, c + r * p.c_row, bytes);
        }
        whole_depth<Set, kRows, 1>(p, row, column, part, kLanes);
        for (int r = 0; r < kRows; ++r) {
          std::memcpy(c + r * p.c_row, part + r * kLanes, bytes);
        }
      }
    }
    return row;
  }

  template <typename Set, int kVectors>
  DDP_INLINE void columns_of(const Product& p, int64_t begin, int64_t end, int64_t column) {
    const int64_t left = tiles_of<Set, kTileRows, kVectors>(p, begin, end, column);
    tiles_of<Set, 1, kVectors>(p, left, end, column);
  }

  /// The columns from `column` on: tiles as wide as kVectors while they fit, then narrower ones.
  template <typename Set, int kVectors = kTileVectors>
  DDP_INLINE void multiply(const Product& p, int64_t begin, int64_t end, int64_t column = 0) {
    if constexpr (kVectors > 0) {
      for (; column + kVectors * kLanes <= p.columns; column += kVectors * kLanes) {
        columns_of<Set, kVectors>(p, begin, end, column);
      }
      multiply<Set, kVectors - 1>(p, begin, end, column);
    } else if (column < p.columns) {
      columns_of<Set, 0>(p, begin, end, column);
    }
  }

  DDP_INLINE void transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns,
                            float* to, int64_t to_row) {
    using Four = Body<4, 1>;
    const int64_t whole_rows = rows / 4 * 4;
    const int64_t whole_columns = columns / 4 * 4;
    for (int64_t i = 0; i < whole_rows; i += 4) {
      for (int64_t j = 0; j < whole_columns; j += 4) {
        typename Four::Float in[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
          Four::load(in[k], from + (i + k) * from_row + j);
        }
        const auto low01 = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
        const auto low23 = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
        const auto high01 = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
        const auto high23 = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
        float* const out = to + j * to_row + i;
        Four::store(out, __builtin_shufflevector(low01, low23, 0, 1, 4, 5));
        Four::store(out + to_row, __builtin_shufflevector(low01, low23, 2, 3, 6, 7));
        Four::store(out + 2 * to_row, __builtin_shufflevector(high01, high23, 0, 1, 4, 5));
        Four::store(out + 3 * to_row, __builtin_shufflevector(high01, high23, 2, 3, 6, 7));
      }
    }
    // What is left: the last columns of all rows, if there are such, and the last rows.
    for (int64_t i = whole_columns < columns ? 0 : whole_rows; i < rows; ++i) {
      for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; ++j) {
        to[j * to_row + i] = from[i * from_row + j];
      }
    }
  }

  DDP_INLINE void sum_rows(const float* matrix, int64_t row, int64_t rows, int64_t columns,
                           float* sums, bool accumulate) {
    for (int64_t i = 0; i < rows; ++i) {
      Float total{};
      for (int64_t j = 0; j < columns; j += kLanes) {
        Float part;
        load(part, matrix + i * row + j);
        total += part;
      }
      float lanes[size_t{kLanes}];
      std::memcpy(lanes, &total, sizeof(lanes));
      for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int lane = 0; lane < width; ++lane) {
          lanes[lane] += lanes[lane + width];
        }
      }
      sums[i] = accumulate ? sums[i] + lanes[0] : lanes[0];
    }
  }

  /// e^x for x <= 0, to 2 units in the last place; below -87 not less than e^-87.
  DDP_INLINE void exponential(Float& x) {
    const Float lowest = Float{} - 87.0F;
    x = x < lowest ? lowest : x;  // NaN stays
    // x = n ln 2 + r: adding 1.5 * 2^23 rounds to an integer, which then is in the lowest bits.
    constexpr float kRound = 12582912.0F;
    const Float shifted = x * 1.44269504F + kRound;
    const Float n = shifted - kRound;
    const Float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
    Float y = r * 1.9875691500e-4F + 1.3981999507e-3F;
    y = y * r + 8.3334519073e-3F;
    y = y * r + 4.1665795894e-2F;
    y = y * r + 1.6666665459e-1F;
    y = y * r + 5.0000001201e-1F;
    y = y * (r * r) + r + 1.0F;
    Int exponent;
    std::memcpy(&exponent, &shifted, sizeof(exponent));
    exponent = (exponent + 127) << 23;  // what is above the lowest 9 bits is shifted out
    Float power;
    std::memcpy(&power, &exponent, sizeof(power));
    x = y * power;
  }

  DDP_INLINE double cross_entropy(const CrossEntropy& task) {
    alignas(64) float target_logits[kMaxColumns];
    alignas(64) float largest[kMaxColumns];
    alignas(64) float sums[kMaxColumns];
    for (int64_t i = 0; i < task.samples; ++i) {
      target_logits[i] = task.logits[task.targets[i] * task.logits_row + i];
    }
    for (int64_t column = 0; column < task.columns; column += kLanes) {
      float* const logits = task.logits + column;
      Float most;
      load(most, logits);
      for (int64_t c = 1; c < task.classes; ++c) {
        Float logit;
        load(logit, logits + c * task.logits_row);
        most = logit > most ? logit : most;
      }
      Float sum{};
      for (int64_t c = 0; c < task.classes; ++c) {
        Float power;
        load(power, logits + c * task.logits_row);
        power -= most;
        exponential(power);
        sum += power;
        store(logits + c * task.logits_row, power);
      }
      const Float factor = task.gradient_scale / sum;
      for (int64_t c = 0; c < task.classes; ++c) {
        Float power;
        load(power, logits + c * task.logits_row);
        store(logits + c * task.logits_row, power * factor);
      }
      store(largest + column, most);
      store(sums + column, sum);
    }
    double loss = 0;
    for (int64_t i = 0; i < task.samples; ++i) {
      task.logits[task.targets[i] * task.logits_row + i] -= task.gradient_scale;
      loss += static_cast<double>(std::log(sums[i]) + (largest[i] - target_logits[i]));
    }
    for (int64_t c = 0; c < task.classes && task.samples < task.columns; ++c) {
      std::fill(task.logits + c * task.logits_row + task.samples,
                task.logits + c * task.logits_row + task.columns, 0.0F);
    }
    return loss;
  }

  DDP_INLINE void update(const Update& task) {
    float* const __restrict__ w = task.weights;
    const float* const __restrict__ g = task.gradients;
    float* const __restrict__ m = task.first_moment;
    float* const __restrict__ v = task.second_moment;
    const Update t = task;
    switch (t.rule) {
      case Update::Rule::kSgd:
        for (int64_t i = 0; i < t.size; ++i) {
          w[i] -= t.rate * g[i];
        }
        break;
      case Update::Rule::kMomentum:
        for (int64_t i = 0; i < t.size; ++i) {
          m[i] = t.beta1 * m[i] + g[i];
          w[i] -= t.rate * m[i];
        }
        break;
      case Update::Rule::kAdam:
        for (int64_t i = 0; i < t.size; ++i) {
          m[i] += t.one_minus_beta1 * (g[i] - m[i]);
          v[i] = t.beta2 * v[i] + t.one_minus_beta2 * g[i] * g[i];
          w[i] = t.shrink * w[i] - t.rate * m[i] / (std::sqrt(v[i]) * t.correction2 + t.epsilon);
        }
        break;
    }
  }

  DDP_INLINE void add(float* __restrict__ sum, const float* __restrict__ term, int64_t size) {
    for (int64_t i = 0; i < size; ++i) {
      sum[i] += term[i];
    }
  }

  DDP_INLINE bool all_finite(const float* values, int64_t size) {
    constexpr int64_t kVectors = 4;  // sums that do not wait for each other
    Float marks[size_t{kVectors}]{};
    int64_t i = 0;
    for (; i + kVectors * kLanes <= size; i += kVectors * kLanes) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < kVectors; ++v) {
        Float value;
        load(value, values + i + v * kLanes);
        marks[v] += value * Float{};  // an infinity times zero is not a number, either
      }
    }
    const Float mark = (marks[0] + marks[1]) + (marks[2] + marks[3]);
    float lanes[size_t{kLanes}];
    std::memcpy(lanes, &mark, sizeof(lanes));
    bool finite = true;
    for (const float lane : lanes) {
      finite = finite && lane == 0;
    }
    for (; i < size; ++i) {
      finite = finite && values[i] * 0 == 0;
    }
    return finite;
  }
};

// One set of functions per instruction set, see Note [Instruction sets]: (name, target, lanes of a
// vector, vectors of a tile). A tile and the vectors it reads must fit the registers: 32 with
// AVX-512 and NEON, else 16. run_tile() is a function of its own: inlined, the loops' variables
// would be too many for the registers.
#define DDP_KERNELS(NAME, TARGET, LANES, VECTORS)                                                \
  struct NAME {                                                                                  \
    using B = Body<LANES, VECTORS>;                                                              \
    template <int kRows, int kVectors>                                                           \
    TARGET [[gnu::noinline]] static void run_tile(const Product& product, int64_t row,           \
                                                  int64_t column, int64_t from, float* c,        \
                                                  int64_t c_row) {                               \
      B::tile<kRows, kVectors>(product, row, column, from, c, c_row);                            \
    }                                                                                            \
    TARGET static void multiply(const Product& product, int64_t begin, int64_t end) {            \
      B::multiply<NAME>(product, begin, end);                                                    \
    }                                                                                            \
    TARGET static void transpose(const float* from, int64_t from_row, int64_t rows,              \
                                 int64_t columns, float* to, int64_t to_row) {                   \
      B::transpose(from, from_row, rows, columns, to, to_row);                                   \
    }                                                                                            \
    TARGET static void sum_rows(const float* matrix, int64_t row, int64_t rows, int64_t columns, \
                                float* sums, bool accumulate) {                                  \
      B::sum_rows(matrix, row, rows, columns, sums, accumulate);                                 \
    }                                                                                            \
    TARGET static double cross_entropy(const CrossEntropy& task) {                               \
      return B::cross_entropy(task);                                                             \
    }                                                                                            \
    TARGET static void update(const Update& task) { B::update(task); }                           \
    TARGET static void add(float* sum, const float* term, int64_t size) {                        \
      B::add(sum, term, size);                                                                   \
    }                                                                                            \
    TARGET static bool all_finite(const float* values, int64_t size) {                           \
      return B::all_finite(values, size);                                                        \
    }                                                                                            \
    static constexpr Kernels kKernels{#NAME,         multiply, transpose, sum_rows,              \
                                      cross_entropy, update,   add,       all_finite};           \
  };

#if defined(__x86_64__)
DDP_KERNELS(portable, , 4, 2)
DDP_KERNELS(avx2, [[gnu::target("avx2,fma")]], 8, 2)
DDP_KERNELS(avx512, [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma")]], 16, 4)
#else
DDP_KERNELS(portable, , 4, 4)
#endif

}  // namespace

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

}  // namespace ddp::fused
