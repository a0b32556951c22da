#include "common/training/batch_finder.hpp"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <iostream>
#include <limits>
#include <new>
#include <string_view>
#include <utility>

#include "common/base/exit_codes.hpp"
#include "common/fused/fused_step.hpp"
#include "common/parallel/data_parallel.hpp"
#include "common/parallel/mirrored.hpp"
#include "common/training/snapshot.hpp"

namespace ddp {
namespace {

constexpr int64_t kDeviceBound = kMemoryBounds.size() - 1;

/// Host memory for LibTorch with an account: each block counts while it lives, whoever frees it.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& source) : source_(source) {}

  /// More than is in use now. @param bytes may be the largest number
  void allow(int64_t bytes) {
    const int64_t used = used_bytes_;
    limit_bytes_ = bytes > std::numeric_limits<int64_t>::max() - used ? bytes : used + bytes;
  }
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
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    std::atomic<int64_t>& used_bytes;
    int64_t bytes;
    c10::DataPtr memory;
  };

  c10::Allocator& source_;
  std::atomic<int64_t> used_bytes_ = 0;
  std::atomic<int64_t> limit_bytes_ = 0;
};

int64_t default_batch() {
  return Options{}.batch_per_rank;
}

/// LibTorch's statistics of a GPU.
c10::DeviceAllocator& memory_of(const torch::Device& device) {
  return *c10::getDeviceAllocator(device.type());
}

/// All that LibTorch has taken from a GPU, in use or kept.
c10::CachingAllocator::Stat reserved_bytes(const torch::Device& device) {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return memory_of(device).getDeviceStats(device.index()).reserved_bytes[kAll];
}

std::string format_bytes(int64_t bytes) {
  constexpr double kMib = 1 << 20;
  const auto amount = static_cast<double>(bytes);
  return amount < 1024 * kMib ? fmt::format("{:.1f} MiB", amount / kMib)
                              : fmt::format("{:.1f} GiB", amount / kMib / 1024);
}

/// (ranks, values): row r has rank r's.
torch::Tensor gather_over_ranks(ProcessGroup* process_group, const std::vector<int64_t>& values) {
  const torch::Tensor own = torch::tensor(values, torch::kInt64);
  return process_group == nullptr
             ? own.unsqueeze(0)
             : process_group->all_gather(own.to(process_group->device())).to(torch::kCPU);
}

/// The row whose first value is the least.
std::vector<int64_t> least_row(const torch::Tensor& of_ranks) {
  const torch::Tensor row = of_ranks[of_ranks.select(1, 0).argmin().item<int64_t>()].contiguous();
  return {row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel()};
}

/// What was found, and why no more.
std::string describe(const Options& found, const Options& asked, int64_t too_large,
                     const MemoryBudget& budget) {
  std::string text = fmt::format("{} samples per rank", found.batch_per_rank);
  if (found.accumulate > 1) {
    text += fmt::format(", {} times a step", found.accumulate);
  }
  if (too_large > 0) {
    text += fmt::format("; {} need more than the {} that {} leaves", too_large,
                        format_bytes(budget.bytes), kMemoryBounds.at(size_t(budget.bound)));
  } else {
    text += "; more were not tried: a step, or a rank's part of the data, has no more";
  }
  if (asked.scale_lr != "none") {
    text += fmt::format("; --lr {:g} instead of {:g}", *found.learning_rate,
                        resolve_learning_rate(asked));
  }
  return text;
}

/// What --scale-lr makes of the learning rate.
double scaled_learning_rate(const Options& options, int64_t step_per_rank) {
  const double ratio = static_cast<double>(step_per_rank) /
                       static_cast<double>(default_batch() * options.accumulate);
  return resolve_learning_rate(options) * (options.scale_lr == "sqrt" ? std::sqrt(ratio) : ratio);
}

}  // namespace

std::vector<int64_t> batch_sizes(int64_t most, int64_t step, bool powers_of_two) {
  std::vector<int64_t> sizes;
  const auto add = [&](int64_t size) {
    if (size <= most && (step == 0 || step % size == 0)) {
      sizes.push_back(size);
    }
  };
  if (powers_of_two) {
    for (int64_t size = 1; size <= most; size *= 2) {
      add(size);
    }
    return sizes;
  }
  // A divisor up to the root has its partner beyond it.
  int64_t root = 1;
  for (; root <= step / root; ++root) {
    add(root);
  }
  for (int64_t i = root; i > 0; --i) {
    if (step % i == 0 && step / i >= root) {
      add(step / i);
    }
  }
  return sizes;
}

