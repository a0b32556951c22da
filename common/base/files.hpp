// common/base/files.hpp - files written atomically, mapped files, temporary folders.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>

namespace ddp {

/// Repeats `call` while it returns a negative number and errno is EINTR. @return its result
template <typename Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) {
    result = call();
  }
  return result;
}

/// A file descriptor that is closed when its owner goes.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  ~FileDescriptor() { reset(); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void reset(int fd = -1);  ///< closes the old descriptor

 private:
  int fd_;
};

/// New version of the file at `path`, written beside it and then renamed to `path`. Its name until
/// then is random, so that no other program has a file, a pipe or a link of that name.
class NextFile {
 public:
  /// @param what kind of file, "snapshot", for messages @param bytes its size, for messages
  /// @throws Error (1) with the path and the reason, as all members do
  NextFile(const std::string& what, const std::string& path, size_t bytes);
  ~NextFile();

  void write(std::string_view bytes);
  void overwrite(off_t position, std::string_view bytes);
  /// Renames the file to `path`. When the call returns, the file is on disk.
  /// @param keep_old the file at `path` becomes PATH.prev
  void take_place(bool keep_old);

 private:
  [[noreturn]] void fail(int error) const;  ///< `error` is an errno

  const std::string what_;
  const std::string path_;
  const size_t bytes_;
  std::string temporary_;
  FileDescriptor file_;
  off_t end_ = 0;
  bool in_place_ = false;
};

/// Writes a NextFile of these bytes.
void replace_file(const std::string& what, const std::string& path, std::string_view bytes);

/// Content of a file; empty if it cannot be read.
std::string read_text(const std::string& path);

/// Turns read-ahead off for mapped memory that is larger than half of the machine's and is read in
/// random order: the pages read ahead would be dropped before their turn.
void expect_random_reads(const void* data, size_t bytes);

/// Read-only view of a file. The pages belong to the system's cache: all processes of a machine
/// share them, and the kernel drops them when memory is short. A file that is truncated meanwhile
/// ends the process (SIGBUS).
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

class ScratchFolder {
 public:
  /// Below TMPDIR, else /tmp, with mode 0700. @throws UsageError if it cannot be made
  explicit ScratchFolder(const std::string& name);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }  ///< absolute, for processes in other folders

 private:
  std::string path_;
};

}  // namespace ddp
