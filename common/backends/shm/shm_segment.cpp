#include "common/backends/shm/shm_segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <cstring>
#include <sstream>

namespace ddp::shm {
namespace {

constexpr int kMadvPopulateWrite = 23;  // missing in old headers of the C library

std::string because(int error) {
  return fmt::format(" ({})", std::strerror(error));
}

/// Lock of an open file on a single byte (OFD lock).
struct flock lock_of_byte(int byte) {
  return {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1, .l_pid = 0};
}

}  // namespace

Segment::Segment(int world_size, size_t part_bytes) : world_size_(world_size) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  stride_bytes_ = (part_bytes + page - 1) / page * page;
  total_bytes_ = stride_bytes_ * static_cast<size_t>(world_size);
}

Segment::~Segment() {
  if (base_ != nullptr) {
    munmap(base_, total_bytes_);
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
  struct flock lock = lock_of_byte(rank);
  return fcntl(file_.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

std::string Segment::make_memory() {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < total_bytes_) {
    // Beyond the limit for file sizes the kernel would send SIGXFSZ.
    return fmt::format("!cannot make {} MiB of shared memory: ulimit -f allows files of {} MiB",
                       total_bytes_ >> 20, limit.rlim_cur >> 20);
  }
  file_.reset(memfd_create("ddp-cpp", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  struct stat status {};
  if (!file_.is_open() || ftruncate(file_.get(), static_cast<off_t>(total_bytes_)) != 0 ||
      fstat(file_.get(), &status) != 0) {
    return "!cannot make shared memory" + because(errno);
  }
  // Sealed, because if another process shortened the file, this process would get SIGBUS.
  fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  return fmt::format("{} {} {} {}", getpid(), file_.get(), status.st_dev, status.st_ino);
}

std::string Segment::open_memory(const std::string& offer) {
  std::istringstream fields(offer);
  long pid = 0;
  int fd = -1;
  dev_t device = 0;
  ino_t inode = 0;
  fields >> pid >> fd >> device >> inode;
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  file_.reset(open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status {};
  if (!file_.is_open()) {
    return fmt::format("cannot open {}{}", path, because(errno));
  }
  if (fstat(file_.get(), &status) != 0 || status.st_dev != device || status.st_ino != inode) {
    return path + " is not rank 0's memory: the processes see different process numbers";
  }
  return "";
}

std::string Segment::map_and_reserve(int rank) {
  void* const mapped =
      mmap(nullptr, total_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (mapped == MAP_FAILED) {
    return "cannot map shared memory" + because(errno);
  }
  base_ = static_cast<std::byte*>(mapped);
  const auto size = static_cast<off_t>(stride_bytes_);
  if (uninterrupted([&] { return fallocate(file_.get(), 0, size * rank, size); }) != 0) {
    return fmt::format("cannot reserve {} bytes of shared memory{}", size, because(errno));
  }
  struct flock lock = lock_of_byte(rank);
  if (fcntl(file_.get(), F_OFD_SETLK, &lock) != 0) {
    return "cannot lock its part of the shared memory" + because(errno);
  }
  return "";
}

std::shared_ptr<Segment> Segment::create(const Exchange& exchange, int rank, int world_size,
                                         size_t part_bytes) {
  const std::shared_ptr<Segment> segment(new Segment(world_size, part_bytes));
  const std::string offer = exchange(rank == 0 ? segment->make_memory() : "").at(0);
  std::string problem;
  if (offer.starts_with("!")) {
    problem = rank == 0 ? offer.substr(1) : "";
  } else {
    problem = rank == 0 ? "" : segment->open_memory(offer);
    problem = problem.empty() ? segment->map_and_reserve(rank) : problem;
  }
  const std::vector<std::string> problems = exchange(problem);
  for (size_t r = 0; r < problems.size(); ++r) {
    if (!problems[r].empty()) {
      throw SegmentError(fmt::format("rank {} {}", r, problems[r]));
    }
  }
  // Fills the page tables of this rank's part now, so that no step takes a fault. Older kernels
  // fill them at first use. In the other parts this rank touches only its stripe.
  madvise(segment->part(rank), segment->stride_bytes_, kMadvPopulateWrite);
  return segment;
}

}  // namespace ddp::shm
