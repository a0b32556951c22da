#include "bench/micro/limits.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "bench/report/statistics.hpp"

namespace ddp::micro {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

/// `name`: the mean over the ranks of each one's median, and `name`_rank_R, what the mean is of.
void report_rates(const std::string& name, double amount, const Series& series,
                  benchmark::UserCounters& counters) {
  double sum = 0;
  for (size_t rank = 0; rank < series.seconds.size(); ++rank) {
    const double rate = amount / bench::median(series.seconds[rank]).value_or(0);
    counters[name + "_rank_" + std::to_string(rank)] = rate;
    sum += rate;
  }
  counters[name] = sum / static_cast<double>(series.seconds.size());
}

/// What the kernel could give to programs now. @return 0 if it does not say
std::int64_t available_memory_bytes() {
  std::ifstream lines("/proc/meminfo");
  for (std::string name; lines >> name;) {
    std::int64_t kib = 0;
    if (name == "MemAvailable:" && lines >> kib) {
      return kib * 1024;
    }
    lines.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

/// Of each of the two arrays: four times the largest cache, if all ranks' arrays together leave
/// half of the memory free.
std::int64_t array_bytes(const torch::Device& device, int ranks) {
  constexpr std::int64_t kSmallest = 128 * kMiB;
  constexpr std::int64_t kLargest = 512 * kMiB;
  constexpr std::int64_t kOnDevice = 1024 * kMiB;
  constexpr std::int64_t kLeast = 8 * kMiB;
  if (!device.is_cpu()) {
    return kOnDevice;
  }
  const std::int64_t cache = std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), 0L);
  const std::int64_t wanted = std::clamp(4 * cache, kSmallest, kLargest);
  const std::int64_t share = available_memory_bytes() / 2 / (2 * ranks);
  return std::max(std::min(wanted, share) / kMiB * kMiB, kLeast);
}

}  // namespace

MatrixProduct::MatrixProduct(const torch::Device& device) {
  const std::int64_t size = device.is_cpu() ? 512 : 8192;
  at::globalContext().setAllowTF32CuBLAS(false);
  torch::manual_seed(0);
  a_ = torch::randn({size, size}, device);
  b_ = torch::randn({size, size}, device);
  product_ = torch::empty({size, size}, device);
}

void MatrixProduct::run() {
  at::mm_out(product_, a_, b_);
  benchmark::DoNotOptimize(product_.const_data_ptr());
  benchmark::ClobberMemory();
}

void MatrixProduct::report(const Series& series, benchmark::UserCounters& counters) const {
  const auto size = static_cast<double>(a_.size(0));
  const double operations = 2 * size * size * size;
  counters["size"] = size;
  counters["operations"] = operations;
  report_rates("flops_per_second", operations, series, counters);
}

MemoryTraffic::MemoryTraffic(Lockstep& lockstep) {
  const std::int64_t own_bytes = array_bytes(lockstep.device(), lockstep.world_size());
  const std::int64_t bytes = std::stoll(lockstep.from_rank0(std::to_string(own_bytes)));
  const std::int64_t elements = bytes / static_cast<std::int64_t>(sizeof(float));
  x_ = torch::ones({elements}, lockstep.device());
  y_ = torch::ones({elements}, lockstep.device());
}

void MemoryTraffic::run() {
  if (y_.device().is_cpu()) {
    y_.add_(x_, 1e-6);
  } else {
    y_.copy_(x_);
  }
  benchmark::DoNotOptimize(y_.const_data_ptr());
  benchmark::ClobberMemory();
}

void MemoryTraffic::report(const Series& series, benchmark::UserCounters& counters) const {
  const double passes = y_.device().is_cpu() ? 3 : 2;
  const double bytes = passes * static_cast<double>(y_.nbytes());
  counters["bytes"] = bytes;
  report_rates("memory_bandwidth", bytes, series, counters);
}

}  // namespace ddp::micro
