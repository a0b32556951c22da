// common/base/scratch_folder.hpp - a private temporary folder that goes when its owner goes.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "common/base/exit_codes.hpp"

namespace ddp {

class ScratchFolder {
 public:
  /// Below TMPDIR, else /tmp. @throws Error (1) if it cannot be made
  explicit ScratchFolder(const std::string& name) {
    const char* const tmpdir = std::getenv("TMPDIR");
    path_ = std::string(tmpdir == nullptr || *tmpdir == '\0' ? "/tmp" : tmpdir) + "/" + name +
            "-XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) {
      throw Error(ExitCode::kTrainingFailed, "cannot make a temporary folder " + path_ + ": " +
                                                 std::generic_category().message(errno));
    }
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace ddp
