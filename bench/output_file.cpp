#include "bench/output_file.hpp"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "common/exit_codes.hpp"

namespace ddp::bench {

void write_output_file(const std::string& file, const std::function<void(std::ostream&)>& write) {
  namespace fs = std::filesystem;
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
