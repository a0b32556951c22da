#include "bench/html/axis.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "bench/html/svg.hpp"

namespace ddp::bench::html {
namespace {

// Far enough from the ends of double that no sum or product below overflows.
constexpr double kSmallest = 1e-290;
constexpr double kLargest = 1e290;
constexpr int kMaxTicks = 12;
constexpr int kMaxDigits = 12;
constexpr double kGapBetweenLabels = 5;

double limited(double value) {
  return std::clamp(value, -kLargest, kLargest);
}

/// 1, 2, 2.5 or 5 times a power of ten, such that `span` holds at most `count` of them.
double round_step(double span, double count) {
  const double rough = span / std::max(count, 1.0);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) {
      return factor * power;
    }
  }
  return 10 * power;
}

std::vector<double> multiples(double low, double high, double step) {
  std::vector<double> values;
  const double first = std::ceil(low / step - 1e-9);
  for (int i = 0; i < kMaxTicks && (first + i) * step <= high + 1e-9 * step; ++i) {
    values.push_back((first + i) * step);
  }
  return values;
}

/// Powers of ten, the 1-2-5 series or round steps: the finest that has room.
std::vector<double> logarithmic_ticks(double low, double high, double pixels, double spacing) {
  const double decades = std::log10(high / low);
  const double room = pixels / spacing;
  if (decades < 0.65) {
    return multiples(low, high, round_step(high - low, std::min(room, 6.0)));
  }
  // The narrowest gap of the series is that from 1 to 2.
  const bool fine = pixels / decades * std::log10(2.0) >= spacing;
  const double stride = fine ? 1 : std::ceil(decades / std::max(std::floor(room), 1.0));
  std::vector<double> values;
  const double first = std::floor(std::log10(low) / stride) * stride;
  for (int i = 0; i < 1000 && first + i * stride <= std::log10(high) + 1e-9; ++i) {
    const double power = std::pow(10.0, first + i * stride);
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor == 1.0 || fine) {
        values.push_back(factor * power);
      }
    }
  }
  return values;
}

/// Zeros after the point, and the point if nothing follows it, say nothing.
std::string without_zeros(std::string text) {
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') {
      text.pop_back();
    }
  }
  return text;
}

std::string rounded(double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), "%.*e", digits - 1, value);
  return buffer;
}

/// "0.05", "12,000", "1.25·10⁶".
std::string number_label(double value, int digits) {
  const std::string text = rounded(value, digits);
  const std::size_t e = text.find('e');
  const int exponent = std::atoi(text.c_str() + e + 1);
  if (value == 0) {
    return "0";
  }
  if (exponent >= 6 || exponent < -4) {
    const std::string mantissa = without_zeros(text.substr(0, e));
    return (mantissa == "1" ? "" : mantissa + "·") + power_of_ten(exponent);
  }
  const std::string fixed = show_fixed(value, std::max(digits - 1 - exponent, 0));
  return exponent >= 3 && digits - 1 <= exponent ? show_count(value) : without_zeros(fixed);
}

/// The fewest digits that tell the values from each other, and from what they are not.
int digits_for(const std::vector<double>& values) {
  double gap = values.empty() ? 1 : std::abs(values.front()) * 1e-3;
  for (std::size_t i = 1; i < values.size(); ++i) {
    gap = i == 1 ? values[1] - values[0] : std::min(gap, values[i] - values[i - 1]);
  }
  for (int digits = 1; digits < kMaxDigits; ++digits) {
    if (std::all_of(values.begin(), values.end(), [&](double value) {
          return std::abs(std::strtod(rounded(value, digits).c_str(), nullptr) - value) <=
                 1e-3 * std::abs(gap);
        })) {
      return digits;
    }
  }
  return kMaxDigits;
}

std::string size_label(double bytes) {
  return show_size(bytes);
}

std::string count_label(double count) {
  return show_count(count);
}

}  // namespace

void Extent::add(Number value) {
  if (!value || !std::isfinite(*value) || (logarithmic_ && *value <= 0)) {
    return;
  }
  const double shown = logarithmic_ ? std::clamp(*value, kSmallest, kLargest) : limited(*value);
  low_ = is_empty_ ? shown : std::min(low_, shown);
  high_ = is_empty_ ? shown : std::max(high_, shown);
  is_empty_ = false;
}

