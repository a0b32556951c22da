// common/base/mapped_file.hpp - a file as memory: pages are read when they are looked at.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddp {

/// Of mapped memory that will be looked at here and there: what the system reads beside it would be
/// dropped again before anybody wants it, unless all of it fits into memory.
void expect_random_reads(const void* data, size_t bytes);

/// Read only. The pages belong to the system's cache: all processes of a machine share them, and it
/// drops them when memory is short. A file that somebody cuts meanwhile ends the process (SIGBUS).
class MappedFile {
 public:
  /// @throws UsageError naming the file if it cannot be read, is empty or no regular file
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return bytes_; }

 private:
  std::string_view bytes_;
};

}  // namespace ddp
