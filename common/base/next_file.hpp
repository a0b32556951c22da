// common/base/next_file.hpp - a file that is written whole or not at all.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "common/base/process.hpp"

namespace ddp {

/// The next version of the file at a path, beside it until it takes its place. Locked meanwhile.
class NextFile {
 public:
  /// Removes what writers of `path` that were killed have left. Living ones hold a lock.
  /// @param what it is, "snapshot", and `bytes` that will be written: for messages
  /// @throws Error (1), as all of it does, with the path and the reason
  NextFile(const std::string& what, const std::string& path, size_t bytes);
  ~NextFile();
  NextFile(const NextFile&) = delete;
  NextFile& operator=(const NextFile&) = delete;

  /// Where it is until then.
  const std::string& temporary() const { return temporary_; }
  void write(std::string_view bytes);
  void overwrite(off_t position, std::string_view bytes);
  /// On disk when it returns.
  /// @param keep_old whether the file that is there becomes PATH.prev
  void take_place(bool keep_old);

 private:
  /// @param error an errno
  [[noreturn]] void fail(int error) const;
  bool lock() const;
  void keep_old_file() const;
  int give_second_name() const;
  void sync_folder() const;

  const std::string what_;
  const std::string path_;
  const size_t bytes_;
  std::string temporary_;
  FileDescriptor file_;
  off_t end_ = 0;
  bool in_place_ = false;
};

}  // namespace ddp
