#include "common/backends/module.hpp"

#include <dlfcn.h>

#include <filesystem>

#include "common/base/exit_codes.hpp"

namespace ddp {

void* open_module(const std::string& file, const char* symbol) {
  const std::filesystem::path path =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib" / file;
  if (!std::filesystem::exists(path)) {
    return nullptr;
  }
  // Global: what the modules bring with them opens libraries of its own that need its symbols.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* const function = library == nullptr ? nullptr : dlsym(library, symbol);
  if (function == nullptr) {
    throw UsageError(path.string() + " cannot be opened: " + dlerror());
  }
  return function;
}

}  // namespace ddp
