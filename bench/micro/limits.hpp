// bench/micro/limits.hpp - what a rank can do at most, while all ranks do it.
#pragma once

#include <torch/types.h>

#include "bench/micro/exercise.hpp"

namespace ddp::micro {

/// A product of two square matrices, fp32, with LibTorch's own kernel and the rank's threads. Small
/// enough for the caches on a CPU, large enough to fill a GPU.
class MatrixProduct : public Exercise {
 public:
  explicit MatrixProduct(const torch::Device& device);
  void prepare(std::int64_t) override {}
  void run() override;
  void report(const Series& series, benchmark::UserCounters& counters) const override;

 private:
  torch::Tensor a_;  // (size, size) float32
  torch::Tensor b_;
  torch::Tensor product_;
};

/// Traffic between processor and memory: y += c * x, as an optimizer does it, over arrays that no
/// cache holds. Two values are read and one written, and as the one written has been read there is
/// no traffic that is not counted. On a GPU a copy, one value read and one written.
class MemoryTraffic : public Exercise {
 public:
  /// Collective: all ranks' arrays are equally large, and share the machine's memory.
  explicit MemoryTraffic(Lockstep& lockstep);
  void prepare(std::int64_t) override {}
  void run() override;
  void report(const Series& series, benchmark::UserCounters& counters) const override;

 private:
  torch::Tensor x_;  // (elements) float32
  torch::Tensor y_;
};

}  // namespace ddp::micro
