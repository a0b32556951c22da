// common/backends/module.hpp - shared libraries that are opened only where they are needed.
#pragma once

#include <string>

namespace ddp {

/// Opens lib/`file` beside the program's folder. It is never closed.
/// @param symbol of the C function that gives the module's table
/// @return the function, or nullptr if this build has no such module
/// @throws UsageError if it is there but cannot be opened
void* open_module(const std::string& file, const char* symbol);

}  // namespace ddp
