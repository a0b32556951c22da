#include "common/fused/kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

// Note [Tiles]
// A product is computed in tiles of c that stay in registers: 6 rows by up to 4 vectors. For each
// step in depth a tile multiplies 6 scalars of a with the same 4 vectors of b. So only b must be
// contiguous along its rows, and b is always an activation. The weights are read where they lie.
// A general matrix product packs them first, which for 32 or 64 samples costs as much again.

namespace ddp::fused {
namespace {

/// Terms added before the next tile begins: data that two tiles read is still in the cache.
constexpr int64_t kDepth = 256;

#define DDP_INLINE [[gnu::always_inline]] static inline

template <int kLanes, int kTileVectors>
struct Body {
  typedef float Float __attribute__((vector_size(4 * kLanes)));
  // Vector at any position in an array of floats.
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

  /// Adds the terms of the depths [from, from + kDepth) to a tile of c, which starts at the bias.
  template <int kRows, int kVectors>
  DDP_INLINE void tile(const Product& p, int64_t row, int64_t column, int64_t from, float* c,
                       int64_t c_row) {
    Float sum[size_t{kRows}][size_t{kVectors}];
    if (from > 0) {
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
    const int64_t a_row = p.a.row;
    const int64_t a_depth = p.a.column;
    const float* a = p.a.data + row * a_row + from * a_depth;
    const float* b = p.b.data + column + from * p.b.row;
    const int64_t b_row = p.b.row;
    for (int64_t k = std::min(p.depth - from, kDepth); k > 0; --k) {
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
    const bool is_last = p.depth - from <= kDepth;
    // `<= 0`, not `> 0`: NaN must stay NaN.
    if (p.relu && is_last) {
      for_tile<kRows, kVectors>([&](int r, int v) __attribute__((always_inline)) {
        sum[r][v] = sum[r][v] <= Float{} ? Float{} : sum[r][v];
      });
    } else if (p.activations != nullptr && is_last) {
      const float* const activations = p.activations + row * p.c.row + column;
      for_tile<kRows, kVectors>([&](int r, int v) __attribute__((always_inline)) {
        Float activation;
        load(activation, activations + r * p.c.row + v * kLanes);
        sum[r][v] = activation <= Float{} ? Float{} : sum[r][v];
      });
    }
    for_tile<kRows, kVectors>([&](int r, int v) __attribute__((always_inline)) {
      store(c + r * c_row + v * kLanes, sum[r][v]);
    });
  }

  /// Computes all whole tiles of kRows rows in [row, end).
  /// @tparam Set the functions of one instruction set, below
  /// @return the first row that is left
  template <typename Set, int kRows, int kVectors>
  DDP_INLINE int64_t tiles_of(const Product& p, int64_t row, int64_t end, int64_t column,
                              int64_t from) {
    for (; row + kRows <= end; row += kRows) {
      float* const c = p.c.data + row * p.c.row + column;
      if constexpr (kVectors > 0) {
        Set::template run_tile<kRows, kVectors>(p, row, column, from, c, p.c.row);
      } else {
        // The last columns are fewer than a vector: b has room for a whole vector, c has not.
        const size_t bytes = static_cast<size_t>(p.columns - column) * sizeof(float);
        float part[size_t{kRows} * size_t{kLanes}]{};
        for (int r = 0; r < kRows; ++r) {
          std::memcpy(part + r * kLanes, c + r * p.c.row, bytes);
        }
        Set::template run_tile<kRows, 1>(p, row, column, from, part, kLanes);
        for (int r = 0; r < kRows; ++r) {
          std::memcpy(c + r * p.c.row, part + r * kLanes, bytes);
        }
      }
    }
    return row;
  }

  /// Computes the columns from `column` on, in tiles of kVectors vectors, then in narrower tiles.
  template <typename Set, int kVectors = kTileVectors>
  DDP_INLINE void multiply(const Product& p, int64_t begin, int64_t end, int64_t column = 0) {
    constexpr int64_t kStep = std::max(kVectors, 1) * kLanes;
    for (; column + (kVectors > 0 ? kStep : 1) <= p.columns; column += kStep) {
      int64_t from = 0;
      do {
        const int64_t left = tiles_of<Set, kTileRows, kVectors>(p, begin, end, column, from);
        tiles_of<Set, 1, kVectors>(p, left, end, column, from);
        from += kDepth;
      } while (from < p.depth);
    }
    if constexpr (kVectors > 0) {
      multiply<Set, kVectors - 1>(p, begin, end, column);
    }
  }
};

// Note [Instruction sets]
// The body above is written once, with the compiler's vectors, and compiled once per instruction
// set, so one binary serves all processors. Arguments: name, target, lanes of a vector, vectors of
// a tile, which must fit the registers: 32 with AVX-512 and NEON, else 16. run_tile() is a function
// of its own, because the loops' variables would take registers from an inlined tile.
#define DDP_MULTIPLY(NAME, TARGET, LANES, VECTORS)                                        \
  struct NAME {                                                                           \
    using B = Body<LANES, VECTORS>;                                                       \
    template <int kRows, int kVectors>                                                    \
    TARGET [[gnu::noinline]] static void run_tile(const Product& product, int64_t row,    \
                                                  int64_t column, int64_t from, float* c, \
                                                  int64_t c_row) {                        \
      B::tile<kRows, kVectors>(product, row, column, from, c, c_row);                     \
    }                                                                                     \
    TARGET static void multiply(const Product& product, int64_t begin, int64_t end) {     \
      B::multiply<NAME>(product, begin, end);                                             \
    }                                                                                     \
  };

#if defined(__x86_64__)
DDP_MULTIPLY(Portable, , 4, 2)
DDP_MULTIPLY(Avx2, [[gnu::target("avx2,fma")]], 8, 2)
DDP_MULTIPLY(Avx512, [[gnu::target("avx512f,fma")]], 16, 4)
#else
DDP_MULTIPLY(Portable, , 4, 4)
#endif

}  // namespace

std::vector<Multiply> multiply_kernels() {
  std::vector<Multiply> usable = {Portable::multiply};
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2) {
    usable.push_back(Avx2::multiply);
  }
  if (has_avx2 && __builtin_cpu_supports("avx512f")) {
    usable.push_back(Avx512::multiply);
  }
#endif
  return usable;
}

void transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
               int64_t to_row) {
  using Four = Body<4, 1>;
  for (int64_t i = 0; i < rows; i += 4) {
    for (int64_t j = 0; j < columns; j += 4) {
      Four::Float in[4];
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
}

}  // namespace ddp::fused
