// common/base/private_file.hpp - files that no other user of the machine can read, replace or have
// put there before.
#pragma once

#include <string>

namespace ddp {

/// Creates `path` with mode 0600 where nothing is yet, not even a link.
/// @return its descriptor, which the caller closes
/// @throws TransientError if it cannot be made
int create_private_file(const std::string& path);

/// Memory as a file without a name, which can be sealed and is not for executing.
/// @return its descriptor, which the caller closes; -1 and errno if it cannot be made
int create_nameless_file();

/// For the one of several processes on a host that makes the file by which they meet: an empty one
/// in a folder of its own, which is made with mode 0700.
/// @param path absolute; the folder's name must be none that a second meeting would have
/// @return its descriptor, which the caller closes. As long as that is open the file is no leftover
/// @throws UsageError if the folder is somebody else's or others can enter it
/// @throws TransientError if another process has made the file and still holds it
int offer_meeting_file(const std::string& path);

/// For the others.
/// @return a descriptor, which the caller closes; -1: nobody offers the file (any more)
/// @throws UsageError as above
int open_meeting_file(const std::string& path);

/// Takes the file's name and its folder away. Descriptors stay good.
void remove_meeting_file(const std::string& path);

}  // namespace ddp
