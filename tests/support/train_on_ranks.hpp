// tests/support/train_on_ranks.hpp - the loop of stage 03, its ranks threads of one test process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/fused/fused_step.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/parallel/distributed_data_parallel.hpp"
#include "common/parallel/distributed_sampler.hpp"
#include "common/training/optimizer.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace ddp::test {

struct TrainedRanks {
  torch::Tensor weights;  ///< the same on all ranks
  std::vector<int64_t> state_bytes;  ///< of the optimizer, by rank
  int64_t all_reduce_bytes = 0;  ///< these three of rank 0, in all steps
  int64_t gather_bytes = 0;
  size_t all_reduces = 0;
};

/// @param options total_epochs is how many epochs are trained
/// @param backend as run_ranks() has it: a name, or how to connect
/// @throws c10::Error if the ranks end on different weights
template <typename BackendOrConnect = std::string>
TrainedRanks train_on_ranks(const Options& options, int world_size,
                            const BackendOrConnect& backend = "shm") {
  const Dataset dataset = load_dataset(options);
  torch::manual_seed(options.seed);
  const Mlp initial(dataset.layers);
  TrainedRanks trained;
  trained.state_bytes.resize(static_cast<size_t>(world_size));
  std::vector<torch::Tensor> weights(static_cast<size_t>(world_size));
  const auto train = [&](ProcessGroup& process_group) {
    process_group.enable_wait_timer();
    Mlp model = std::dynamic_pointer_cast<MlpImpl>(initial->clone());
    model->to(process_group.device());
    if (process_group.rank() > 0) {  // who is to get rank 0's weights
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : model->parameters()) {
        parameter.add_(process_group.rank());
      }
    }
    DistributedSampler sampler(dataset, process_group, options);
    DataLoader loader(dataset.train, sampler, options, process_group.device());
    DistributedDataParallel parallel_model(model, process_group, distributed_options(options));
    Optimizer optimizer(*model, options, &process_group);
    FusedStep fused_step(options, model, {process_group.device()}, &process_group,
                         [&] { optimizer.fused_step(); });
    process_group.take_wait();
    for (int64_t epoch = 0; epoch < options.total_epochs; ++epoch) {
      sampler.set_epoch(epoch);
      for (const Batch& batch : loader) {
        if (options.speedup != "none") {
          fused_step.run(batch, optimizer.learning_rate());
          continue;
        }
        const NoSync no_sync = parallel_model.no_sync(!batch.completes_step);
        loss(parallel_model.forward(batch.input), batch).backward();
        if (batch.completes_step) {
          optimizer.step();
          optimizer.zero_grad();
        }
      }
    }
    const auto rank = static_cast<size_t>(process_group.rank());
    weights[rank] = parameter_vector(*model);
    trained.state_bytes[rank] = optimizer.state_bytes();
    if (rank == 0) {
      const CommunicationWait wait = process_group.take_wait();
      trained.all_reduces = wait.all_reduce_bytes.size();
      for (const int64_t bytes : wait.all_reduce_bytes) {
        trained.all_reduce_bytes += bytes;
      }
      trained.gather_bytes = wait.gather_bytes;
    }
  };
  run_ranks(world_size, train, backend);
  for (const torch::Tensor& of_rank : weights) {
    TORCH_CHECK(torch::equal(of_rank, weights[0]), "Expected the same weights on all ranks");
  }
  trained.weights = weights[0];
  return trained;
}

}  // namespace ddp::test
