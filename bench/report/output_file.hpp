// bench/report/output_file.hpp - writes a report so that no half of it is ever left.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

namespace ddp::bench {

/// A file is written after minutes of work: better to know before that it can be.
/// @throws UsageError naming the option and the file
void check_output_file(const std::string& option, const std::string& file);

/// @throws Error (1) if something that was printed is lost
void flush_standard_output();

/// Writes the whole file or leaves the one before. @throws Error (1) naming the file
void write_output_file(const std::string& file, const std::function<void(std::ostream&)>& write);

/// On one line. What is not UTF-8, as a path may be, is replaced; NaN and infinity become null.
std::string dump_json(const nlohmann::ordered_json& value);

/// Indented, with lists of numbers on one line each.
void write_json(std::ostream& out, const nlohmann::ordered_json& document);

/// Writes the whole file or leaves the one before. @throws Error (1) naming the file
void write_json_file(const std::string& file, const nlohmann::ordered_json& document);

}  // namespace ddp::bench
