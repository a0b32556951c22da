// common/data/samples.hpp - inputs and targets, in memory or in a mapped file.
#pragma once

#include <torch/types.h>

namespace ddp {

struct Samples {
  torch::Tensor input;  ///< (rows, ...) of any type; uint8 are pixels, read as value / 255
  torch::Tensor target;  ///< (rows, ...) of any type: int64 classes, or (rows, 1) float32 values
  torch::Tensor rows = {};  ///< (size) int64: row of each sample; undefined: all rows

  int64_t size() const { return (rows.defined() ? rows : target).sizes().front(); }
  int64_t in_features() const { return input.dim() < 2 ? 1 : input.size(1); }
  /// Samples [begin, end) as views; no sample is read.
  Samples slice(int64_t begin, int64_t end) const;
  /// Reads the samples as the model needs them: pixels as float32, without `rows`.
  /// @return views, if the samples are so already
  Samples read() const;
  /// Uninitialized memory for `size` samples in the form that read() returns.
  Samples room_for(int64_t size, const torch::TensorOptions& place = {}) const;
};

/// Reads the rows order[0], ..., order[count - 1] of `from` into the first rows of `to`.
/// @param from of tensors from as_rows()
/// @param to from room_for(); changed in place, as autograd sees it
/// @throws c10::Error if an index is out of range
void gather_rows(const Samples& from, const int64_t* order, int64_t count, const Samples& to);

/// Tensor whose rows can be copied byte by byte; the tensor itself, if it is so already.
torch::Tensor as_rows(const torch::Tensor& tensor);

/// uint8 pixels as float32, value / 255; other types as they are.
torch::Tensor as_features(const torch::Tensor& input);

}  // namespace ddp
