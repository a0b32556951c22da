#include "bench/run/discovery.hpp"

#include <algorithm>
#include <cstdlib>

#include "common/base/process.hpp"

namespace ddp::bench {

namespace fs = std::filesystem;

std::optional<std::string> find_torchrun(const fs::path& stage_dir) {
  for (fs::path folder = stage_dir;; folder = folder.parent_path()) {
    const fs::path candidate = folder / ".venv" / "bin" / "torchrun";
    if (is_executable(candidate.string())) {
      return candidate.string();
    }
    if (folder == folder.parent_path()) {
      return find_in_path("torchrun");
    }
  }
}

int visible_gpus() {
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    const std::string list = visible;
    const bool none = list.empty() || list[0] == '-';
    return none ? 0 : 1 + static_cast<int>(std::count(list.begin(), list.end(), ','));
  }
  int count = 0;
  while (fs::exists("/dev/nvidia" + std::to_string(count))) {
    ++count;
  }
  return count;
}

bool inside_slurm_allocation() {
  const char* const job = std::getenv("SLURM_JOB_ID");
  return job != nullptr && *job != '\0';
}

}  // namespace ddp::bench
