#include "common/base/next_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>

#include "common/base/exit_codes.hpp"
#include "common/base/uninterrupted.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;

fs::path folder_with(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : ".";
}

/// "PATH.tmp." and random digits: a process that was killed may have left one, and process numbers
/// repeat, above all in containers. See kSnapshotSuffixBytes.
std::string temporary_name(const std::string& path) {
  std::random_device random;
  return fmt::format("{}.tmp.{:08x}{:08x}", path, random(), random());
}

/// Whether it is a temporary_name() of the file `base` or of the one kept before it.
bool is_temporary(const fs::path& name, const std::string& base) {
  const fs::path stem = name.stem();
  const std::string digits = name.extension();  // with a dot before them
  return (stem == base + ".tmp" || stem == base + ".prev.tmp") && digits.size() == 17 &&
         digits.find_first_not_of("0123456789abcdef", 1) == std::string::npos;
}

void remove_temporaries(const fs::path& path) {
  std::error_code error;
  for (fs::directory_iterator entry(folder_with(path), error), end; !error && entry != end;
       entry.increment(error)) {
    if (!is_temporary(entry->path().filename(), path.filename())) {
      continue;
    }
    const int fd = open(entry->path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) {
      if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        unlink(entry->path().c_str());
      }
      close(fd);
    }
  }
}

}  // namespace

NextFile::NextFile(const std::string& what, const std::string& path, size_t bytes)
    : what_(what), path_(path), bytes_(bytes) {
  remove_temporaries(path);
  do {
    temporary_ = temporary_name(path);
    file_.reset(uninterrupted([this] {
      return open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    }));
    if (!file_.is_open()) {
      fail(errno);
    }
  } while (!lock());
}

NextFile::~NextFile() {
  if (!in_place_) {
    unlink(temporary_.c_str());
  }
}

void NextFile::write(std::string_view bytes) {
  overwrite(end_, bytes);
  end_ += static_cast<off_t>(bytes.size());
}

void NextFile::overwrite(off_t position, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        uninterrupted([&] { return pwrite(file_.get(), bytes.data(), bytes.size(), position); });
    if (written <= 0) {
      fail(written < 0 ? errno : EIO);
    }
    bytes.remove_prefix(static_cast<size_t>(written));
    position += written;
  }
}

void NextFile::take_place(bool keep_old) {
  if (uninterrupted([this] { return fsync(file_.get()); }) != 0) {
    fail(errno);
  }
  if (keep_old) {
    keep_old_file();
  }
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail(errno);
  }
  in_place_ = true;
  sync_folder();
}

void NextFile::fail(int error) const {
  const bool lacks_room = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throw Error(ExitCode::kTrainingFailed,
              fmt::format("{} {} cannot be written: {}{}", what_, path_, std::strerror(error),
                          lacks_room ? fmt::format(", expected room for {} bytes", bytes_) : ""));
}

/// @return false if another run that saves under this name has taken the new file for a leftover.
/// Where there are no locks nobody removes leftovers.
bool NextFile::lock() const {
  const auto try_lock = [this] { return flock(file_.get(), LOCK_EX | LOCK_NB); };
  return (uninterrupted(try_lock) == 0 || errno != EWOULDBLOCK) &&
         (access(temporary_.c_str(), F_OK) == 0 || errno != ENOENT);
}

void NextFile::keep_old_file() const {
  int error = 0;
  do {
    error = give_second_name();
    // Of another run with this name: it has replaced the old file, or removed its second name.
  } while (error == ENOENT && access(path_.c_str(), F_OK) == 0);
  if (error != 0 && error != ENOENT) {
    fail(error);
  }
}

/// To the old file, before it loses its own: there is always a file at `path`.
/// @return an errno, or 0
int NextFile::give_second_name() const {
  const std::string previous = path_ + ".prev";
  const std::string second_name = temporary_name(previous);
  if (link(path_.c_str(), second_name.c_str()) == 0) {
    const int error = rename(second_name.c_str(), previous.c_str()) == 0 ? 0 : errno;
    unlink(second_name.c_str());  // still there if that failed, or both were one file already
    return error;
  }
  if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS || errno == EMLINK) {
    // No links on this file system. Whoever is killed now resumes from the old file all the same.
    return rename(path_.c_str(), previous.c_str()) == 0 ? 0 : errno;
  }
  return errno;
}

void NextFile::sync_folder() const {
  const FileDescriptor folder(uninterrupted(
      [this] { return open(folder_with(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  // A folder that may be written but not read cannot be synced, nor can one of some file systems.
  if (!folder.is_open() && errno != EACCES) {
    fail(errno);
  }
  if (folder.is_open() && uninterrupted([&] { return fsync(folder.get()); }) != 0 &&
      errno != EINVAL) {
    fail(errno);
  }
}

}  // namespace ddp
