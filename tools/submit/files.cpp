// tools/submit/files.cpp - files and folders that appear whole or not at all, without locks.
#include "tools/submit/files.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "common/base/exit_codes.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& what, const std::string& path, int error) {
  throw Error(ExitCode::kTrainingFailed, "cannot " + what + " " + quote_path(path) + ": " +
                                             std::generic_category().message(error) +
                                             ", expected an out_dir that can be written");
}

/// "a/b" -> "a/.b.<random>"
std::string temporary_name(const std::string& path) {
  const fs::path whole = path;
  return (whole.parent_path() / ("." + whole.filename().string() + "." + random_id())).string();
}

void sync(int fd, const std::string& path) {
  const int error = fd < 0 || fsync(fd) != 0 ? errno : 0;
  if (fd >= 0) {
    close(fd);
  }
  if (error != 0) {
    fail("write", path, error);
  }
}

void sync_folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  sync(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), folder);
}

void write_new_file(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) {
    fail("write", path, errno);
  }
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = write(fd, text.data() + done, text.size() - done);
    if (count < 0 && errno != EINTR) {
      const int error = errno;
      close(fd);
      unlink(path.c_str());
      fail("write", path, error);
    }
    done += count < 0 ? 0 : static_cast<std::size_t>(count);
  }
  sync(fd, path);
}

}  // namespace

void replace_file(const std::string& path, const std::string& text) {
  const std::string temporary = temporary_name(path);
  write_new_file(temporary, text);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(temporary.c_str());
    fail("write", path, error);
  }
}

bool create_file(const std::string& path, const std::string& text) {
  const std::string temporary = temporary_name(path);
  write_new_file(temporary, text);
  // A link, because a rename would replace what is there.
  int error = link(temporary.c_str(), path.c_str()) == 0 ? 0 : errno;
  struct stat status = {};
  if (error != 0 && stat(temporary.c_str(), &status) == 0 && status.st_nlink == 2) {
    error = 0;  // a file server's answer was lost, and the second try found the first one's work
  }
  unlink(temporary.c_str());
  if (error != 0 && error != EEXIST) {
    fail("write", path, error);
  }
  sync_folder_of(path);
  return error == 0;
}

bool create_folder(const std::string& folder, const std::string& file, const std::string& text) {
  const std::string temporary = temporary_name(folder);
  if (mkdir(temporary.c_str(), 0755) != 0) {
    fail("make", temporary, errno);
  }
  write_new_file(temporary + "/" + file, text);
  sync_folder_of(temporary + "/" + file);
  // A folder that has something in it is never replaced.
  const int error = std::rename(temporary.c_str(), folder.c_str()) == 0 ? 0 : errno;
  if (error != 0) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
  }
  if (error != 0 && error != EEXIST && error != ENOTEMPTY) {
    fail("make", folder, error);
  }
  sync_folder_of(folder);
  return error == 0;
}

void make_folders(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    fail("make", folder, error.value());
  }
}

std::string random_id() {
  std::uint64_t bits = 0;
  if (getrandom(&bits, sizeof(bits), 0) != static_cast<ssize_t>(sizeof(bits))) {
    throw Error(ExitCode::kTrainingFailed,
                "no random numbers: " + std::generic_category().message(errno));
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016" PRIx64, bits);
  return text;
}

}  // namespace ddp::submit
