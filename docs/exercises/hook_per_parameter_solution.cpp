// docs/exercises/hook_per_parameter_solution.cpp - the exercise's solution.
//
//   task: docs/exercises/18_hook_per_parameter.md
//   run:  build/bin/hook_per_parameter_solution 3 9 --nprocs 2

#include <utility>
#include <vector>

#include "common/stage.hpp"
#include "docs/exercises/gradient_hook.hpp"

namespace {

void train(const ddp::Options& options, const ddp::LaunchEnvironment& launch) {
  // 1. Device.
  const torch::Device device = ddp::set_device(options, launch.rank);
  ddp::init_process_group(options, launch, device);

  // 2. Data. The seed fixes the samples and their order: all stages read the same samples.
  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::DistributedSampler sampler(dataset, options);
  ddp::DataLoader loader(dataset.train, sampler, options, device);

  // 3. Model. Seeded, so that all stages start from the same weights.
  torch::manual_seed(options.seed);
  ddp::Mlp model(dataset.layers, options.verbose);
  model->to(device);
  ddp::expect_uncompressed(options);
  for (const torch::Tensor& parameter : model->parameters()) {
    ddp::broadcast(parameter.detach());
  }
  // Each gradient's all-reduce starts when backward has made it, and goes on beside the rest.
  const ddp::ProcessGroup& group = ddp::default_process_group();
  std::vector<std::pair<torch::Tensor, c10::intrusive_ptr<c10d::Work>>> on_their_way;
  for (const torch::Tensor& parameter : model->parameters()) {
    on_gradient(parameter, [&](const torch::Tensor& gradient) {
      if (!group.is_accumulating()) {
        on_their_way.emplace_back(gradient, group.start_all_reduce(gradient));
      }
    });
  }

  // 4. Optimizer.
  ddp::Optimizer optimizer(*model, options);

  // 5. Train.
  ddp::Training training(options, launch, dataset, loader, model, optimizer);
  for (const int64_t epoch : training.epochs()) {
    sampler.set_epoch(epoch);  // another order
    for (const ddp::Batch& batch : loader) {
      const torch::Tensor output = model->forward(batch.input);
      const torch::Tensor loss = ddp::loss(output, batch);
      loss.backward();
      for (const auto& [gradient, work] : on_their_way) {
        group.wait(work);
        gradient.div_(launch.world_size);
      }
      on_their_way.clear();
      optimizer.step();
      optimizer.zero_grad();
    }
    if (launch.rank == 0 && (epoch + 1) % options.save_every == 0) {
      training.save_snapshot();
    }
  }

  // 6. Report. With the same --global-batch the weights move as far in every stage, or it is wrong.
  training.report();
  ddp::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::spawn(argc, argv, train);
}
