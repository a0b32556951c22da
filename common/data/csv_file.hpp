// common/data/csv_file.hpp - a table of numbers.
#pragma once

#include <string>

#include "common/data/samples.hpp"

namespace ddp {

/// A header line, then numbers. The column `label`, or else the last one, is the target: classes if
/// all that is in it are integers, else float32 values. Fields may stand in quotation marks, lines
/// may end with CR LF.
/// @throws UsageError naming file, line and column of what is no finite number
Samples read_csv_file(const std::string& path);

}  // namespace ddp
