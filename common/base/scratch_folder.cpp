#include "common/base/scratch_folder.hpp"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "common/base/exit_codes.hpp"

namespace ddp {

ScratchFolder::ScratchFolder(const std::string& name) {
  const char* const tmpdir = std::getenv("TMPDIR");
  path_ =
      std::string(tmpdir == nullptr || *tmpdir == '\0' ? "/tmp" : tmpdir) + "/" + name + "-XXXXXX";
  if (mkdtemp(path_.data()) == nullptr) {
    throw Error(ExitCode::kTrainingFailed, "cannot make a temporary folder " + path_ + ": " +
                                               std::generic_category().message(errno));
  }
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace ddp
