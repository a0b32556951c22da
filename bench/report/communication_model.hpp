// bench/report/communication_model.hpp - how long an all-reduce takes, by bytes and ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/report/record.hpp"

namespace ddp::bench {

/// Note [Alpha and beta]: a message costs alpha before its first byte and beta per byte. B bytes
/// over n ranks cost
///   ring  2 (n - 1) alpha + 2 (n - 1) / n B beta
///   tree  2 log2(n) alpha + 2 B beta
/// The ring moves the fewest bytes, the tree makes the fewest steps. At a single n both are a
/// constant plus a constant per byte, so that there alpha + B beta is fitted and no algorithm.

/// Fits alpha >= 0 and beta >= 0 to the samples of one network: least squares of the
/// relative error, so that microseconds count as much as milliseconds, with points that lie far off
/// left out. With several world sizes up to three regimes, each of three sizes or more; another one
/// is taken only if the mean error falls clearly: to six tenths, by a hundredth at least.
/// @param samples of one backend on one device, of any world size; those that have no median, no
/// bytes or one rank say nothing
/// @return nothing for fewer than three usable samples; one model without an algorithm for one
/// world size; else ring or tree if its mean error is clearly the lesser one, and if neither's is
/// both, the better one first
std::vector<CommunicationModel> fit_communication_models(
    const std::vector<AllReduceSample>& samples);

/// Of a network that was not measured, for each message and each link.
struct Network {
  double alpha_us = 0;
  double gbps = 0;  ///< 1e9 bytes per second
};

/// "2.5,25" @throws UsageError naming `name` and the text
Network parse_network(const std::string& name, const std::string& text);

CommunicationModel stated_model(const Network& network, AllReduceAlgorithm algorithm);

/// One all-reduce of each of these buckets after the other.
/// @return nothing without buckets, or if the model says nothing of this world size
std::optional<double> all_reduces_ms(const CommunicationModel& model,
                                     const std::vector<double>& bucket_bytes, int world_size);

}  // namespace ddp::bench
