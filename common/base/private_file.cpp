#include "common/base/private_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "common/base/byte_lock.hpp"
#include "common/base/refuse.hpp"

namespace ddp {
namespace {

constexpr int kCreate = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
constexpr mode_t kOwnerOnly = 0600;
constexpr const char* kFileName = "store";
constexpr unsigned kMfdNoexecSeal = 8;  // newer than the C library's headers may be

constexpr const char* kLockSuffix = ".held";

[[noreturn]] void cannot_make(const std::string& path) {
  throw TransientError(fmt::format("cannot make {}: {}", path, std::strerror(errno)));
}

[[noreturn]] void cannot_be_used(const std::string& folder, const std::string& why) {
  refuse(
      "{}: {}, expected a folder of user {} with mode 700 on a file system with locks; TMPDIR "
      "names another place",
      folder, why, geteuid());
}

/// @return -1 if it is not there
/// @throws UsageError unless this user, and nobody else, can enter the folder
int open_folder(const std::string& folder) {
  constexpr mode_t kOfOthers = 077;
  FileDescriptor opened(open(folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened.is_open() && errno == ENOENT) {
    return -1;
  }
  struct stat status {};
  if (!opened.is_open() || fstat(opened.get(), &status) != 0) {
    cannot_be_used(folder, fmt::format("cannot be opened as one ({})", std::strerror(errno)));
  }
  if (status.st_uid != geteuid() || (status.st_mode & kOfOthers) != 0) {
    cannot_be_used(folder, fmt::format("got one of user {} with mode {:o}", status.st_uid,
                                       status.st_mode & ~static_cast<mode_t>(S_IFMT)));
  }
  return opened.release();
}

/// Of a file of their own: c10d's FileStore uses flock(), which network file systems do not keep
/// apart from these.
enum Byte { kTaken, kReady };

/// @return false if another process has
/// @throws UsageError if it cannot be locked there
bool try_lock(int file, Byte byte, const std::string& folder) {
  if (try_byte_lock(file, byte)) {
    return true;
  }
  if (errno != EAGAIN && errno != EACCES) {
    cannot_be_used(folder, fmt::format("cannot be locked in ({})", std::strerror(errno)));
  }
  return false;
}

std::string folder_prefix() {
  return fmt::format("ddp-store-{}-", geteuid());
}

std::string folder_of(const std::string& path) {
  return std::filesystem::path(path).parent_path();
}

/// Of processes that were killed: nobody comes by their folders' names again.
void remove_leftovers(const std::filesystem::path& parent) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(parent, error)) {
    if (!entry.path().filename().native().starts_with(folder_prefix())) {
      continue;
    }
    const std::string path = entry.path() / kFileName;
    const std::string held_path = path + kLockSuffix;
    const FileDescriptor held(open(held_path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
    struct stat status {};
    if (held.is_open() && fstat(held.get(), &status) == 0 && status.st_uid == geteuid() &&
        try_byte_lock(held.get(), kTaken)) {
      unlink(path.c_str());
      unlink(held_path.c_str());
      rmdir(entry.path().c_str());
    }
  }
}

}  // namespace

int create_private_file(const std::string& path) {
  const int file = open(path.c_str(), kCreate, kOwnerOnly);
  if (file < 0) {
    cannot_make(path);
  }
  return file;
}

int create_nameless_file() {
  // Executable memory is refused where vm.memfd_noexec says so; older kernels lack the flag.
  constexpr const char* kName = "ddp-cpp";
  const int fd = memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING | kMfdNoexecSeal);
  return fd >= 0 || errno != EINVAL ? fd : memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

std::string meeting_file_path(const std::string& parent, const std::string& meeting) {
  return fmt::format("{}/{}{}/{}", parent, folder_prefix(), meeting, kFileName);
}

MeetingFile::MeetingFile(const std::string& path) : path_(path) {
  constexpr int kAttempts = 16;
  const std::string folder = folder_of(path);
  const std::string held_path = path + kLockSuffix;
  remove_leftovers(std::filesystem::path(folder).parent_path());
  struct stat status {};
  for (int attempt = 0; status.st_nlink == 0; ++attempt) {
    // Another one that takes leftovers away may hold it for a moment, or have removed it.
    if (attempt == kAttempts) {
      throw TransientError(path + " is in use, expected one rank 0 that makes it");
    }
    if (attempt > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      cannot_be_used(folder, fmt::format("cannot be made ({})", std::strerror(errno)));
    }
    const FileDescriptor inside(open_folder(folder));
    held_.reset(open(held_path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, kOwnerOnly));
    if (inside.is_open() && held_.is_open() && try_lock(held_.get(), kTaken, folder)) {
      fstat(held_.get(), &status);
    }
  }
  unlink(path.c_str());
  file_.reset(create_private_file(path));
  // What is not there when it is written would leave half an entry, for which c10d waits for ever.
  constexpr off_t kRoomBytes = 1 << 20;
  if (fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, 0, kRoomBytes) != 0 && errno != EOPNOTSUPP) {
    const int reason = errno;
    unlink(path.c_str());
    errno = reason;
    cannot_make(path);
  }
  try_lock(held_.get(), kReady, folder);
}

MeetingFile::~MeetingFile() {
  unlink(path_.c_str());
  unlink((path_ + kLockSuffix).c_str());
  rmdir(folder_of(path_).c_str());
}

int open_meeting_file(const std::string& path) {
  const FileDescriptor inside(open_folder(folder_of(path)));
  if (!inside.is_open()) {
    return -1;
  }
  const std::string held_path = path + kLockSuffix;
  const FileDescriptor held(open(held_path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  return is_byte_locked(held.get(), kReady, /*if_unknown=*/false)
             ? open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC)
             : -1;
}

}  // namespace ddp
