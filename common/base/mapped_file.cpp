#include "common/base/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/base/process.hpp"
#include "common/base/refuse.hpp"
#include "common/base/uninterrupted.hpp"

namespace ddp {
namespace {

bool is_larger_than_half_of_memory(size_t bytes) {
  const auto pages = static_cast<size_t>(sysconf(_SC_PHYS_PAGES));
  return bytes / static_cast<size_t>(sysconf(_SC_PAGESIZE)) > pages / 2;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  // Without waiting for the other end, if it is a pipe.
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
  if (is_larger_than_half_of_memory(size)) {
    // Samples are read in random order, and what the system reads ahead would be dropped again
    // before anybody wants it. A file that fits is read sooner with reading ahead.
    madvise(memory, size, MADV_RANDOM);
  }
}

MappedFile::~MappedFile() {
  munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

}  // namespace ddp
