// simulator/network.hpp - cost of messages and collectives.
#pragma once

namespace ddp::sim {

/// Messages and bytes that a rank sends.
struct Traffic {
  double messages = 0;
  double bytes = 0;
};

struct Operation {
  const char* name;  ///< "all_reduce"
  const char* of_other;  ///< how a text names the root or the other rank
  /// Traffic of one of `n` ranks. Bytes `b` as simulator.hpp defines them.
  Traffic (*traffic)(double n, double b);
};

/// Note [Cost of a collective]: all collectives are rings, and a broadcast goes in n - 1 pieces. A
/// message costs alpha, a byte beta, and all ranks send at the same time.
inline constexpr Operation kAllReduce{"all_reduce", "", [](double n, double b) {
                                        return Traffic{2 * (n - 1), 2 * (n - 1) / n * b};
                                      }};
inline constexpr Operation kReduceScatter{"reduce_scatter", "", [](double n, double b) {
                                            return Traffic{n - 1, (n - 1) / n * b};
                                          }};
inline constexpr Operation kAllGather{"all_gather", "", [](double n, double b) {
                                        return Traffic{n - 1, (n - 1) * b};
                                      }};
inline constexpr Operation kBroadcast{"broadcast", " with root {}", [](double n, double b) {
                                        return Traffic{n - 1, n == 1 ? 0 : b};
                                      }};
inline constexpr Operation kBarrier{"barrier", "", [](double n, double) {
                                      return Traffic{2 * (n - 1), 0};
                                    }};
inline constexpr Operation kSend{"send", " to rank {}", [](double, double b) {
                                   return Traffic{1, b};
                                 }};
inline constexpr Operation kRecv{"recv", " from rank {}", [](double, double) { return Traffic{}; }};

struct Network {
  double alpha_us = 10;
  double beta_us_per_mib = 100;

  double us(const Traffic& sent) const {
    return sent.messages * alpha_us + sent.bytes / (1024.0 * 1024.0) * beta_us_per_mib;
  }
  bool operator==(const Network&) const = default;
};

}  // namespace ddp::sim
