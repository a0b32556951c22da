// bench/report/communication_model.hpp - how long an all-reduce takes, by bytes and ranks.
#pragma once

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

}  // namespace ddp::bench
