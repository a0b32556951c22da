#include "bench/report/output_file.hpp"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>

#include "common/base/exit_codes.hpp"

namespace ddp::bench {

namespace fs = std::filesystem;

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

}  // namespace ddp::bench
