#include "common/data/samples.hpp"

#include <algorithm>
#include <type_traits>
#include <vector>

namespace ddp {
namespace {

/// to[i] = from[order[i]]; pixels are divided by 255, as by torchvision's ToTensor.
/// Both tensors are contiguous.
template <typename From, typename To>
void copy_rows(const torch::Tensor& from, const int64_t* order, int64_t count,
               const torch::Tensor& to) {
  const int64_t rows = from.sizes().front();
  const int64_t width = rows == 0 ? 0 : from.numel() / rows;
  const auto* const source = from.const_data_ptr<From>();
  auto* target = to.mutable_data_ptr<To>();
  for (int64_t i = 0; i < count; ++i, target += width) {
    TORCH_CHECK(order[i] >= 0 && order[i] < rows, "Expected an index in [0, ", rows, "), got ",
                order[i]);
    const From* const row = source + order[i] * width;
    if constexpr (std::is_same_v<From, To>) {
      std::copy_n(row, width, target);
    } else {
      std::transform(row, row + width, target, [](From value) { return To(value) / 255; });
    }
  }
}

}  // namespace

Samples Samples::slice(int64_t begin, int64_t end) const {
  if (begin == 0 && end == size()) {
    return *this;
  }
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
    return torch::empty(sizes, place.dtype(dtype));
  };
  return {room(input.sizes().vec(), torch::kFloat32),
          room(target.sizes().vec(), target.scalar_type())};
}

void gather_rows(const Samples& from, const int64_t* order, int64_t count, const Samples& to) {
  const bool is_pixels = from.input.scalar_type() == torch::kUInt8;
  const bool is_classes = from.target.scalar_type() == torch::kInt64;
  (is_pixels ? copy_rows<uint8_t, float> : copy_rows<float, float>)(from.input, order, count,
                                                                    to.input);
  (is_classes ? copy_rows<int64_t, int64_t> : copy_rows<float, float>)(from.target, order, count,
                                                                       to.target);
  // Autograd may have saved the old values: by the version it notices that they changed.
  to.input.unsafeGetTensorImpl()->bump_version();
  to.target.unsafeGetTensorImpl()->bump_version();
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
