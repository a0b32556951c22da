#include "common/data/samples.hpp"

#include <algorithm>
#include <cstring>

namespace ddp {
namespace {

/// to[i] = from[order[i]]. If `to` is of another type, the rows are pixels, which are divided by
/// 255, as by torchvision's ToTensor. Both tensors are as_rows().
void copy_rows(const torch::Tensor& from, const int64_t* order, int64_t count,
               const torch::Tensor& to) {
  const int64_t rows = from.sizes().front();
  const size_t row_bytes = rows == 0 ? 0 : from.nbytes() / static_cast<size_t>(rows);
  const auto* const source = static_cast<const uint8_t*>(from.const_data_ptr());
  const bool is_pixels = to.scalar_type() != from.scalar_type();
  auto* const pixels = is_pixels ? to.mutable_data_ptr<float>() : nullptr;
  auto* const copies = static_cast<uint8_t*>(to.mutable_data_ptr());
  for (int64_t i = 0; i < count; ++i) {
    TORCH_CHECK(order[i] >= 0 && order[i] < rows, "Expected an index in [0, ", rows, "), got ",
                order[i]);
    const uint8_t* const row = source + static_cast<size_t>(order[i]) * row_bytes;
    const size_t target = static_cast<size_t>(i) * row_bytes;
    if (is_pixels) {
      std::transform(row, row + row_bytes, pixels + target,
                     [](uint8_t value) { return float(value) / 255; });
    } else {
      std::memcpy(copies + target, row, row_bytes);
    }
  }
}

}  // namespace

Samples Samples::slice(int64_t begin, int64_t end) const {
  if (begin == 0 && end == size()) {
    return *this;
  }
  return rows.defined() ? Samples{input, target, rows.slice(0, begin, end)}
                        : Samples{input.slice(0, begin, end), target.slice(0, begin, end)};
}

Samples Samples::read() const {
  if (!rows.defined()) {
    return {as_features(input), target};
  }
  Samples all = room_for(size());
  const Samples from{as_rows(input), as_rows(target)};
  gather_rows(from, rows.const_data_ptr<int64_t>(), size(), all);
  return all;
}

Samples Samples::room_for(int64_t size, const torch::TensorOptions& place) const {
  const auto room = [&](std::vector<int64_t> sizes, torch::ScalarType dtype) {
    sizes[0] = size;
    return torch::empty(sizes, place.dtype(dtype));
  };
  const bool is_pixels = input.scalar_type() == torch::kUInt8;
  return {room(input.sizes().vec(), is_pixels ? torch::kFloat32 : input.scalar_type()),
          room(target.sizes().vec(), target.scalar_type())};
}

void gather_rows(const Samples& from, const int64_t* order, int64_t count, const Samples& to) {
  copy_rows(from.input, order, count, to.input);
  copy_rows(from.target, order, count, to.target);
  // Autograd may have saved the old values: by the version it notices that they changed.
  to.input.unsafeGetTensorImpl()->bump_version();
  to.target.unsafeGetTensorImpl()->bump_version();
}

torch::Tensor as_rows(const torch::Tensor& tensor) {
  return tensor.contiguous().resolve_conj().resolve_neg();
}

torch::Tensor as_features(const torch::Tensor& input) {
  if (input.scalar_type() != torch::kUInt8) {
    return input;
  }
  const torch::Tensor values = input.to(torch::kFloat32);
  // Divided by a tensor: for a number CUDA multiplies by the reciprocal, which gives other bits.
  return values.div_(torch::full({}, 255, values.options()));
}

}  // namespace ddp
