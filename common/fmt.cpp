// common/fmt.cpp - functions of fmt, because LibTorch has only fmt's headers.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
// Functions that fmt/format.h only declares.
template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
template FMT_API auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
}  // namespace detail
FMT_END_NAMESPACE
