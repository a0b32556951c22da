#include "common/base/private_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "common/base/process.hpp"
#include "common/base/refuse.hpp"

namespace ddp {
namespace {

constexpr int kCreate = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
constexpr mode_t kOwnerOnly = 0600;
constexpr unsigned kMfdNoexecSeal = 8;  // newer than the C library's headers may be

[[noreturn]] void cannot_make(const std::string& path) {
  throw TransientError(fmt::format("cannot make {}: {}", path, std::strerror(errno)));
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
    refuse(
        "{}: cannot be opened as a folder ({}), expected one of this user's own; TMPDIR names "
        "another place",
        folder, std::strerror(errno));
  }
  if (status.st_uid != geteuid() || (status.st_mode & kOfOthers) != 0) {
    refuse(
        "{}: got a folder of user {} with mode {:o}, expected user {} and mode 700; TMPDIR names "
        "another place",
        folder, status.st_uid, status.st_mode & ~static_cast<mode_t>(S_IFMT), geteuid());
  }
  return opened.release();
}

/// A lock that belongs to an open file and goes when its last descriptor does.
struct flock first_byte() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  return lock;
}

bool is_held(int file) {
  struct flock lock = first_byte();
  return fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

int open_in(const FileDescriptor& folder, const std::string& name) {
  return openat(folder.get(), name.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
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

int offer_meeting_file(const std::string& path) {
  const std::filesystem::path whole(path);
  const std::string name = whole.filename();
  const std::string unnamed_yet = name + ".new";
  const std::string folder = whole.parent_path();
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    cannot_make(folder);
  }
  const FileDescriptor inside(open_folder(folder));
  if (const FileDescriptor before(open_in(inside, name)); is_held(before.get())) {
    throw TransientError(path + " is in use, expected one rank 0 that makes it");
  }
  unlinkat(inside.get(), unnamed_yet.c_str(), 0);
  FileDescriptor file(openat(inside.get(), unnamed_yet.c_str(), kCreate, kOwnerOnly));
  struct flock lock = first_byte();
  // Under its name it is locked from the first moment on.
  if (!file.is_open() || fcntl(file.get(), F_OFD_SETLK, &lock) != 0 ||
      renameat(inside.get(), unnamed_yet.c_str(), inside.get(), name.c_str()) != 0) {
    cannot_make(path);
  }
  return file.release();
}

int open_meeting_file(const std::string& path) {
  const std::filesystem::path whole(path);
  const FileDescriptor inside(open_folder(whole.parent_path()));
  FileDescriptor file(inside.is_open() ? open_in(inside, whole.filename()) : -1);
  return is_held(file.get()) ? file.release() : -1;
}

void remove_meeting_file(const std::string& path) {
  unlink(path.c_str());
  rmdir(std::filesystem::path(path).parent_path().c_str());
}

}  // namespace ddp
