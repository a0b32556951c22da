// common/training/event_file.hpp - the event files that TensorBoard shows (--tensorboard).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/process.hpp"

namespace ddp {

/// CRC-32C, the checksum of TFRecord files. zlib's is that of another polynomial.
uint32_t crc32c(std::string_view bytes);

/// A file of scalars in TensorFlow's format: records with checksums, each an Event message of
/// event.proto. Only the few fields that scalars need are written, so no protobuf is needed.
class EventFile {
 public:
  /// Makes a new file in `folder`, and the folder if it is not there. What other files there hold
  /// from `first_step` on TensorBoard forgets: those steps come anew.
  /// @throws Error (1) if that is not possible, as does flush()
  EventFile(const std::string& folder, int64_t first_step);

  void add(std::string_view tag, int64_t step, double value);
  /// Writes what was added since the last time.
  void flush();

 private:
  void add_event(int64_t step, const std::string& what);
  [[noreturn]] void fail(const std::string& why) const;

  std::string path_;
  FileDescriptor file_;
  std::string unwritten_;
};

}  // namespace ddp
