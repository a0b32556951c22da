#include "common/training/batch_finder.hpp"

#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <malloc.h>

#include <atomic>
#include <iostream>
#include <new>

#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "common/base/parse.hpp"
#include "common/device/device.hpp"
#include "common/parallel/default_group.hpp"

namespace ddp {
namespace {

/// Allocator for LibTorch's host memory that counts the bytes in use and refuses more than a limit.
/// So the result does not depend on the moment, and the kernel has no reason to kill the process.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& source) : source_(source) {}

  /// Allows `bytes` more than the bytes in use.
  void allow(int64_t bytes) { limit_bytes_ = used_bytes_ + bytes; }
  c10::Allocator& source() const { return source_; }

  c10::DataPtr allocate(size_t bytes) override {
    auto block = std::make_unique<Block>(used_bytes_, static_cast<int64_t>(bytes));
    TORCH_CHECK_WITH(OutOfMemoryError, used_bytes_ <= limit_bytes_,
                     "Expected to stay within the limit of --batch-size auto");
    block->memory = source_.allocate(bytes);
    void* const data = block->memory.get();
    return {data, block.release(), [](void* context) { delete static_cast<Block*>(context); },
            c10::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  struct Block {
    Block(std::atomic<int64_t>& account, int64_t size) : used_bytes(account), bytes(size) {
      used_bytes += bytes;
    }
    ~Block() { used_bytes -= bytes; }

    std::atomic<int64_t>& used_bytes;
    int64_t bytes;
    c10::DataPtr memory;
  };

  c10::Allocator& source_;
  std::atomic<int64_t> used_bytes_ = 0;
  std::atomic<int64_t> limit_bytes_ = 0;
};

/// Limits LibTorch's host memory while this object lives.
class HostLimit {
 public:
  explicit HostLimit(int64_t bytes) {
    allocator().allow(bytes);
    c10::SetCPUAllocator(&allocator(), /*priority=*/0);
  }
  ~HostLimit() {
    c10::SetCPUAllocator(&allocator().source(), /*priority=*/0);
    allocator().allow(std::numeric_limits<int64_t>::max() / 2);  // for blocks that live on
  }
  HostLimit(const HostLimit&) = delete;
  HostLimit& operator=(const HostLimit&) = delete;

 private:
  /// Never freed, because tensors may outlive all other objects.
  static CountingAllocator& allocator() {
    static auto* const it = new CountingAllocator(*c10::GetCPUAllocator());
    return *it;
  }
};

/// Limit for trials on the host, beside the memory that is already in use.
int64_t host_budget(const Options& options) {
  if (options.memory_limit_bytes) {
    const int64_t resident_kib = number_after("VmRSS:", read_text("/proc/self/status"));
    return *options.memory_limit_bytes - resident_kib * 1024;
  }
  return memory_per_rank(find_allowance(1).memory_bytes, world().launch().local_world_size);
}

void release_memory(const torch::Device& device) {
  malloc_trim(0);
  if (!device.is_cpu()) {
    c10::getDeviceAllocator(device.type())->emptyCache();
  }
}

}  // namespace

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    return true;
  }
  const std::string_view text = error.what();
  return std::ranges::any_of(
      std::array{"can't allocate memory", "out of memory", "_STATUS_ALLOC_FAILED"},
      [&text](const char* words) { return text.find(words) != std::string_view::npos; });
}

int64_t memory_per_rank(int64_t available_bytes, int ranks) {
  return available_bytes / 10 * 8 / ranks;  // the rest is for fragments, and for other programs
}

int64_t largest_fitting(int64_t most, const std::function<bool(int64_t size)>& fits) {
  int64_t found = 0;
  for (int64_t size = 1; found < most && fits(size); size = std::min(2 * size, most)) {
    found = size;
  }
  return found;
}

int64_t find_batch_size(const Options& options, int64_t most, const torch::Device& device,
                        const std::function<void(int64_t batch_size)>& try_step,
                        const CallSite& site) {
  if (options.memory_limit_bytes && !device.is_cpu()) {
    refuse("--memory-limit: got it on {}, expected it with --device cpu", device.str());
  }
  if (!options.find_batch) {
    return options.batch_size;
  }
  const auto fits = [&](int64_t batch_size) {
    release_memory(device);
    try {
      try_step(batch_size);
      synchronize(device);
      return true;
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) {
        throw;
      }
      return false;
    }
  };
  fits(1);  // allocates what all later steps keep: code, threads, libraries' handles
  std::optional<HostLimit> limit;
  if (device.is_cpu()) {
    limit.emplace(std::max<int64_t>(host_budget(options), 0));
  }
  int64_t found = largest_fitting(most, fits);
  limit.reset();
  release_memory(device);
  const torch::Tensor own = torch::full({1}, found, torch::TensorOptions(torch::kInt64));
  const ProcessGroup& group = world();
  found =
      group.all_gather(own.to(group.device()), site.in("find_batch_size")).min().item<int64_t>();
  if (found == 0) {
    refuse("--batch-size auto: got no memory for one sample, expected room for it");
  }
  if (group.rank() == 0) {
    std::cerr << fmt::format("{}: note: --batch-size auto: {} samples per rank{}\n",
                             options.program, found,
                             found < most ? "; there is not memory for twice as many"
                                          : "; a step has no more")
              << std::flush;
  }
  return found;
}

}  // namespace ddp
