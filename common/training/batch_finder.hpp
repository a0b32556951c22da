// common/training/batch_finder.hpp - `--batch-size auto`: the largest batch that fits into memory.
#pragma once

#include <exception>
#include <functional>

#include "common/launch/options.hpp"
#include "common/parallel/collective_log.hpp"

namespace ddp {

/// Finds the largest batch that fits into memory on every rank: a power of two, or `most`. Rank 0
/// prints the result on stderr. Without --batch-size auto the result is --batch-size. Collective
/// over world().
///
/// On a GPU a size does not fit if LibTorch runs out of memory. On a CPU the kernel would kill the
/// process instead. So LibTorch's allocator counts bytes there, up to --memory-limit or this rank's
/// share of the available memory.
/// @param most largest size to try @param device device of the trials
/// @param try_step computes a training step on `batch_size` samples, without the optimizer's state
/// and without communication, because ranks may fail at different sizes
/// @throws UsageError, on all ranks, if a single sample does not fit
int64_t find_batch_size(const Options& options, int64_t most, const torch::Device& device,
                        const std::function<void(int64_t batch_size)>& try_step,
                        const CallSite& site = CallSite::current());

/// Largest size among 1, 2, 4, ... and `most` before the first that does not fit; 0 if none fits.
int64_t largest_fitting(int64_t most, const std::function<bool(int64_t size)>& fits);

/// Memory for the trials of each of `ranks` ranks of a host.
int64_t memory_per_rank(int64_t available_bytes, int ranks);

/// True for out-of-memory errors of LibTorch, CUDA, its libraries and the standard library.
bool is_out_of_memory(const std::exception& error);

}  // namespace ddp
