// common/training/batch_finder.hpp - `--batch-size auto`: how many samples there is memory for.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <exception>
#include <functional>

#include "common/launch/options.hpp"

namespace ddp {

/// The largest batch for which there is memory on every rank: a power of two, or `most`. Says on
/// stderr, on rank 0, what was found. Without --batch-size auto it is --batch-size. Collective
/// where there is a process group.
///
/// On a GPU a size does not fit if LibTorch runs out of memory. On a CPU, where the kernel would
/// kill the process instead, LibTorch's allocator counts what it gives away, up to --memory-limit
/// or this rank's share of the memory that is available now.
/// @param most samples @param device of the trials
/// @param try_step computes on so many samples as training will, but for the optimizer's state, and
/// without communication: ranks may fail at different sizes
/// @throws UsageError, on all ranks, if there is not memory for one sample
int64_t find_batch_size(const Options& options, int64_t most, const torch::Device& device,
                        const std::function<void(int64_t batch_size)>& try_step);

/// The largest size that fits: 1, 2, 4, ... until one does not, and `most`. 0 if none does.
int64_t largest_fitting(int64_t most, const std::function<bool(int64_t size)>& fits);

/// True for the errors of LibTorch, CUDA and its libraries, and the standard library that say that
/// memory is exhausted.
bool is_out_of_memory(const std::exception& error);

}  // namespace ddp
