// tools/submit/quoting.hpp - puts any text into a submission file such that it comes out unchanged.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddp::submit {

/// What no submission file can carry is refused: control characters other than the tab (a line ends
/// at a newline whatever stands around it, a string at a NUL) and what is not UTF-8 (neither a
/// ClassAd nor JSON holds it). Empty texts too.
/// @throws UsageError starting with `name`
void check_text(const std::string& name, std::string_view text);

/// An argument of a program: like check_text, but it may be empty.
/// @throws UsageError starting with `name`
void check_argument(const std::string& name, std::string_view text);

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

/// One word of bash (or of any other POSIX shell), whatever `text` holds.
std::string shell_quote(std::string_view text);

/// One line that a shell would read back as `argv`.
std::string shell_line(const std::vector<std::string>& argv);

}  // namespace ddp::submit
