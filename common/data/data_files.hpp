// common/data/data_files.hpp - the user's own data: a safetensors file, a table, a folder of
// images.
#pragma once

#include <string>

#include "common/data/dataset.hpp"

namespace ddp {

/// Whether --dataset names a file or a folder, and none of the datasets that the suite knows.
bool is_data_file(const std::string& dataset);

/// What options.dataset names, see docs/data.md. Tensors stay in their file, images are decoded
/// whenever they are read. What is not given as a test part is every fifth sample.
/// @throws UsageError naming the file, what was found and what was expected
Dataset load_data_file(const Options& options);

}  // namespace ddp
