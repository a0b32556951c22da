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
/// The ring moves the fewest bytes, the tree makes the fewest steps.

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
