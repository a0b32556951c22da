// bench/micro/all_reduce.hpp - sums over the ranks, alone and as a training step makes them.
#pragma once

#include <vector>

#include "bench/micro/exercise.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp::micro {

/// Starts one all-reduce per bucket, then waits for all.
///
/// Note [As in a step]: before every run the data is written anew, because on warm, untouched
/// buffers a backend that shares memory looks several times faster than it is in a training step.
/// And every rank computes for a while, because by the time that a step's gradients are there,
/// threads that communicate have gone to sleep and caches hold other things.
/// @param group must outlive the exercise
/// @param bucket_bytes of fp32 values, which lie one behind the other
Exercise all_reduce(const ProcessGroup& group, const std::vector<std::int64_t>& bucket_bytes);

}  // namespace ddp::micro
