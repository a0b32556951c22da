// common/base/scratch_folder.hpp - a private temporary folder that goes when its owner goes.
#pragma once

#include <string>

namespace ddp {

class ScratchFolder {
 public:
  /// Below TMPDIR, else /tmp. @throws Error (1) if it cannot be made
  explicit ScratchFolder(const std::string& name);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace ddp
