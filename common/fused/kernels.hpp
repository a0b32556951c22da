// common/fused/kernels.hpp - the arithmetic of a fused step on the CPU, float32.
#pragma once

#include <cstdint>
#include <vector>

namespace ddp::fused {

/// Elements of the widest vector. The rows of `Product::b` and `Product::activations` must be
/// readable up to the next multiple.
inline constexpr int64_t kBlock = 16;
/// Rows that multiply() computes together. Threads divide a product's rows at multiples of this.
inline constexpr int64_t kTileRows = 6;

/// Element (i, j) of a matrix lies at data[i * row + j * column].
template <typename T>
struct Matrix {
  T* data;
  int64_t row;
  int64_t column = 1;
};

/// c = a b + bias, with the bias added to every column, then ReLU or its gradient.
struct Product {
  int64_t rows;  ///< rows of a and c
  int64_t columns;  ///< columns of b and c
  int64_t depth;  ///< columns of a, rows of b
  Matrix<const float> a;  ///< may be transposed; columns of b and c lie side by side
  Matrix<const float> b;
  Matrix<float> c;
  const float* bias = nullptr;  ///< (rows), or none
  bool relu = false;  ///< negative sums become 0
  const float* activations =
      nullptr;  ///< in the layout of c: sums become 0 where an activation is 0; or none
};

/// Computes rows [begin, end) of a product. Does not allocate or throw. An element does not depend
/// on other rows or columns, so any number of threads computes the same bits. NaN stays NaN, as in
/// LibTorch.
using Multiply = void (*)(const Product& product, int64_t begin, int64_t end);
/// Implementations for the instruction sets of this machine, the fastest last.
std::vector<Multiply> multiply_kernels();

/// to[j][i] = from[i][j], in blocks of 4 by 4: both matrices have room up to the next multiple of 4
/// in both directions.
void transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
               int64_t to_row);

}  // namespace ddp::fused