BatchSearch find_largest(const std::vector<int64_t>& sizes,
                         const std::function<bool(int64_t size)>& fits) {
  size_t fitting = 0;  // how many of the first ones, as far as is known
  size_t too_large = sizes.size();  // the first that does not
  while (fitting < too_large) {
    size_t next = fitting;
    if (too_large < sizes.size()) {
      next += (too_large - fitting) / 2;
    } else if (fitting > 0) {
      const auto above = std::ranges::upper_bound(sizes, 2 * sizes[fitting - 1]);
      next = std::max(fitting, static_cast<size_t>(above - sizes.begin()) - 1);
    }
    if (fits(sizes[next])) {
      fitting = next + 1;
    } else {
      too_large = next;
    }
  }
  return {fitting == 0 ? 0 : sizes[fitting - 1], too_large == sizes.size() ? 0 : sizes[too_large]};
}

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

/// Note [Counted memory]: a limit on the host's memory is kept by an allocator in the place of
/// LibTorch's own, which sees what every thread takes for tensors, and refuses what would be too
/// much before it is taken. Nothing is measured that depends on the moment, and the kernel has no
/// reason to kill. (LibTorch's memory profiler sees one thread, and only after the fact.)
class BatchTrials::HostLimit {
 public:
  explicit HostLimit(int64_t bytes) {
    allocator().allow(bytes);
    c10::SetCPUAllocator(&allocator());
  }
  ~HostLimit() {
    c10::SetCPUAllocator(&allocator().source());
    allocator().allow(
        std::numeric_limits<int64_t>::max());  // blocks that live on may yet be resized
  }
  HostLimit(const HostLimit&) = delete;
  HostLimit& operator=(const HostLimit&) = delete;

 private:
  /// For ever: tensors may outlive everything.
  static CountingAllocator& allocator() {
    static auto* const it = new CountingAllocator(*c10::GetCPUAllocator());
    return *it;
  }
};

BatchTrials::BatchTrials(const Options& options, DataLoader& loader, Mlp model,
                         Optimizer& optimizer, std::vector<torch::Device> devices,
                         ProcessGroup* process_group)
    : options_(options),
      loader_(loader),
      model_(std::move(model)),
      optimizer_(optimizer),
      devices_(std::move(devices)),
      process_group_(process_group) {
  options_.global_batch.reset();
  options_.accumulate = 1;
  if (options_.speedup == "graph") {
    options_.speedup = "fused";  // the same memory, and nothing that failed halfway to repeat
  }
  if (process_group_ != nullptr) {
    process_group_->set_accumulating(true);
  }
}

BatchTrials::~BatchTrials() {
  if (process_group_ != nullptr) {
    process_group_->set_accumulating(false);
  }
  host_limit_.reset();
  optimizer_.zero_grad();
  try {
    release_memory();  // what failed would stay reserved on a GPU, and be the peak that is reported
  } catch (const std::exception&) {
    return;  // whoever needs the memory says so
  }
  for (const torch::Device& device : devices_) {
    if (!device.is_cpu()) {
      memory_of(device).resetPeakStats(device.index());
    }
  }
}

void BatchTrials::release_memory() {
  loader_.set_batch(1, 1);
  malloc_trim(0);  // what is free counts as used until the kernel has it back
  for (const torch::Device& device : devices_) {
    if (!device.is_cpu()) {
      memory_of(device).emptyCache();
    }
    if (device.is_cuda()) {
      at::getHostAllocator(device.type())->empty_cache();  // the loader's pinned memory
    }
  }
}

MemoryBudget BatchTrials::budget(int sharers) {
  release_memory();
  if (devices_.front().is_cpu()) {
    return memory_budget(options_.memory_limit_bytes, sharers);
  }
  MemoryBudget least{std::numeric_limits<int64_t>::max(), kDeviceBound};
  for (const torch::Device& device : devices_) {
    const auto [unused, all] = memory_of(device).getMemoryInfo(device.index());
    const double bytes = static_cast<double>(unused) - kMemoryMargin * static_cast<double>(all);
    least.bytes = std::min(least.bytes, static_cast<int64_t>(std::max(bytes, 0.0)));
  }
  return least;
}

void BatchTrials::allow(int64_t bytes) {
  release_memory();
  if (devices_.front().is_cpu()) {
    host_limit_.reset();
    host_limit_ = std::make_unique<HostLimit>(bytes);
    return;
  }
  allowed_bytes_ = bytes;
  bytes_before_.clear();
  for (const torch::Device& device : devices_) {
    bytes_before_.push_back(reserved_bytes(device).current);
  }
}

bool BatchTrials::fits(int64_t batch_per_rank) {
  try {
    try_step(batch_per_rank);
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) {
      throw;
    }
    return false;
  }
  for (size_t i = 0; i < bytes_before_.size(); ++i) {
    if (reserved_bytes(devices_[i]).peak - bytes_before_[i] > allowed_bytes_) {
      return false;
    }
  }
  return true;
}

