// tools/submit/text.hpp - small things about text: UTF-8, near misses, lists of words.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::submit {

/// Bytes of the UTF-8 character that `text` starts with; 0 if it starts with none. Overlong forms,
/// surrogates and what lies beyond U+10FFFF are none.
std::size_t utf8_length(std::string_view text);
bool is_utf8(std::string_view text);

/// "\xff" in quotation marks: like ddp::quote, but also for what is no UTF-8.
std::string quote_bytes(std::string_view text);

/// `path` for the start of a message: as it is where that is readable, else like quote_bytes.
std::string quote_path(const std::string& path);

/// The word that was probably meant, or an empty string.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

/// "a, b or c"
std::string any_of(const std::vector<std::string>& words);

/// Every character is an ASCII letter or digit, or one of `others`.
bool is_plain(std::string_view text, std::string_view others);

}  // namespace ddp::submit
