#include "common/backends/cuda_module.hpp"

#include <dlfcn.h>

#include <filesystem>

#include "common/exit_codes.hpp"

namespace ddp {

const CudaModule* cuda_module() {
  static const CudaModule* const module = []() -> const CudaModule* {
    const std::filesystem::path path =
        std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib" /
        "libddp_cuda.so";
    if (!std::filesystem::exists(path)) {
      return nullptr;
    }
    // LibTorch registers its CUDA support while the library is being opened; that must happen
    // before anything asks for it. Never closed: the registrations cannot be undone.
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    void* const symbol = library == nullptr ? nullptr : dlsym(library, kCudaModuleSymbol);
    if (symbol == nullptr) {
      throw Error(ExitCode::kTrainingFailed, path.string() + " cannot be opened: " + dlerror());
    }
    return reinterpret_cast<CudaModuleFunction>(symbol)();
  }();
  return module;
}

}  // namespace ddp
