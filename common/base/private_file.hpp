// common/base/private_file.hpp - files that no other user of the machine can read, replace or have
// put there before.
#pragma once

#include <string>

#include "common/base/process.hpp"

namespace ddp {

/// Creates `path` with mode 0600 where nothing is yet, not even a link.
/// @return its descriptor, which the caller closes
/// @throws TransientError if it cannot be made
int create_private_file(const std::string& path);

/// Memory as a file without a name, which can be sealed and is not for executing.
/// @return its descriptor, which the caller closes; -1 and errno if it cannot be made
int create_nameless_file();

/// The path of a file by which processes of this user on this host meet: alone in a folder below
/// `parent` that is named after `meeting`, which no other one of this user has for a name.
std::string meeting_file_path(const std::string& parent, const std::string& meeting);

/// The one of several processes that makes the file. Beside it lies one that is locked, so that
/// others can tell it from what a process left that was killed; of that the next one takes away
/// what it finds. While the file is there it has room for what the ranks write.
class MeetingFile {
 public:
  /// @param path by meeting_file_path()
  /// @throws UsageError if the folder cannot be made, is somebody else's or others can enter it
  /// @throws TransientError if another process holds the file, or there is no room for it
  explicit MeetingFile(const std::string& path);
  /// Takes the file's name and its folder away. Descriptors stay good.
  ~MeetingFile();
  MeetingFile(const MeetingFile&) = delete;
  MeetingFile& operator=(const MeetingFile&) = delete;

  int get() const { return file_.get(); }

 private:
  std::string path_;
  FileDescriptor held_;  ///< the lock goes with it
  FileDescriptor file_;
};

/// For the other processes.
/// @return a descriptor, which the caller closes; -1: nobody holds the file (yet, or any more)
/// @throws UsageError as above
int open_meeting_file(const std::string& path);

}  // namespace ddp
