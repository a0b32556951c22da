// common/training/snapshot.hpp - a run's state in one file, and how the run goes on from it.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/data/dataset.hpp"
#include "common/data/tensor_file.hpp"
#include "common/launch/options.hpp"
#include "common/parallel/process_group.hpp"
#include "common/training/optimizer.hpp"

namespace ddp {

/// Samples per step of the run that Snapshot::load() would go on with, as far as its file tells;
/// none if it would begin anew.
std::optional<int64_t> stored_global_batch(const Options& options,
                                           const LaunchEnvironment& environment);

/// What a run needs to stop and go on: the model, the optimizer's state and the number of epochs
/// done. The order of the data is a function of seed and epoch, so nothing else is needed for the
/// same weights, bit for bit, as an unbroken run.
///
/// Note [Files take their time]: a disk may take longer than --timeout, which is the deadline of
/// collectives. While rank 0 reads or writes, the others wait at the store and not in a collective,
/// without a deadline, as long as rank 0 lives: a thread of its own gives a sign several times per
/// --timeout. Ranks that are asked to stop meanwhile, as by a launcher that has lost rank 0, wait
/// only for seconds without a sign.
class Snapshot {
 public:
  /// Everything must outlive this object. Whether --snapshot can be written is known already, see
  /// check_output_files().
  Snapshot(const Options& options, const LaunchEnvironment& environment, const Dataset& dataset,
           torch::nn::Module& model, Optimizer& optimizer);

  /// Loads --snapshot if --resume says so: `auto` if it is there, `restart` if in addition the
  /// launcher restarted this job. If it is damaged the one before it is taken, and that is said on
  /// stderr. Rank 0 reads, see Note [Files take their time], all ranks receive.
  /// @return the epoch to go on with; 0 for a fresh start
  /// @throws Error (3), on all ranks, if none is whole, or it is of a run with other settings
  int64_t load(ProcessGroup* process_group = nullptr);

  /// Rank 0 only; then all ranks of `process_group`, if there is one, call finish_save(). If the
  /// optimizer is not sharded they may leave that, and have --timeout to bear the wait.
  /// @throws Error (1) if it cannot be written
  void save(int64_t epochs_done, const ProcessGroup* process_group = nullptr);
  /// Collective: gives rank 0 the parts of a sharded optimizer, and waits until it has saved or has
  /// come here without; see Note [Files take their time].
  /// @throws Error (1) on the others if rank 0 failed (without a message: rank 0 has it) or gave no
  /// sign of life for too long
  void finish_save(int64_t epochs_done, const ProcessGroup& process_group);
  /// How many epochs the file holds, as far as this run wrote it; -1 if it did not.
  int64_t saved_epochs() const noexcept { return saved_epochs_; }

 private:
  std::map<std::string, std::string> settings() const;
  /// What a file holds.
  struct Stored {
    int64_t epochs_done = 0;
    NamedTensors optimizer_state;
  };

  NamedTensors model_tensors() const;
  void write(int64_t epochs_done) const;
  /// Changes the model once all of the file is known to fit.
  Stored read(const std::string& path) const;
  Stored load_newest() const;

  const Options& options_;
  const LaunchEnvironment& environment_;
  const Dataset& dataset_;
  torch::nn::Module& model_;
  Optimizer& optimizer_;
  int64_t saved_epochs_ = -1;
  std::string keys_ = "snapshot";  // what its keys in the store begin with
  std::string last_key_;  // of the save before; empty: none
};

}  // namespace ddp
