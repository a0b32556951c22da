// tools/submit/text.hpp - small things about text: UTF-8, messages, near misses, words.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::submit {

/// Bytes of the UTF-8 character that `text` starts with; 0 if it starts with none. Overlong forms,
/// surrogates and what lies beyond U+10FFFF are none.
std::size_t utf8_length(std::string_view text);

/// "\xff" in quotation marks: like ddp::quote, but also for what is no UTF-8.
std::string quote_bytes(std::string_view text);

/// `path` for the start of a message: as it is where that is readable, else like quote_bytes.
std::string quote_path(const std::string& path);

/// A value that cannot be: "nodes: got 2 with --scheduler local, expected 1".
/// @throws UsageError
[[noreturn]] void refuse_value(const std::string& name, const std::string& got,
                               const std::string& expected);

/// The word that was probably meant, or an empty string.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

/// "a, b or c"
std::string any_of(const std::vector<std::string>& words);

/// Every character is an ASCII letter or digit, or one of `others`.
bool is_plain(std::string_view text, std::string_view others);
bool is_digits(std::string_view text);
std::string lower_case(std::string_view text);

/// All of `text` as a number, or nothing.
std::optional<int> to_int(std::string_view text);

/// At most `most_parts`: the last one keeps its separators.
std::vector<std::string> split(std::string_view text, char separator,
                               std::size_t most_parts = std::string_view::npos);

/// The whole file, or nothing if it cannot be read.
std::optional<std::string> read_text(const std::string& path);

}  // namespace ddp::submit
