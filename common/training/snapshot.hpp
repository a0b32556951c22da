// common/training/snapshot.hpp - saves the state of a run in a file, and resumes from it.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "common/launch/options.hpp"
#include "common/parallel/collective_log.hpp"

namespace ddp {

// Note [Snapshots]: a snapshot holds the model, the optimizer's state and the number of epochs
// done. The order of the data depends only on seed and epoch, so a resumed run ends on the same
// bits as an unbroken run. The file is safetensors: parameters and buffers by their names, the
// optimizer's state by the names in Python's state_dict() ("optimizer.state.0.exp_avg"). A checksum
// over the file finds every flipped bit. The new file replaces the old file by a rename, and the
// old file is kept as PATH.prev.

/// Loads --snapshot, if the file is there and --resume is `auto`, or is `restart` and the launcher
/// restarted this job. A damaged file is replaced by PATH.prev, with a warning. From now on a
/// signal asks the run to stop, see stop_requested().
///
/// Collective if there is a process group: rank 0 reads, and every rank gets the file's bytes.
/// @return epochs done; 0 for a fresh start
/// @throws Error (3), on all ranks, if both files are damaged, or the run of the file had other
/// settings
/// @throws UsageError for optimizers other than SGD, Adam and AdamW
int64_t load_snapshot(const Options& options, torch::nn::Module& module,
                      torch::optim::Optimizer& optimizer,
                      const CallSite& site = CallSite::current());
/// The same for an update without state.
int64_t load_snapshot(const Options& options, torch::nn::Module& module,
                      const CallSite& site = CallSite::current());

/// Writes --snapshot, on rank 0. @throws Error (1) if it cannot be written
/// @throws UsageError for optimizers other than SGD, Adam and AdamW
void save_snapshot(const Options& options, int64_t epochs_done, const torch::nn::Module& module,
                   torch::optim::Optimizer& optimizer);
/// The same for an update without state.
void save_snapshot(const Options& options, int64_t epochs_done, const torch::nn::Module& module);

}  // namespace ddp
