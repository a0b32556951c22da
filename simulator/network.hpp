// simulator/network.hpp - cost of messages and collectives.
#pragma once

#include <cstdint>

namespace ddp::sim {

enum class Kind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kBarrier,
  kSend,
  kRecv,
};
/// "all_reduce"
const char* to_string(Kind kind);

/// Messages and bytes that a rank sends.
struct Traffic {
  int64_t messages = 0;
  double bytes = 0;
};

/// Note [Cost of a collective]: all collectives are rings. With n ranks and B bytes, as defined in
/// simulator.hpp, a rank sends at most
///   all_reduce       2 (n - 1) messages   2 (n - 1) / n B bytes
///   reduce_scatter   n - 1                (n - 1) / n B
///   all_gather       n - 1                (n - 1) B
///   broadcast        n - 1 pieces         B
///   barrier          2 (n - 1)            0
/// A message costs alpha, a byte beta, and all ranks send at the same time.
Traffic traffic(Kind kind, int64_t bytes, int ranks);

struct Network {
  double alpha_us = 10;
  double beta_us_per_mib = 100;

  double us(const Traffic& sent) const {
    return static_cast<double>(sent.messages) * alpha_us +
           sent.bytes / (1024.0 * 1024.0) * beta_us_per_mib;
  }
};

}  // namespace ddp::sim
