// common/base/byte_lock.hpp - locks on single bytes of an open file, which say that somebody has
// it.
#pragma once

#include <fcntl.h>

#include <cstdio>

namespace ddp {

/// Belongs to the open file, and goes when its last descriptor does, however a process ends.
inline struct flock byte_lock(int byte) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

/// @return false and errno if another one has it, or the file system has no locks
inline bool try_byte_lock(int file, int byte) {
  struct flock lock = byte_lock(byte);
  return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

/// @param if_unknown the answer where none can be had
inline bool is_byte_locked(int file, int byte, bool if_unknown) {
  struct flock lock = byte_lock(byte);
  return fcntl(file, F_OFD_GETLK, &lock) == 0 ? lock.l_type != F_UNLCK : if_unknown;
}

}  // namespace ddp
