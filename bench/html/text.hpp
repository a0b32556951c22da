// bench/html/text.hpp - text and numbers as the page shows them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ddp::bench::html {

using Number = std::optional<double>;

/// What stands for a number that was not measured.
inline constexpr const char* kNothing = "–";

/// For the content of elements and for quoted attributes. What XML does not allow becomes U+FFFD.
/// @param text valid UTF-8
std::string escape(std::string_view text);

/// Code points, not bytes.
std::size_t count_characters(std::string_view text);
/// At most `characters` of them; the last is an ellipsis if something was cut.
std::string shortened(std::string_view text, std::size_t characters);

/// "10⁶".
std::string power_of_ten(int exponent);
/// Three significant digits: "0.0412", "1.23", "1,230", "4.5·10⁹".
std::string show(Number value);
/// Whole: "1,234,567".
std::string show_count(Number value);
std::string show_fixed(Number value, int decimals);
/// "71 %".
std::string show_percent(Number share, int decimals = 0);
/// "+7.1 %".
std::string show_signed_percent(Number share);
/// "1.23×".
std::string show_factor(Number factor);
/// Binary units where they come out even: "4 B", "32 KiB", "1.5 MiB".
std::string show_size(Number bytes);
/// "0.83", "<0.01".
std::string show_efficiency(Number efficiency);
/// `text` with its unit, or the dash alone.
std::string with_unit(const std::string& text, const char* unit);

/// The shortest text that reads back as the same double.
std::string exact(double value);
/// "one rank", "4 ranks".
std::string ranks(int count);

}  // namespace ddp::bench::html
