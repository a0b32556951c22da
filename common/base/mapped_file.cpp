#include "common/base/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "common/base/process.hpp"
#include "common/base/refuse.hpp"
#include "common/base/uninterrupted.hpp"

namespace ddp {
namespace {

const auto kPageBytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));

}  // namespace

void expect_random_reads(const void* data, size_t bytes) {
  if (bytes / kPageBytes <= static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) / 2) {
    return;  // it fits, and is read sooner with what lies beside
  }
  const size_t before = reinterpret_cast<uintptr_t>(data) % kPageBytes;
  madvise(static_cast<char*>(const_cast<void*>(data)) - before, before + bytes, MADV_RANDOM);
}

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
}

MappedFile::~MappedFile() {
  munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

}  // namespace ddp
