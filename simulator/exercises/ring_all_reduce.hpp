// simulator/exercises/ring_all_reduce.hpp - the parts of a tensor, and the all-reduce to write.
#pragma once

#include <cstddef>

#include "simulator/simulator.hpp"

constexpr std::size_t kPart = 65536;  // values that one message carries

/// Part `index` of `values`, which has as many as there are ranks; any integer: -1 is the last.
inline std::span<float> part(std::span<float> values, int index) {
  const int n = ddp::sim::world_size();
  return values.subspan(static_cast<std::size_t>((index % n + n) % n) * kPart, kPart);
}

/// Afterwards every rank has the sum of all ranks' `values`, element by element. A rank sends to
/// the next one and receives from the one before, in 2 (n - 1) messages of a part each.
void ring_all_reduce(std::span<float> values);
