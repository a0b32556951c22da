// common/data/samples.hpp - inputs and targets, wherever they are until they are read.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace ddp {

/// Samples in host memory, or in a file that is mapped.
struct Samples {
  torch::Tensor input;  ///< (rows, in_features) float32, or uint8 pixels, read as value / 255
  torch::Tensor target;  ///< (rows) int64 classes, or (rows, 1) float32 values
  torch::Tensor rows = {};  ///< (size) int64: the rows that are samples; undefined: all of them

  int64_t size() const { return (rows.defined() ? rows : target).sizes().front(); }
  int64_t in_features() const { return input.size(1); }
  /// Samples [begin, end) of them; nothing is read.
  Samples slice(int64_t begin, int64_t end) const;
  /// The samples as they are computed on, without `rows`: float32 on the host.
  /// @return a view if they are that already
  Samples read() const;
  /// Uninitialized memory for `size` samples as read() returns them.
  Samples room_for(int64_t size, const torch::TensorOptions& place = {}) const;
};

/// Reads rows `order[0, rows)` of the tensors into the first rows of `to`, which is of room_for().
void gather_rows(const Samples& from, const int64_t* order, int64_t rows, const Samples& to);

/// uint8 as float32, value / 255; float32 as it is.
torch::Tensor as_features(const torch::Tensor& input);

}  // namespace ddp
