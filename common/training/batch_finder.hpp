// common/training/batch_finder.hpp - `--batch-size auto`: how many samples there is memory for.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/process_usage.hpp"
#include "common/data/data_loader.hpp"
#include "common/launch/options.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/process_group.hpp"
#include "common/training/optimizer.hpp"

namespace ddp {

/// Sizes that divide `step` (0: any do), ascending, none larger than `most`.
std::vector<int64_t> batch_sizes(int64_t most, int64_t step, bool powers_of_two);

/// The outcome of a search; 0: no size.
struct BatchSearch {
  int64_t fits = 0;
  int64_t too_large = 0;  ///< the next one
};

/// The largest of the ascending `sizes` that fits: doubling until one does not, then bisection.
/// None is tried that is more than twice as large as one that fitted, unless none lies between.
/// What is found has been tried, even where a size fits though a smaller one does not.
BatchSearch find_largest(const std::vector<int64_t>& sizes,
                         const std::function<bool(int64_t size)>& fits);

/// Whether it says that memory is exhausted: LibTorch's, CUDA's and its libraries', the standard
/// library's.
bool is_out_of_memory(const std::exception& error);

/// Steps as training makes them, to see whether there is memory for them.
///
/// Note [Trials]: a trial is a micro-batch that does not complete its step: forward, loss and
/// backward on real samples, without communication, so that ranks may fail at different sizes, and
/// without an update, which takes no memory that is not there already. So nothing is changed but
/// the gradients, which the destructor makes zero again; weights, the optimizer's state and random
/// numbers stay as they were, and the loader begins anew with the first epoch.
class BatchTrials {
 public:
  /// Everything must outlive this object. @param devices at least one
  BatchTrials(const Options& options, DataLoader& loader, Mlp model, Optimizer& optimizer,
              std::vector<torch::Device> devices, ProcessGroup* process_group);
  ~BatchTrials();
  BatchTrials(const BatchTrials&) = delete;
  BatchTrials& operator=(const BatchTrials&) = delete;

  /// What may be taken beside what is in use now, where `sharers` processes take from one host.
  MemoryBudget budget(int sharers);
  /// From now on a step may take this much more than what is in use now, on each device.
  void allow(int64_t bytes);
  /// Whether a step of so many samples stays within that, and finds the memory.
  bool fits(int64_t batch_per_rank);

 private:
  class HostLimit;
  /// Whatever earlier trials have left.
  void release_memory();
  void try_step(int64_t batch_per_rank);

  Options options_;
  DataLoader& loader_;
  Mlp model_;
  Optimizer& optimizer_;
  std::vector<torch::Device> devices_;
  ProcessGroup* process_group_;
  std::unique_ptr<HostLimit> host_limit_;  // from allow() on, if the host computes
  int64_t allowed_bytes_ = 0;  // of each device, likewise the next
  std::vector<int64_t> bytes_before_;
};

/// Settles --batch-size auto: tells the loader, and the optimizer what --scale-lr makes of its
/// learning rate, and says on rank 0's stderr what was found. With --global-batch, or that of a
/// snapshot that training goes on from, a step becomes as many micro-batches as it takes.
/// Collective.
/// @param devices, process_group as Training has them
/// @return the options with the same in them
/// @throws UsageError, on all ranks, if there is not memory for one sample
Options find_batch(const Options& options, const LaunchEnvironment& launch, DataLoader& loader,
                   const Mlp& model, Optimizer& optimizer,
                   const std::vector<torch::Device>& devices, ProcessGroup* process_group);

}  // namespace ddp
