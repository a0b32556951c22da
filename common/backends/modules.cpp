// common/backends/modules.cpp - shared libraries that are opened only where they are needed.
#include <dlfcn.h>

#include <filesystem>

#include "common/backends/cuda_module.hpp"
#include "common/backends/mpi/mpi_module.hpp"
#include "common/base/refuse.hpp"

namespace ddp {
namespace {

/// Opens lib/`file` beside the program's folder. A program elsewhere, which links the installed
/// library, finds `file` by its rpath. The module is never closed, because LibTorch cannot
/// unregister it.
/// @param symbol C function that returns the module's table
/// @return the table, or nullptr if this build has no such module
template <typename Module>
const Module* open_module(const char* file, const char* symbol) {
  const std::filesystem::path beside =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib" / file;
  const std::string path = std::filesystem::exists(beside) ? beside.string() : file;
  // Global: the modules' libraries open further libraries, which need their symbols.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* const function = library == nullptr ? nullptr : dlsym(library, symbol);
  if (function == nullptr) {
    const std::string problem = dlerror();
    if (problem.starts_with(std::string(file) + ":")) {
      return nullptr;  // not found: other messages have a path, or name the missing dependency
    }
    refuse("{} cannot be opened: {}", path, problem);
  }
  return reinterpret_cast<const Module* (*)()>(function)();
}

}  // namespace

const CudaModule* cuda_module() {
  // Opening the library registers CUDA with LibTorch. That must come before any use of CUDA.
  static const auto* const module = open_module<CudaModule>("libddp_cuda.so", "ddp_cuda_module");
  return module;
}

const MpiModule* mpi_module() {
  static const auto* const module = open_module<MpiModule>("libddp_mpi.so", "ddp_mpi_module");
  return module;
}

}  // namespace ddp
