// common/data/tensor_file.hpp - named tensors in a safetensors file.
#pragma once

#include <torch/types.h>

#include <map>

namespace ddp {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

/// Content of a safetensors file: named tensors and text. Python's `safetensors` reads the file
/// too, and no reader executes anything.
struct TensorFile {
  std::map<std::string, std::string> metadata;
  NamedTensors tensors;
};

/// Writes `file` so that a reader finds the old file or the new one, also after a crash. The file
/// at `path` becomes `path` + ".prev", unless it is damaged. A tensor is copied only while it is
/// written, and only if it is not contiguous or not on the host.
/// @throws Error (1) with the path and the reason
void write_tensor_file(const std::string& path, const TensorFile& file);

/// Reads the bytes of a file of write_tensor_file(). The tensors share one copy of `bytes`.
/// @param name path of the file, for messages
/// @throws Error (3) if it is no safetensors file, or the checksum of all its bytes does not match
TensorFile parse_tensor_file(const std::string& name, std::string_view bytes);

/// Maps tensors from a file of any writer into read-only memory. Pages are read at their first
/// use, so no checksum is compared. A tensor that is not aligned for its dtype is copied.
/// @param names tensors to map, as far as the file has them
/// @throws UsageError naming the file, what is wrong with it and what was expected
TensorFile map_tensor_file(const std::string& path, const std::vector<std::string>& names);

}  // namespace ddp