void Axis::set_ticks(const std::vector<double>& values, double spacing,
                     std::string (*label)(double value)) {
  std::vector<double> inside;
  for (const double value : values) {
    if (value >= low_ - 1e-9 * std::abs(low_) && value <= high_ + 1e-9 * std::abs(high_)) {
      inside.push_back(value);
    }
  }
  const int digits = digits_for(inside);
  const double direction = at_high_ >= at_low_ ? 1 : -1;
  for (const double value : inside) {
    const std::string text = label == nullptr ? number_label(value, digits) : label(value);
    double needed = spacing;
    if (!ticks_.empty() && direction > 0) {
      needed = std::max(
          needed, (text_width(text) + text_width(ticks_.back().label)) / 2 + kGapBetweenLabels);
    }
    if (ticks_.empty() || direction * (at(value) - at(ticks_.back().value)) >= needed - 1e-6) {
      ticks_.push_back({value, text});
    }
  }
}

Axis Axis::logarithmic(const Extent& extent, double at_low, double at_high, double spacing) {
  double low = extent.is_empty() ? 1 : extent.low();
  double high = extent.is_empty() ? 10 : extent.high();
  const double margin = std::max(std::pow(high / low, 0.06), 1.03);
  low /= margin;
  high *= margin;
  Axis axis(true, low, high, at_low, at_high);
  axis.set_ticks(logarithmic_ticks(low, high, std::abs(at_high - at_low), spacing), spacing);
  return axis;
}

Axis Axis::linear_from_zero(const Extent& extent, double at_low, double at_high, double spacing) {
  double low = extent.is_empty() ? 0 : std::min(extent.low(), 0.0);
  double high = extent.is_empty() ? 1 : std::max(extent.high(), 0.0);
  high = high > low ? high : low + 1;
  const double count = std::clamp(std::abs(at_high - at_low) / spacing, 1.0, 5.0);
  const double step = round_step(high - low, count);
  low = low < 0 ? std::floor(low / step) * step : 0;
  high += 0.03 * (high - low);
  Axis axis(false, low, high, at_low, at_high);
  axis.set_ticks(multiples(low, high, step), spacing);
  return axis;
}

Axis Axis::linear(const Extent& extent, double at_low, double at_high, double spacing) {
  double low = extent.is_empty() ? 0 : extent.low();
  double high = extent.is_empty() ? 1 : extent.high();
  const double margin = high > low ? 0.06 * (high - low) : std::max(std::abs(high), 1e-6) * 0.1;
  low -= margin;
  high += margin;
  const double count = std::clamp(std::abs(at_high - at_low) / spacing, 1.0, 5.0);
  Axis axis(false, low, high, at_low, at_high);
  axis.set_ticks(multiples(low, high, round_step(high - low, count)), spacing);
  return axis;
}

Axis Axis::of_counts(const std::vector<int>& counts, double at_low, double at_high,
                     double spacing) {
  const double low = counts.empty() ? 1 : std::max(counts.front(), 1);
  const double high = counts.empty() ? 1 : std::max(counts.back(), 1);
  // One count alone stands in the middle.
  const double margin = high > low ? std::pow(high / low, 0.04) : 2;
  Axis axis(true, low / margin, high * margin, at_low, at_high);
  axis.set_ticks({counts.begin(), counts.end()}, spacing, count_label);
  return axis;
}

Axis Axis::of_bytes(const Extent& extent, double at_low, double at_high, double spacing) {
  const double low = extent.is_empty() ? 1 : extent.low();
  const double high = extent.is_empty() ? 1024 : extent.high();
  const double margin = std::max(std::pow(high / low, 0.03), 1.05);
  Axis axis(true, low / margin, high * margin, at_low, at_high);
  const double powers = std::log2(high / low);
  const double room = std::max(std::floor(std::abs(at_high - at_low) / spacing), 1.0);
  double stride = 1;
  for (const double nice : {1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0, 1000.0}) {
    stride = nice;
    if (powers / nice <= room) {
      break;
    }
  }
  std::vector<double> values;
  const double first = std::ceil(std::log2(low) / stride - 1e-9) * stride;
  for (int i = 0; i < 100 && first + i * stride <= std::log2(high) + 1e-9; ++i) {
    values.push_back(std::pow(2.0, first + i * stride));
  }
  axis.set_ticks(values, spacing, size_label);
  return axis;
}

double Axis::at(double value) const {
  double share = 0.5;
  if (logarithmic_) {
    const double safe = std::clamp(value, low_, high_);
    share = std::log(safe / low_) / std::log(high_ / low_);
  } else if (high_ > low_) {
    share = (std::clamp(value, low_, high_) - low_) / (high_ - low_);
  }
  return at_low_ + (at_high_ - at_low_) * (std::isfinite(share) ? share : 0.5);
}

bool Axis::can_show(Number value) const {
  return value && std::isfinite(*value) && (!logarithmic_ || *value > 0);
}

}  // namespace ddp::bench::html
