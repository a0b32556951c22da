// tools/submit/text.hpp - messages, words, and how text is spelled to come out unchanged.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/process.hpp"  // shell_line
#include "common/base/refuse.hpp"

namespace ddp::submit {

/// A value that cannot be: "nodes: got 2 with --scheduler local, expected 1".
/// @throws UsageError
[[noreturn]] void refuse_value(const std::string& name, const std::string& got,
                               const std::string& expected);

/// Bytes of the UTF-8 character that `text` starts with; 0 if it starts with none. Overlong forms,
/// surrogates and what lies beyond U+10FFFF are none.
std::size_t utf8_length(std::string_view text);
bool is_control(char c);

/// "\xff" in quotation marks: like ddp::quote, but also for what is no UTF-8.
std::string quote_bytes(std::string_view text);

/// `path` for the start of a message: as it is where that is readable, else like quote_bytes.
std::string quote_path(const std::string& path);

/// Every character is an ASCII letter or digit, or one of `others`.
bool is_plain(std::string_view text, std::string_view others);
bool is_digits(std::string_view text);
/// In ASCII, whatever case the letters have.
bool equals_in_any_case(std::string_view a, std::string_view b);

/// All of `text` as a number, or nothing.
std::optional<int> to_int(std::string_view text);

/// At most `most_parts`: the last one keeps its separators.
std::vector<std::string> split(std::string_view text, char separator,
                               std::size_t most_parts = std::string_view::npos);

/// The whole file, or nothing if it cannot be read.
std::optional<std::string> read_text(const std::string& path);

/// Without "." and "..", and without a slash at its end.
/// @param folder absolute, where a relative path starts
std::string absolute_path(const std::string& folder, const std::string& path);

/// What no submission file can carry is refused: control characters other than the tab (a line ends
/// at a newline whatever stands around it, a string at a NUL) and what is not UTF-8 (neither a
/// ClassAd nor JSON holds it). Empty texts too.
/// @throws UsageError starting with `name`
void check_text(const std::string& name, std::string_view text);

/// An argument of a program: like check_text, but it may be empty.
/// @throws UsageError starting with `name`
void check_argument(const std::string& name, std::string_view text);

/// A path that can be handed to every scheduler: absolute, UTF-8, no control characters, no blanks
/// at its ends.
/// @throws UsageError starting with `name`
void check_path(const std::string& name, const std::string& path);

/// The value of `arguments` in an HTCondor submit description, in the "new" syntax: all of it in
/// double quotes, arguments with blanks or quotes in single quotes, quotes inside doubled.
///
/// Note [Dollars]: HTCondor expands macros in two places. condor_submit expands $(NAME),
/// $ENV(NAME), $INT(...) and the like, where $(DOLLAR) stands for a dollar. Later, when the job has
/// found its machine, $$(NAME) and $$([expression]) are expanded, where $$(DOLLARDOLLAR) stands for
/// two dollars. So pairs of dollars become the second form and a single one the first.
/// @param arguments checked by check_argument
/// @throws UsageError if one of them holds the text $(DOLLAR), for which there is no spelling
std::string condor_arguments(const std::vector<std::string>& arguments);

/// A path as the value of a submit command that condor_submit uses itself.
/// @throws UsageError starting with `name` if no spelling of it survives condor_submit
std::string condor_path(const std::string& name, const std::string& path);

}  // namespace ddp::submit