void BatchTrials::try_step(int64_t batch_per_rank) {
  release_memory();
  for (const torch::Device& device : devices_) {
    if (!device.is_cpu()) {
      memory_of(device).resetPeakStats(device.index());
    }
  }
  options_.batch_per_rank = batch_per_rank;
  loader_.set_batch(batch_per_rank, 1);
  Batch batch = *loader_.begin();
  batch.completes_step = false;
  if (options_.speedup != "none") {
    FusedStep(options_, model_, devices_, process_group_, [] {
    }).run(batch, optimizer_.learning_rate());
  } else if (MirroredReplicas* const replicas = optimizer_.replicas()) {
    loss(forward_replicas<MlpImpl>(*replicas, batch.input), batch).backward();
  } else {
    const torch::Tensor output = devices_.size() > 1 ? data_parallel(model_, batch.input, devices_)
                                                     : model_->forward(batch.input);
    loss(output, batch).backward();
  }
  for (const torch::Device& device : devices_) {
    if (!device.is_cpu()) {
      c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
    }
  }
}

namespace {

/// The same on all ranks.
struct Agreement {
  BatchSearch found;
  int64_t step = 0;  // samples of a rank, of which a batch must be a part; 0: of any
  MemoryBudget budget{};
};

Agreement search_on_all_ranks(const Options& options, const LaunchEnvironment& launch, int64_t most,
                              std::unique_ptr<BatchTrials> trials, ProcessGroup* process_group) {
  // The first step takes what all later ones keep: code, threads, libraries' handles.
  trials->allow(std::numeric_limits<int64_t>::max());
  trials->fits(std::min(default_batch(), most));
  // All have measured before anybody takes what they share.
  const MemoryBudget own = trials->budget(launch.local_world_size);
  const torch::Tensor of_ranks = gather_over_ranks(
      process_group, {own.bytes, own.bound,
                      launch.rank == 0 ? stored_global_batch(options, launch).value_or(0) : 0});
  const std::vector<int64_t> least = least_row(of_ranks);
  Agreement agreed{.found = {}, .step = 0, .budget = {least[0], least[1]}};
  const int64_t global_batch = options.global_batch.value_or(of_ranks[0][2].item<int64_t>());
  if (global_batch % launch.world_size !=
      0) {  // the snapshot's; --global-batch was looked at before
    throw UsageError(fmt::format(
        "--batch-size auto: the global batch of {} is {}, expected a multiple of {} ranks",
        options.snapshot, global_batch, launch.world_size));
  }
  agreed.step = global_batch / launch.world_size;
  trials->allow(agreed.budget.bytes);
  const BatchSearch own_found =
      find_largest(batch_sizes(most, agreed.step, !options.global_batch.has_value()),
                   [&trials](int64_t size) { return trials->fits(size); });
  trials.reset();  // to agree takes memory, too
  const std::vector<int64_t> found =
      least_row(gather_over_ranks(process_group, {own_found.fits, own_found.too_large}));
  agreed.found = {found[0], found[1]};
  return agreed;
}

}  // namespace

Options find_batch(const Options& options, const LaunchEnvironment& launch, DataLoader& loader,
                   const Mlp& model, Optimizer& optimizer,
                   const std::vector<torch::Device>& devices, ProcessGroup* process_group) {
  const torch::Device own_device = model->parameters().front().device();
  if (options.memory_limit_bytes && !own_device.is_cpu()) {
    throw UsageError("--memory-limit was given on " + own_device.str() +
                     ", expected it with --device cpu");
  }
  const Agreement agreed = search_on_all_ranks(
      options, launch, std::max<int64_t>(1, loader.samples_per_rank()),
      std::make_unique<BatchTrials>(
          options, loader, model, optimizer,
          devices.empty() ? std::vector<torch::Device>{own_device} : devices, process_group),
      process_group);
  const auto& [found, step, budget] = agreed;
  if (found.fits == 0) {
    throw UsageError(fmt::format(
        "--batch-size auto: one sample needs more than the {} of memory that {} leaves, expected "
        "room for it",
        format_bytes(budget.bytes), kMemoryBounds.at(size_t(budget.bound))));
  }
  Options settled = options;
  settled.batch_per_rank = found.fits;
  if (step > 0) {
    settled.accumulate = step / found.fits;
  }
  loader.set_batch(settled.batch_per_rank, settled.accumulate);
  if (options.scale_lr != "none") {
    settled.learning_rate =
        scaled_learning_rate(options, settled.batch_per_rank * settled.accumulate);
    optimizer.set_learning_rate(*settled.learning_rate);
  }
  if (launch.rank == 0) {
    std::cerr << fmt::format("{}: note: --batch-size auto: {}\n", options.program,
                             describe(settled, options, found.too_large, budget))
              << std::flush;
  }
  return settled;
}

}  // namespace ddp
