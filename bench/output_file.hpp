// bench/output_file.hpp - writes a report so that no half of it is ever left.
#pragma once

#include <functional>
#include <ostream>
#include <string>

namespace ddp::bench {

/// Writes the whole file or leaves the one before. @throws Error (1) naming the file
void write_output_file(const std::string& file, const std::function<void(std::ostream&)>& write);

}  // namespace ddp::bench
