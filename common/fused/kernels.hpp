// common/fused/kernels.hpp - the arithmetic of a fused step on the CPU, float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddp::fused {

/// The rows of `Product::b` and `Product::activations` are readable up to the next multiple of this
/// many elements: the widest vector.
inline constexpr int64_t kBlock = 16;
/// Rows that are computed together: divide a product's rows at multiples of this.
inline constexpr int64_t kTileRows = 6;

/// What a product does with its sum before it is stored.
enum class After {
  kNothing,
  kRelu,
  kReluBackward,  ///< zero where the activation is not positive
};

/// c = after((accumulate ? c : bias) + a b), with the bias added to every column. Element (i, k) of
/// a lies at a[i * a_row + k * a_depth], so that a may be transposed; b and c have contiguous rows.
struct Product {
  int64_t rows = 0;  ///< of a and c
  int64_t columns = 0;  ///< of b and c
  int64_t depth = 0;  ///< columns of a, rows of b
  const float* a = nullptr;
  int64_t a_row = 0;
  int64_t a_depth = 0;
  const float* b = nullptr;
  int64_t b_row = 0;
  float* c = nullptr;
  int64_t c_row = 0;
  const float* bias = nullptr;  ///< (rows), or none
  bool accumulate = false;
  After after = After::kNothing;
  const float* activations = nullptr;  ///< for kReluBackward; laid out as c is
  /// (kBlock) zeros, or none: one becomes NaN where an element of c is not finite, or would not be
  /// in the columns up to the next block. A look that costs an instruction per vector of c.
  float* marks = nullptr;
};

/// Softmax cross entropy of a (classes, columns) matrix of logits, one column per sample.
struct CrossEntropy {
  int64_t classes = 0;
  int64_t samples = 0;  ///< the columns that count
  int64_t columns = 0;  ///< a multiple of kBlock; at most kMaxColumns
  float* logits = nullptr;  ///< replaced by their gradients, 0 in the columns that do not count
  int64_t logits_row = 0;
  const int64_t* targets = nullptr;  ///< (samples), each in [0, classes)
  float gradient_scale = 1;
};
inline constexpr int64_t kMaxColumns = 64;

/// One optimizer step over flat storage.
struct Update {
  enum class Rule { kSgd, kMomentum, kAdam };
  Rule rule = Rule::kSgd;
  int64_t size = 0;
  float* weights = nullptr;
  const float* gradients = nullptr;
  float* first_moment = nullptr;  ///< momentum's buffer; Adam's mean
  float* second_moment = nullptr;  ///< Adam's mean of squares
  float rate = 0;  ///< learning rate; Adam's is divided by its first bias correction
  float beta1 = 0;  ///< or the momentum
  float beta2 = 0;
  float one_minus_beta1 = 1;  ///< rounded once: the float 1 - beta2 would have four digits
  float one_minus_beta2 = 1;
  float correction2 = 1;  ///< 1 / square root of Adam's second bias correction
  float epsilon = 0;
  float shrink = 1;  ///< weights are multiplied by this first: AdamW's decay
};

/// One implementation. None allocates or throws; NaN goes through as in LibTorch.
struct Kernels {
  const char* name;
  /// Rows [begin, end) of the product. The order in which an element's terms are added depends on
  /// nothing but their number, so its bits depend on neither the rows' division nor other columns.
  void (*multiply)(const Product& product, int64_t begin, int64_t end);
  /// to[j][i] = from[i][j]
  void (*transpose)(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                    int64_t to_row);
  /// sums[i] (+)= the sum of row i; columns is a multiple of kBlock
  void (*sum_rows)(const float* matrix, int64_t row, int64_t rows, int64_t columns, float* sums,
                   bool accumulate);
  /// @return the sum of the samples' losses
  double (*cross_entropy)(const CrossEntropy& task);
  void (*update)(const Update& task);
  /// sum += term
  void (*add)(float* sum, const float* term, int64_t size);
  bool (*all_finite)(const float* values, int64_t size);
};

/// The fastest that this machine can run.
const Kernels& kernels();
/// All that this machine can run, for tests: "portable" first.
std::vector<const Kernels*> all_kernels();

}  // namespace ddp::fused
