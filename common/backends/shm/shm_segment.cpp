#include "common/backends/shm/shm_segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "common/base/byte_lock.hpp"
#include "common/base/private_file.hpp"

namespace ddp::shm {
namespace {

constexpr const char* kFolder = "/dev/shm";
constexpr const char* kNamePrefix = "ddp-cpp-";
constexpr int kNameAttempts = 16;
constexpr int kMadvPopulateWrite = 23;  // newer than the C library's headers may be

std::string mebibytes(size_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

std::string because(int error) {
  return fmt::format(" ({})", std::strerror(error));
}

/// The lock on byte 0 says that the name is in use. Whoever removes stale names takes it first, so
/// a name that was removed between its creation and the lock is given up here.
int create_named(std::string& name) {
  for (int attempt = 0; attempt < kNameAttempts; ++attempt) {
    uint64_t random = 0;
    if (getrandom(&random, sizeof(random), 0) != sizeof(random)) {
      return -1;
    }
    const std::string candidate = fmt::format("/{}{:016x}", kNamePrefix, random);
    const int fd = shm_open(candidate.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0 && errno == EEXIST) {
      continue;
    }
    if (fd < 0) {
      return -1;
    }
    struct stat status {};
    if (try_byte_lock(fd, 0) && fstat(fd, &status) == 0 && status.st_nlink > 0) {
      name = candidate;
      return fd;
    }
    shm_unlink(candidate.c_str());
    close(fd);
  }
  errno = EEXIST;
  return -1;
}

}  // namespace

int remove_stale_names() {
  int removed = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder, error)) {
    const std::string file = entry.path().filename().string();
    if (file.rfind(kNamePrefix, 0) != 0) {
      continue;
    }
    const int fd = open(entry.path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat status {};
    if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
        status.st_uid == geteuid() && try_byte_lock(fd, 0)) {
      removed += unlink(entry.path().c_str()) == 0;
    }
    if (fd >= 0) {
      close(fd);
    }
  }
  return removed;
}

Segment::Segment(int world_size, size_t part_bytes) : world_size_(world_size) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  stride_bytes_ = (part_bytes + page - 1) / page * page;
  total_bytes_ = stride_bytes_ * static_cast<size_t>(world_size);
}

Segment::~Segment() {
  if (!name_.empty()) {
    shm_unlink(name_.c_str());
  }
  if (base_ != nullptr) {
    munmap(base_, total_bytes_);
  }
  if (fd_ >= 0) {
    close(fd_);
  }
}

std::vector<std::byte*> Segment::parts() const {
  std::vector<std::byte*> all;
  for (int rank = 0; rank < world_size_; ++rank) {
    all.push_back(part(rank));
  }
  return all;
}

bool Segment::is_held_by(int rank) const {
  return is_byte_locked(fd_, rank, /*if_unknown=*/true);
}

std::string Segment::create_file(Sharing way) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < total_bytes_) {
    // The kernel would send SIGXFSZ.
    return fmt::format(
        "!cannot make {} of shared memory: the limit of a file's size (ulimit -f) is {}",
        mebibytes(total_bytes_), mebibytes(limit.rlim_cur));
  }
  if (way == Sharing::kName) {
    remove_stale_names();
  }
  fd_ = way == Sharing::kDescriptor ? create_nameless_file() : create_named(name_);
  struct stat status {};
  if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(total_bytes_)) != 0 ||
      fstat(fd_, &status) != 0) {
    const char* what =
        way == Sharing::kDescriptor ? "nameless shared memory" : "a file in /dev/shm";
    return fmt::format("!cannot make {}{}", what, because(errno));
  }
  if (way == Sharing::kDescriptor) {
    // Another process that shortened it would be our SIGBUS.
    fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  }
  return fmt::format("{} {} {} {} {}", getpid(), fd_, status.st_dev, status.st_ino, name_);
}

std::string Segment::reserve(int rank) const {
  const off_t begin = static_cast<off_t>(stride_bytes_) * rank;
  int result = 0;
  do {
    result = fallocate(fd_, 0, begin, static_cast<off_t>(stride_bytes_));
  } while (result != 0 && errno == EINTR);
  if (result == 0) {
    return "";
  }
  std::string problem =
      fmt::format("cannot reserve {} of shared memory{}", mebibytes(stride_bytes_), because(errno));
  struct statvfs space {};
  if (!name_.empty() && statvfs(kFolder, &space) == 0) {
    problem += fmt::format("; {} has {} free", kFolder, mebibytes(space.f_bavail * space.f_frsize));
  }
  return problem;
}

std::string Segment::attach(const std::string& offer, int rank) {
  if (offer.empty() || offer[0] == '!') {
    return offer.substr(offer.empty() ? 0 : 1);
  }
  std::istringstream fields(offer);
  long pid = 0;
  int fd = -1;
  dev_t device = 0;
  ino_t inode = 0;
  std::string name;
  fields >> pid >> fd >> device >> inode >> name;
  if (fd_ < 0) {
    const std::string path = name.empty() ? fmt::format("/proc/{}/fd/{}", pid, fd) : kFolder + name;
    fd_ = open(path.c_str(), O_RDWR | O_CLOEXEC | (name.empty() ? 0 : O_NOFOLLOW));
    struct stat status {};
    if (fd_ < 0) {
      return fmt::format("cannot open {}{}", path, because(errno));
    }
    if (fstat(fd_, &status) != 0 || status.st_dev != device || status.st_ino != inode) {
      return path + " is not rank 0's memory: the processes see different process numbers";
    }
    if (status.st_uid != geteuid()) {
      return fmt::format("{} belongs to user {}, expected user {}", path, status.st_uid, geteuid());
    }
  }
  name_ = name;  // for reserve()'s message; only rank 0 removes it
  void* const mapped = mmap(nullptr, total_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (mapped == MAP_FAILED) {
    return fmt::format("cannot map {} of shared memory{}", mebibytes(total_bytes_), because(errno));
  }
  base_ = static_cast<std::byte*>(mapped);
  std::string problem = reserve(rank);
  if (rank != 0) {
    name_.clear();
  }
  // Rank 0's named file is locked already; to lock it again is no error.
  if (problem.empty() && !try_byte_lock(fd_, rank)) {
    problem = "cannot lock its part of the shared memory" + because(errno);
  }
  return problem;
}

std::shared_ptr<Segment> Segment::create(const Exchange& exchange, int rank, int world_size,
                                         size_t part_bytes, const std::vector<Sharing>& ways) {
  std::string problems;
  for (const Sharing way : ways) {
    const std::shared_ptr<Segment> segment(new Segment(world_size, part_bytes));
    const std::string offer = exchange(rank == 0 ? segment->create_file(way) : "").at(0);
    const std::vector<std::string> outcomes = exchange(segment->attach(offer, rank));
    if (!segment->name_.empty()) {
      shm_unlink(segment->name_.c_str());
      segment->name_.clear();
    }
    std::string problem;
    for (size_t r = 0; r < outcomes.size() && problem.empty(); ++r) {
      if (!outcomes[r].empty()) {
        problem = "rank " + std::to_string(r) + " " + outcomes[r];
      }
    }
    if (problem.empty()) {
      // Page tables now, so that no step takes a fault; older kernels fill them at first use.
      madvise(segment->base_, segment->total_bytes_, kMadvPopulateWrite);
      return segment;
    }
    if (problems.find(problem) == std::string::npos) {
      problems += (problems.empty() ? "" : "; ") + problem;
    }
  }
  throw SegmentError(problems);
}

}  // namespace ddp::shm
