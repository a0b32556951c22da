#include "common/base/module.hpp"

#include <dlfcn.h>

#include <filesystem>

#include "common/base/refuse.hpp"

namespace ddp {

const void* open_module(const ModuleName& name) {
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
