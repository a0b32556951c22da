#include "bench/report/output_file.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>

#include "common/base/exit_codes.hpp"

namespace ddp::bench {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

bool is_flat(const ordered_json& value) {
  return value.is_primitive() ||
         (value.is_array() && std::all_of(value.begin(), value.end(),
                                          [](const ordered_json& e) { return e.is_primitive(); }));
}

void write_value(std::ostream& out, const ordered_json& value, const std::string& indent) {
  if (is_flat(value) || value.empty()) {
    out << dump_json(value);
    return;
  }
  const std::string inner = indent + "  ";
  const char* separator = "\n";
  out << (value.is_object() ? '{' : '[');
  for (const auto& [key, element] : value.items()) {
    out << separator << inner;
    if (value.is_object()) {
      out << dump_json(key) << ": ";
    }
    write_value(out, element, inner);
    separator = ",\n";
  }
  out << '\n' << indent << (value.is_object() ? '}' : ']');
}

}  // namespace

void check_output_file(const std::string& option, const std::string& file) {
  // An empty path has no absolute one.
  if (file.empty() || !fs::is_directory(fs::absolute(file).parent_path()) ||
      fs::is_directory(file)) {
    throw UsageError(option + ": expected a file in an existing folder, got \"" + file + "\"");
  }
  const bool is_new = !fs::exists(file);
  if (!is_new && !fs::is_regular_file(file)) {
    return;  // to open a pipe would wait for its reader
  }
  errno = 0;
  const bool writable = std::ofstream(file, std::ios::app).is_open();
  const int error = errno;
  if (!writable) {
    throw UsageError(option + ": expected a file that can be written, got \"" + file + "\" (" +
                     std::generic_category().message(error) + ")");
  }
  if (is_new) {
    fs::remove(file);
  }
}

void flush_standard_output() {
  if (!std::cout.flush()) {
    throw Error(ExitCode::kTrainingFailed, "cannot write to standard output");
  }
}

void write_output_file(const std::string& file, const std::function<void(std::ostream&)>& write) {
  // Only a regular file can be replaced; a pipe or /dev/null is written to.
  const bool replace = !fs::exists(file) || fs::is_regular_file(file);
  const std::string written = replace ? file + ".new" : file;
  std::ofstream out(written, std::ios::binary);
  write(out);
  out.close();
  if (!out) {
    throw Error(ExitCode::kTrainingFailed, "cannot write " + written);
  }
  std::error_code error;
  if (replace) {
    fs::rename(written, file, error);
  }
  if (error) {
    throw Error(ExitCode::kTrainingFailed, "cannot write " + file + ": " + error.message());
  }
}

std::string dump_json(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

void write_json(std::ostream& out, const ordered_json& document) {
  write_value(out, document, "");
  out << '\n';
}

void write_json_file(const std::string& file, const ordered_json& document) {
  write_output_file(file, [&](std::ostream& out) { write_json(out, document); });
}

}  // namespace ddp::bench
