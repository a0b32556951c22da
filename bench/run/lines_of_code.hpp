// bench/run/lines_of_code.hpp - how much a user of a stage, or of a peer's framework, writes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "bench/report/record.hpp"

namespace ddp::bench {

/// Lines that are neither blank nor comment, nor a docstring in Python.
/// @return nothing if there is no such file
std::optional<std::int64_t> lines_of_code(const std::filesystem::path& source);

/// Those of the source of each run. @param peers_dir bench/peers of a checkout
void count_lines_of_code(const std::filesystem::path& peers_dir, Report& report);

}  // namespace ddp::bench
