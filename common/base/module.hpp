// common/base/module.hpp - shared libraries of this build that are opened only where needed.
#pragma once

#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "common/base/exit_codes.hpp"

namespace ddp {

/// A library in the build's lib/, and its C function that returns a table of functions.
struct ModuleName {
  const char* file;
  const char* symbol;
};
inline constexpr ModuleName kCudaModule = {"libddp_cuda.so", "ddp_cuda_module"};
inline constexpr ModuleName kMpiModule = {"libddp_mpi.so", "ddp_mpi_module"};

/// Opens lib/`file` beside the program's folder. A program elsewhere, which links the installed
/// library, finds `file` by its rpath. The module is never closed, because LibTorch cannot
/// unregister it.
/// @return its table, or nullptr if this build has no such module
/// @throws UsageError if it is there but cannot be opened
inline const void* open_module(const ModuleName& name) {
  const std::filesystem::path beside =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib" /
      name.file;
  const std::string path = std::filesystem::exists(beside) ? beside.string() : name.file;
  // Global: the modules' libraries open further libraries, which need their symbols.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* const function = library == nullptr ? nullptr : dlsym(library, name.symbol);
  if (function == nullptr) {
    const std::string problem = dlerror();
    if (problem.starts_with(std::string(name.file) + ":")) {
      return nullptr;  // not found: other messages have a path, or name the missing dependency
    }
    refuse("{} cannot be opened: {}", path, problem);
  }
  return reinterpret_cast<const void* (*)()>(function)();
}

}  // namespace ddp
