#include "common/launch/output_files.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "common/base/exit_codes.hpp"
#include "common/base/parse.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const char* option, const std::string& path, const std::string& expected) {
  throw UsageError(std::string(option) + ": got " + quote(path) + ", expected " + expected);
}

bool in_writable_folder(const std::string& path) {
  std::error_code error;
  const fs::path folder = fs::absolute(path, error).parent_path();
  return !error && access(folder.c_str(), W_OK | X_OK) == 0;
}

}  // namespace

void check_output_files(const Options& options) {
  std::error_code error;
  const fs::file_status snapshot = fs::status(options.snapshot, error);
  if ((fs::exists(snapshot) && !fs::is_regular_file(snapshot)) ||
      !in_writable_folder(options.snapshot)) {
    refuse("--snapshot", options.snapshot, "a file in an existing, writable folder");
  }
  if (options.metrics.empty()) {
    return;
  }
  const fs::file_status metrics = fs::status(options.metrics, error);
  const bool writable =
      fs::exists(metrics) ? !fs::is_directory(metrics) && access(options.metrics.c_str(), W_OK) == 0
                          : in_writable_folder(options.metrics);
  if (!writable) {
    refuse("--metrics", options.metrics, "a writable file, or a name in a writable folder");
  }
}

}  // namespace ddp
