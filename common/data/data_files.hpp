// common/data/data_files.hpp - the user's own data: tensors in a safetensors file.
#pragma once

#include <optional>
#include <string>

#include "common/base/hash.hpp"
#include "common/data/dataset.hpp"

namespace ddp {

/// What a data file holds. The samples stay in the file.
struct DataFile {
  Samples train;
  std::optional<Samples> test;
};

/// Tensors features and labels, and test_features and test_labels if the file has them.
/// @throws UsageError naming the file, what was found and what was expected
DataFile read_data_file(const std::string& path);

/// The file that options.dataset names, see docs/data.md. Without a test part one of five samples
/// is it.
/// @param content is given what tells this data from other data
/// @return without a fingerprint
/// @throws as read_data_file()
Dataset load_data_file(const Options& options, Hash& content);

}  // namespace ddp
