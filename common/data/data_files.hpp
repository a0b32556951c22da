// common/data/data_files.hpp - the user's own data: a safetensors file, a table, a folder of
// images.
#pragma once

#include <string>

#include "common/base/hash.hpp"
#include "common/data/dataset.hpp"

namespace ddp {

/// Whether --dataset names a file or a folder, and none of the datasets that the suite knows.
bool is_data_file(const std::string& dataset);

/// What options.dataset names, see docs/data.md. Tensors stay in their file, images are decoded
/// whenever they are read. Without a test part one of five samples is it.
/// @param content is given what tells this data from other data
/// @return without a fingerprint
/// @throws UsageError naming the file, what was found and what was expected
Dataset load_data_file(const Options& options, Hash& content);

}  // namespace ddp
