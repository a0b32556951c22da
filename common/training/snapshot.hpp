// common/training/snapshot.hpp - a run's state in one file, and how the run goes on from it.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>

#include "common/launch/options.hpp"

namespace ddp {

// Note [Snapshots]: a snapshot holds the model, the optimizer's state and the number of epochs
// done. The order of the data depends on seed and epoch alone, so a resumed run ends on the same
// bits as an unbroken run. The file is safetensors: parameters and buffers by their names, the
// optimizer's state as Python's state_dict() names it ("optimizer.state.0.exp_avg"). A checksum
// over the file finds every flipped bit. A new file takes the place of the old one by a rename, and
// the old one stays as PATH.prev.

/// Loads --snapshot if --resume says so: `auto` if the file is there, `restart` if the launcher
/// restarted this job, too. If the file is damaged, PATH.prev is taken, and stderr says so. From
/// now on a signal asks to stop, see stop_requested().
///
/// Collective where there is a process group: rank 0 reads, and every rank gets the file's bytes.
/// @return epochs done; 0 for a fresh start
/// @throws Error (3), on all ranks, if no file is whole, or the file is of a run with other
/// settings
/// @throws UsageError for an optimizer whose state has no names here
int64_t load_snapshot(const Options& options, torch::nn::Module& module,
                      torch::optim::Optimizer& optimizer);
/// The same for an update that has no state.
int64_t load_snapshot(const Options& options, torch::nn::Module& module);

/// Writes --snapshot. On rank 0.
/// @throws Error (1) if it cannot be written
/// @throws UsageError for an optimizer whose state has no names here
void save_snapshot(const Options& options, int64_t epochs_done, const torch::nn::Module& module,
                   torch::optim::Optimizer& optimizer);
void save_snapshot(const Options& options, int64_t epochs_done, const torch::nn::Module& module);

/// True if SIGTERM, SIGUSR1 or SIGUSR2 came to any rank since load_snapshot(). Save then, and
/// return ExitCode::kRunAgain. Collective where there is a process group: the ranks may be
/// signalled at different moments, or only one of them, and agree here.
bool stop_requested();

}  // namespace ddp
