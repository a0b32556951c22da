// common/base/module.hpp - shared libraries of this build that are opened only where needed.
#pragma once

#include <dlfcn.h>

#include <filesystem>

#include "common/base/exit_codes.hpp"

namespace ddp {

inline constexpr const char* kCudaModule = "libddp_cuda.so";
inline constexpr const char* kMpiModule = "libddp_mpi.so";

/// Opens lib/`file` beside the program's folder. A program elsewhere, which links the installed
/// library, finds `file` by its rpath. The module is never closed, because LibTorch cannot
/// unregister it.
/// @return the table of functions that its C function ddp_module() returns, or nullptr if this
/// build has no such module
/// @throws UsageError if it is there but cannot be opened
inline const void* open_module(const std::string& file) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  const std::filesystem::path beside = program.parent_path().parent_path() / "lib" / file;
  const std::string path = std::filesystem::exists(beside) ? beside.string() : file;
  // Global: the modules' libraries open further libraries, which need their symbols.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* const function = library == nullptr ? nullptr : dlsym(library, "ddp_module");
  if (function == nullptr) {
    const std::string problem = dlerror();
    if (problem.starts_with(file + ":")) {
      return nullptr;  // not found: other messages have a path, or name the missing dependency
    }
    refuse("{} cannot be opened: {}", path, problem);
  }
  return reinterpret_cast<const void* (*)()>(function)();
}

}  // namespace ddp
