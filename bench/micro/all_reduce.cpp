#include <fmt/format.h>

#include "bench/micro/suites.hpp"

namespace ddp::micro {

Piece all_reduce_piece(const ProcessGroup& group, int64_t bytes) {
  constexpr int64_t kSize = 160;  // about a tenth of a millisecond on one core
  const torch::Tensor values =
      group.allocate(bytes / static_cast<int64_t>(sizeof(float)), torch::kFloat32);
  // Small whole numbers that differ between elements and between ranks. Their sum is exact in any
  // order, and different faults give different sums.
  const int64_t ranks = group.world_size();
  const torch::Tensor pattern = torch::arange(values.numel(), values.options()) % 61;
  const torch::Tensor own = pattern + (group.rank() + 1);
  const torch::Tensor sum = pattern * ranks + ranks * (ranks + 1) / 2;
  const torch::Tensor factor = torch::ones({kSize, kSize}, values.options());
  torch::Tensor product = torch::empty_like(factor);
  return {.run = [values, &group] { group.all_reduce(values); },
          .prepare =
              [=]() mutable {
                values.copy_(own);
                at::mm_out(product, factor, factor);
              },
          .check =
              [=, &group] {
                return torch::equal(values, sum)  // false for NaN
                           ? ""
                           : fmt::format(
                                 "all_reduce: got a wrong sum of {} bytes over {}, "
                                 "expected the sum of all ranks' values",
                                 values.nbytes(), group.backend_name());
              }};
}

void run_all_reduces(const MicroOptions& options, const Ranks& ranks) {
  using benchmark::Counter;
  for (const int64_t bytes : options.bytes) {
    add_benchmark(fmt::format("all_reduce/{}/ranks:{}/bytes:{}", ranks.group().backend_name(),
                              ranks.size(), bytes),
                  benchmark::kMicrosecond, ranks,
                  [&ranks, bytes](benchmark::UserCounters& counters) {
                    const auto size = static_cast<double>(bytes);
                    const double n = ranks.size();
                    counters["bytes"] = size;
                    counters["algorithm_bandwidth"] = Counter(size, Counter::kIsRate);
                    // Bytes that each rank must send and receive at least, by any algorithm.
                    counters["bus_bandwidth"] = Counter(size * 2 * (n - 1) / n, Counter::kIsRate);
                    return all_reduce_piece(ranks.group(), bytes);
                  });
  }
  run_benchmarks(ranks);
}

}  // namespace ddp::micro
