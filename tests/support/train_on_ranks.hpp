// tests/support/train_on_ranks.hpp - the loop of stage 03 on ranks as threads.
#pragma once

#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/distributed_data_parallel.hpp"
#include "common/parallel/distributed_sampler.hpp"
#include "common/training/optimizer.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace ddp::test {

/// @param options total_epochs is the number of epochs
/// @param backend argument of run_ranks(): a name, or a function that connects
/// @return the weights, (parameters) float64, the same on all ranks
/// @throws c10::Error if the ranks end on different weights
template <typename BackendOrConnect = std::string>
torch::Tensor train_on_ranks(const Options& options, int world_size,
                             const BackendOrConnect& backend = "shm") {
  const Dataset dataset = load_dataset(options);
  torch::manual_seed(options.seed);
  const Mlp initial(dataset.layers);
  std::vector<torch::Tensor> weights(static_cast<size_t>(world_size));
  const auto train = [&](ProcessGroup& process_group) {
    const int rank = process_group.rank();
    Mlp model = std::dynamic_pointer_cast<MlpImpl>(initial->clone());
    model->to(process_group.device());
    for (torch::Tensor& parameter : model->parameters()) {
      parameter.detach().add_(rank);  // the wrapper gives every rank rank 0's weights
    }
    DistributedSampler sampler(dataset.train.size(), rank, world_size, options.seed);
    DataLoader loader(dataset.train, sampler, options.batch_size, process_group.device());
    DistributedDataParallel parallel_model(model, process_group,
                                           {.buckets = bucket_sizes(options.bucket_mib)});
    const auto optimizer = make_optimizer(model->parameters(), options);
    for (int64_t epoch = 0; epoch < options.total_epochs; ++epoch) {
      sampler.set_epoch(epoch);
      for (const Batch& batch : loader) {
        optimizer->zero_grad();
        loss(parallel_model.forward(batch.input), batch.target, batch.weight).backward();
        optimizer->step();
      }
    }
    weights[static_cast<size_t>(rank)] = parameter_vector(*model);
  };
  run_ranks(world_size, train, backend);
  for (const torch::Tensor& of_rank : weights) {
    TORCH_CHECK(torch::equal(of_rank, weights[0]), "Expected the same weights on all ranks");
  }
  return weights[0];
}

}  // namespace ddp::test
