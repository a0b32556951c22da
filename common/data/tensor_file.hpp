// common/data/tensor_file.hpp - named tensors in a safetensors file.
#pragma once

#include <torch/types.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddp {

/// Named tensors and text, as a safetensors file holds them. Python's `safetensors` reads the file
/// too, and no reader executes anything.
struct TensorFile {
  std::map<std::string, std::string> metadata;
  std::vector<std::pair<std::string, torch::Tensor>> tensors;
};

/// Writes `file` so that a reader finds the old file or the new one, also after a crash. The file
/// that was at `path` becomes `path` + ".prev", unless it is damaged. One tensor at a time is
/// copied, and only if it is not contiguous or not on the host.
/// @throws Error (1) with the path and the reason
void write_tensor_file(const std::string& path, const TensorFile& file);

/// Reads what write_tensor_file() wrote. The tensors share one memory of the file's size.
/// @throws Error (3) if the file cannot be read, is no safetensors file, or its checksum, which
/// covers all of the file, does not match
TensorFile read_tensor_file(const std::string& path);

/// Reads such a file's bytes. The tensors are copies, so `bytes` may go.
/// @param name path of the file, for messages @throws as read_tensor_file()
TensorFile parse_tensor_file(const std::string& name, std::string_view bytes);

/// Maps the tensors of these names from any writer's file into memory that nobody may write to.
/// Pages are read when they are looked at, so there is no checksum. A tensor that is not aligned
/// for its dtype is copied.
/// @throws UsageError naming the file, what is wrong with it and what was expected
TensorFile map_tensor_file(const std::string& path, const std::vector<std::string>& names);

}  // namespace ddp
