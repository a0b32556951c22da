// What a rank can do at most, while all ranks do it: arithmetic and memory traffic.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "bench/micro/suites.hpp"
#include "bench/report/statistics.hpp"

namespace ddp::micro {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

/// Nine in ten iterations take longer: a limit that was lower because something else ran for a
/// while would be none.
double seconds_at_best(const std::vector<double>& seconds) {
  return bench::percentile(seconds, 0.1).value_or(0);
}

/// `name`: the mean over the ranks of each one's rate, and `name`_rank_R, what the mean is of.
void report_rates(const std::string& name, double amount, const Series& series,
                  benchmark::UserCounters& counters) {
  double sum = 0;
  for (size_t rank = 0; rank < series.seconds.size(); ++rank) {
    const double rate = amount / seconds_at_best(series.seconds[rank]);
    counters[fmt::format("{}_rank_{}", name, rank)] = rate;
    sum += rate;
  }
  counters[name] = sum / static_cast<double>(series.seconds.size());
}

/// A product of two square matrices, fp32, with LibTorch's own kernel and the rank's threads. Small
/// enough for the caches on a CPU, large enough to fill a GPU.
Exercise matrix_product(const torch::Device& device) {
  const std::int64_t size = device.is_cpu() ? 512 : 8192;
  at::globalContext().setAllowTF32CuBLAS(false);
  torch::manual_seed(0);
  const torch::Tensor a = torch::randn({size, size}, device);
  const torch::Tensor b = torch::randn({size, size}, device);
  torch::Tensor product = torch::empty({size, size}, device);
  return {.run =
              [a, b, product]() mutable {
                at::mm_out(product, a, b);
                benchmark::DoNotOptimize(product.const_data_ptr());
                benchmark::ClobberMemory();
              },
          .report =
              [length = static_cast<double>(size)](const Series& series,
                                                   benchmark::UserCounters& counters) {
                const double operations = 2 * length * length * length;
                counters["size"] = length;
                counters["operations"] = operations;
                report_rates("flops_per_second", operations, series, counters);
              }};
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
  std::int64_t cache = 0;  // that a core reaches: sysconf() adds up those of all cores' groups
  for (const benchmark::CPUInfo::CacheInfo& one : benchmark::CPUInfo::Get().caches) {
    cache = std::max<std::int64_t>(cache, one.size);
  }
  const std::int64_t wanted = std::clamp(4 * cache, kSmallest, kLargest);
  const std::int64_t share = available_memory_bytes() / 2 / (2 * ranks);
  return std::max(std::min(wanted, share) / kMiB * kMiB, kLeast);
}

/// Traffic between processor and memory: y += c * x, as an optimizer does it, over and over. Two
/// values are read and one written, and as the one written has been read there is no traffic that
/// is not counted. On a GPU a copy, one value read and one written.
/// @param working_set bytes of both arrays together, the same on all ranks
Exercise memory_traffic(const torch::Device& device, std::int64_t working_set) {
  const std::int64_t elements = working_set / 2 / kFloatBytes;
  const torch::Tensor x = torch::ones({elements}, device);
  const torch::Tensor y = torch::ones({elements}, device);
  const double moved_bytes = (device.is_cpu() ? 3 : 2) * static_cast<double>(y.nbytes());
  return {.run =
              [x, y] {
                y.is_cpu() ? y.add_(x, 1e-6) : y.copy_(x);
                benchmark::DoNotOptimize(y.const_data_ptr());
                benchmark::ClobberMemory();
              },
          .report =
              [moved_bytes, working_set](const Series& series, benchmark::UserCounters& counters) {
                counters["bytes"] = moved_bytes;
                counters["working_set"] = static_cast<double>(working_set);
                report_rates("memory_bandwidth", moved_bytes, series, counters);
              }};
}

/// Arrays that no cache holds, and that share the machine's memory. Collective.
Exercise memory_traffic(Lockstep& lockstep) {
  const std::int64_t own_bytes = array_bytes(lockstep.device(), lockstep.world_size());
  const std::int64_t bytes = std::stoll(lockstep.from_rank0(std::to_string(own_bytes)));
  return memory_traffic(lockstep.device(), 2 * bytes);
}

/// What a kernel costs that does next to nothing, in a row of them: no step on a GPU takes less.
Exercise kernel_launch(const torch::Device& device) {
  constexpr int kLaunches = 200;  // so that waiting for the last one does not count
  const torch::Tensor value = torch::zeros({1}, device);
  return {.run =
              [value] {
                for (int i = 0; i < kLaunches; ++i) {
                  value.add_(1);
                }
              },
          .report =
              [](const Series& series, benchmark::UserCounters& counters) {
                const double seconds = seconds_at_best(series.slowest());
                counters["launches"] = kLaunches;
                counters["kernel_launch_us"] = seconds / kLaunches * 1e6;
              }};
}

}  // namespace

std::vector<Entry> limit_entries(const std::string& ranks, const torch::Device& device) {
  std::vector<Entry> entries = {
      {"limits/gemm_fp32" + ranks, "", [](Team& team) { return matrix_product(team.device()); }},
      {"limits/memory" + ranks, "", [](Team& team) { return memory_traffic(team.lockstep()); }}};
  // From what the caches next to a core hold to what none does.
  for (const std::int64_t kib : {128, 512, 2048, 8192, 32768}) {
    entries.push_back({fmt::format("limits/memory{}/bytes:{}", ranks, kib * 1024), "",
                       [kib](Team& team) { return memory_traffic(team.device(), kib * 1024); }});
  }
  if (!device.is_cpu()) {
    entries.push_back({"limits/kernel_launch" + ranks, "",
                       [](Team& team) { return kernel_launch(team.device()); }});
  }
  return entries;
}

}  // namespace ddp::micro
