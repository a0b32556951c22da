#include "common/base/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "common/base/parse.hpp"

namespace ddp {

namespace {

/// True if the data is on the disk, or the file system or its server offers no such promise.
bool sync(const FileDescriptor& file) {
  return uninterrupted([&file] { return fsync(file.get()); }) == 0 || errno == EINVAL ||
         errno == ENOSYS || errno == EOPNOTSUPP || errno == EPERM;
}

}  // namespace

void FileDescriptor::reset(int fd) {
  if (fd_ >= 0) {
    ::close(fd_);
  }
  fd_ = fd;
}

NextFile::NextFile(const std::string& what, const std::string& path, size_t bytes)
    : what_(what), path_(path), bytes_(bytes) {
  std::random_device random;
  temporary_ = fmt::format("{}.tmp.{:08x}{:08x}", path, random(), random());
  file_.reset(uninterrupted([this] {
    return open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  }));
  if (!file_.is_open()) {
    fail(errno);
  }
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
  if (!sync(file_)) {
    fail(errno);
  }
  if (keep_old) {  // linked before the rename, so that there is always a file at `path`
    const std::string previous = path_ + ".prev";
    unlink(previous.c_str());
    // Without links on this file system there is a moment without a file at `path`.
    if (link(path_.c_str(), previous.c_str()) != 0 && errno != ENOENT &&
        rename(path_.c_str(), previous.c_str()) != 0) {
      fail(errno);
    }
  }
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail(errno);
  }
  in_place_ = true;
  const std::string folder = std::filesystem::path(path_).parent_path();
  const FileDescriptor opened(
      open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.is_open() && !sync(opened)) {  // not a folder that may not be read
    fail(errno);
  }
}

void NextFile::fail(int error) const {
  const bool lacks_room = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throw Error(ExitCode::kTrainingFailed,
              fmt::format("{} {} cannot be written: {}{}", what_, path_, std::strerror(error),
                          lacks_room ? fmt::format(", expected room for {} bytes", bytes_) : ""));
}

void replace_file(const std::string& what, const std::string& path, std::string_view bytes) {
  NextFile next(what, path, bytes.size());
  next.write(bytes);
  next.take_place(/*keep_old=*/false);
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void expect_random_reads(const void* data, size_t bytes) {
  static const auto kPageBytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (bytes / kPageBytes <= static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) / 2) {
    return;  // it fits in memory, and read-ahead makes reading faster
  }
  const size_t before = reinterpret_cast<uintptr_t>(data) % kPageBytes;
  madvise(static_cast<char*>(const_cast<void*>(data)) - before, before + bytes, MADV_RANDOM);
}

MappedFile::MappedFile(const std::string& path) {
  // O_NONBLOCK: opening a pipe does not wait for its other end.
  const FileDescriptor file(
      uninterrupted([&] { return open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); }));
  struct stat status {};
  if (!file.is_open() || fstat(file.get(), &status) != 0) {
    refuse("data file {} cannot be opened: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    refuse("data file {} is no regular file, expected one", path);
  }
  if (status.st_size == 0) {
    refuse("data file {} holds 0 bytes, expected data", path);
  }
  const auto size = static_cast<size_t>(status.st_size);
  void* const memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) {
    refuse("data file {} of {} bytes cannot be mapped: {}", path, size, std::strerror(errno));
  }
  bytes_ = {static_cast<const char*>(memory), size};
}

MappedFile::~MappedFile() {
  munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

ScratchFolder::ScratchFolder(const std::string& name) {
  const char* const tmpdir = std::getenv("TMPDIR");
  const std::string folder = tmpdir == nullptr || *tmpdir == '\0' ? "/tmp" : tmpdir;
  path_ = std::filesystem::absolute(folder) / (name + "-XXXXXX");
  if (mkdtemp(path_.data()) == nullptr) {
    refuse("TMPDIR: got {}, expected a folder in which this user can make files ({})",
           quote(folder), std::strerror(errno));
  }
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace ddp
