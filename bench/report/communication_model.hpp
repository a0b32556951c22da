// bench/report/communication_model.hpp - how long an all-reduce takes, from its bytes and its
// ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/report/micro_results.hpp"

namespace ddp::bench {

/// Note [Alpha and beta]: a message costs alpha before its first byte and beta per byte. B bytes
/// over n ranks cost
///   ring  2 (n - 1) alpha + 2 (n - 1) / n B beta
///   tree  2 log2(n) alpha + 2 B beta
/// The ring moves the fewest bytes, the tree makes the fewest steps.
enum class AllReduceAlgorithm { kRing, kTree };

/// "ring" or "tree".
const char* to_string(AllReduceAlgorithm algorithm);

/// Sizes over which alpha and beta are the same: a backend may switch its protocol, and data may
/// outgrow a cache.
struct AlphaBetaRegime {
  std::int64_t from_bytes = 0;  ///< to the next regime's
  double alpha_us = 0;
  double beta_us_per_mib = 0;
};

struct CommunicationModel {
  std::string backend;
  std::string device;
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::kRing;
  std::vector<int> world_sizes;  ///< that were measured, ascending
  std::vector<AlphaBetaRegime> regimes;  ///< ascending, from 0 bytes
  double median_relative_error = 0;  ///< of the model at the measured points: 0.1 is 10 %
  std::size_t points = 0;

  /// Microseconds, 0 for one rank. Beyond what was measured it is an extrapolation.
  /// @return nothing for fewer ranks than one, or for bytes that are negative or not a number
  std::optional<double> predict_us(double bytes, int world_size) const;
};

/// Fits alpha >= 0 and beta >= 0 to the samples of one backend on one device: least squares of the
/// relative error, so that microseconds count as much as milliseconds, with points that lie far off
/// left out. Up to three regimes, each of three sizes or more; another one is taken only if the
/// error falls clearly.
/// @param samples of any backend, device and world size; those that have no median, no bytes or one
/// rank say nothing
/// @return nothing for fewer than three usable samples
std::optional<CommunicationModel> fit_communication_model(
    const std::string& backend, const std::string& device, AllReduceAlgorithm algorithm,
    const std::vector<AllReduceSample>& samples);

}  // namespace ddp::bench
