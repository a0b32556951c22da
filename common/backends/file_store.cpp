#include "common/backends/file_store.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "common/base/exit_codes.hpp"
#include "common/base/process.hpp"

namespace ddp {
namespace {

/// Before the store among its bases, so that it is closed after that has last looked at its file.
struct OpenFile {
  explicit OpenFile(int file) : descriptor(fcntl(file, F_DUPFD_CLOEXEC, 0)) {
    if (!descriptor.is_open()) {
      throw TransientError(fmt::format("cannot open the store's file: {}", std::strerror(errno)));
    }
  }
  std::string path() const { return fmt::format("/proc/self/fd/{}", descriptor.get()); }
  FileDescriptor descriptor;
};

/// FileStore polls every 10 ms, counts a timeout in whole seconds, and reports it as no other store
/// does.
class FileStore : private OpenFile, public c10d::FileStore {
 public:
  explicit FileStore(int file) : OpenFile(file), c10d::FileStore(OpenFile::path(), kForEver) {}

  c10::intrusive_ptr<Store> clone() override { return make_file_store(descriptor.get(), timeout_); }

  std::vector<uint8_t> get(const std::string& key) override {
    wait({key}, timeout_);
    return c10d::FileStore::get(key);
  }

  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }

  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    constexpr std::chrono::milliseconds kInterval(1);
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    off_t seen = -1;
    // A look at the size takes no lock: a rank that is stopped while it waits stops nobody else.
    for (off_t size = 0; (size = bytes()) == seen || !check(keys); seen = size) {
      if (timeout != kNoTimeout && std::chrono::steady_clock::now() > deadline) {
        C10_THROW_ERROR(DistStoreError, fmt::format("wait timeout after {}ms, keys: /{}",
                                                    timeout.count(), fmt::join(keys, ", /")));
      }
      std::this_thread::sleep_for(kInterval);
    }
  }

 private:
  static constexpr int kForEver = -1;  // the file is ours to remove

  off_t bytes() const {
    struct stat status {};
    fstat(descriptor.get(), &status);
    return status.st_size;
  }
};

}  // namespace

c10::intrusive_ptr<c10d::Store> make_file_store(int file, std::chrono::milliseconds timeout) {
  auto store = c10::make_intrusive<FileStore>(file);
  store->setTimeout(timeout);
  return store;
}

}  // namespace ddp
