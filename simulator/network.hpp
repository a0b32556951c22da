// simulator/network.hpp - what a message and a collective cost.
#pragma once

#include <cstdint>
#include <string>

#include "bench/report/record.hpp"

namespace ddp::sim {

enum class Kind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kBarrier,
  kSend,
  kRecv,
};
inline constexpr int kKinds = 11;

/// "all_reduce"
const char* to_string(Kind kind);

/// What a rank sends in a collective by a ring.
struct Traffic {
  int64_t messages = 0;
  double bytes = 0;
};

/// Note [Cost of a collective]: a message of B bytes costs alpha + B beta. Of n ranks, with B as
/// simulator.hpp has it,
/// - all_reduce: as bench/report/communication_model.hpp has it, ring or tree
/// - reduce_scatter, all_gather: half of an all_reduce of the whole tensor, by either algorithm
/// - broadcast, reduce: ring (n - 1) alpha + B beta, in pieces; tree log2(n) alpha + B beta
/// - all_to_all: n - 1 messages of B / n
/// - gather, scatter: n - 1 messages of B, one after the other at the root
/// - barrier: an all_reduce of no bytes
class Network {
 public:
  /// @param algorithm kRing or kTree
  Network(double alpha_us, double beta_us_per_mib, bench::AllReduceAlgorithm algorithm);
  /// As bench has fitted it. One of a single world size has no algorithm: it is taken for a ring's,
  /// so that an all-reduce of so many ranks costs just what bench predicts.
  explicit Network(bench::CommunicationModel model);

  double message_us(double bytes) const;
  /// @param kind a collective; of one rank it costs nothing
  double collective_us(Kind kind, double bytes, int ranks) const;
  static Traffic traffic(Kind kind, double bytes, int ranks, int rank, int root);

  const bench::CommunicationModel& model() const noexcept { return model_; }
  /// "alpha 10 us, beta 100 us/MiB, ring"
  std::string text() const;

 private:
  bench::CommunicationModel model_;
};

/// Fits alpha and beta, as bench does, to the all-reduces in what bench_micro wrote with
/// --benchmark_out.
/// @param backend whose sweep is meant; empty: the only one @throws UsageError if there is none or
/// several, Error (1) if the file cannot be read
Network read_network(const std::string& path, const std::string& backend);

}  // namespace ddp::sim
