// common/data/tensor_file.hpp - named tensors in a safetensors file, there whole or not at all.
#pragma once

#include <torch/types.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace ddp {

/// Named tensors and text, as a safetensors file: Python's `safetensors` reads it, and no reader
/// executes anything.
struct TensorFile {
  std::map<std::string, std::string> metadata;
  std::vector<std::pair<std::string, torch::Tensor>> tensors;
};

/// Writes `file` so that a reader, or this program after a crash, finds the old file or the new
/// one, never a part: temporary file, fsync, rename. What was at `path` is kept as `path` +
/// ".prev", unless it is damaged. What a writer that was killed has left beside it is removed.
/// Tensors are written one after the other: one at a time is copied, and only if it is not
/// contiguous or on a GPU.
/// @throws Error (1) with the path and the reason
void write_tensor_file(const std::string& path, const TensorFile& file);

/// Reads it once. The tensors share one memory of the file's size.
/// @throws Error (3) if it is no safetensors file, or its checksum (over all of it) does not match
TensorFile read_tensor_file(const std::string& path);

/// Its text alone, without a look at the rest. @throws as read_tensor_file()
std::map<std::string, std::string> read_tensor_file_metadata(const std::string& path);

/// The tensors of these names, as memory: of the data only what is looked at is read, and nobody
/// may write to it. Needs no checksum, which would have all of it read.
/// @throws UsageError naming the file, what is wrong with it and what was expected
TensorFile map_tensor_file(const std::string& path, const std::vector<std::string>& names);

}  // namespace ddp
