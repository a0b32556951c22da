#include "common/data/samples.hpp"

#include <cstring>
#include <vector>

namespace ddp {
namespace {

/// to[i] = from[order[i]]. Both contiguous.
void copy_rows(const torch::Tensor& from, const int64_t* order, int64_t rows,
               const torch::Tensor& to) {
  const int64_t all_rows = from.sizes().front();
  const size_t row_bytes = all_rows == 0 ? 0 : from.nbytes() / static_cast<size_t>(all_rows);
  const char* const source = static_cast<const char*>(from.const_data_ptr());
  char* target = static_cast<char*>(to.mutable_data_ptr());
  for (int64_t i = 0; i < rows; ++i, target += row_bytes) {
    TORCH_CHECK(order[i] >= 0 && order[i] < all_rows, "Expected an index in [0, ", all_rows,
                "), got ", order[i]);
    std::memcpy(target, source + static_cast<size_t>(order[i]) * row_bytes, row_bytes);
  }
}

/// The same for pixels, as torchvision's ToTensor scales them.
void scale_rows(const torch::Tensor& from, const int64_t* order, int64_t rows,
                const torch::Tensor& to) {
  constexpr float kWhite = 255;
  const int64_t all_rows = from.size(0);
  const int64_t features = from.size(1);
  const auto* const source = from.const_data_ptr<uint8_t>();
  auto* target = to.mutable_data_ptr<float>();
  for (int64_t i = 0; i < rows; ++i, target += features) {
    TORCH_CHECK(order[i] >= 0 && order[i] < all_rows, "Expected an index in [0, ", all_rows,
                "), got ", order[i]);
    const uint8_t* const pixels = source + order[i] * features;
    for (int64_t j = 0; j < features; ++j) {
      target[j] = static_cast<float>(pixels[j]) / kWhite;
    }
  }
}

}  // namespace

Samples Samples::slice(int64_t begin, int64_t end) const {
  if (rows.defined()) {
    return {input, target, rows.slice(0, begin, end)};
  }
  return {input.slice(0, begin, end), target.slice(0, begin, end)};
}

Samples Samples::read() const {
  if (!rows.defined()) {
    return {as_features(input), target};
  }
  Samples all = room_for(size());
  gather_rows(*this, rows.const_data_ptr<int64_t>(), size(), all);
  return all;
}

Samples Samples::room_for(int64_t size, const torch::TensorOptions& place) const {
  const auto room = [&](std::vector<int64_t> sizes, torch::ScalarType dtype) {
    sizes[0] = size;
    return torch::empty(sizes, place.dtype(dtype == torch::kUInt8 ? torch::kFloat32 : dtype));
  };
  return {room(input.sizes().vec(), input.scalar_type()),
          room(target.sizes().vec(), target.scalar_type())};
}

void gather_rows(const Samples& from, const int64_t* order, int64_t rows, const Samples& to) {
  const bool is_pixels = from.input.scalar_type() == torch::kUInt8;
  (is_pixels ? scale_rows : copy_rows)(from.input, order, rows, to.input);
  copy_rows(from.target, order, rows, to.target);
}

torch::Tensor as_features(const torch::Tensor& input) {
  if (input.scalar_type() != torch::kUInt8) {
    return input;
  }
  const torch::Tensor values = input.to(torch::kFloat32);
  // By a tensor: CUDA multiplies by the reciprocal of a number, which has other bits.
  return values.div_(torch::full({}, 255, values.options()));
}

}  // namespace ddp
