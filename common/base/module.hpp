// common/base/module.hpp - shared libraries of this build that are opened only where needed.
#pragma once

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
const void* open_module(const ModuleName& name);

}  // namespace ddp
