// How a batch comes to the model, and how stage 02 shares it among devices.
#include "bench/micro/piece.hpp"
#include "bench/micro/suites.hpp"
#include "common/backends/device.hpp"
#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/parallel/data_parallel.hpp"

namespace ddp::micro {
namespace {

constexpr std::int64_t kSamples = 2048;  // the stages' default
constexpr std::int64_t kClassBytes = sizeof(std::int64_t);

/// The loader of stage 01 over synthetic samples, batch by batch, epoch after epoch.
struct EndlessLoader {
  EndlessLoader(const Model& model, const torch::Device& device)
      : samples{torch::randn({kSamples, model.layers.front()}),
                torch::randint(model.layers.back(), {kSamples}, torch::kInt64)},
        sampler(kSamples, /*seed=*/0),
        loader(samples, sampler, {.batch_per_rank = model.batch_per_rank, .device = device}) {}

  /// Begins anew if the next batch would be the first of an epoch.
  void prepare() {
    if (++batch >= kSamples / loader.batch_per_rank()) {
      iterator = loader.begin();
      batch = 1;
    }
  }

  Samples samples;
  RandomSampler sampler;
  DataLoader loader;
  DataLoader::Iterator iterator{nullptr};
  std::int64_t batch = kSamples;
};

std::unique_ptr<Exercise> load_batch(const Model& model, const torch::Device& device) {
  const auto endless = std::make_shared<EndlessLoader>(model, device);
  const std::int64_t bytes =
      model.batch_per_rank * (model.layers.front() * kFloatBytes + kClassBytes);
  return std::make_unique<Piece>(
      [endless] {
        ++endless->iterator;
        benchmark::DoNotOptimize((*endless->iterator).input.const_data_ptr());
      },
      2 * bytes, [endless] { endless->prepare(); });
}

/// One step of stage 02, up to its backward.
struct Replicated {
  Replicated(const Model& description, const std::vector<torch::Device>& all)
      : devices(all),
        model(make_model(description, all.front())),
        batch(torch::randn({description.batch_per_rank * static_cast<std::int64_t>(all.size()),
                            description.layers.front()})),
        replicas(replicate(*model, all)),
        outputs(all.size()) {
    const std::vector<torch::Tensor> inputs = scatter(batch, devices);
    parallel_apply(devices.size(), [&](size_t i) {
      outputs[i] = std::dynamic_pointer_cast<MlpImpl>(replicas[i])->forward(inputs[i]);
    });
  }

  std::vector<torch::Device> devices;
  Mlp model;
  torch::Tensor batch;  // (batch over all devices, in_features) float32, on the host
  std::vector<std::shared_ptr<torch::nn::Module>> replicas;
  std::vector<torch::Tensor> outputs;  // by device: (batch_per_rank, out_features) float32
};

std::unique_ptr<Exercise> scatter_batch(const std::shared_ptr<Replicated>& state) {
  return std::make_unique<Piece>(
      [state] { benchmark::DoNotOptimize(scatter(state->batch, state->devices)); }, 0);
}

std::unique_ptr<Exercise> replicate_model(const std::shared_ptr<Replicated>& state) {
  return std::make_unique<Piece>(
      [state] { benchmark::DoNotOptimize(replicate(*state->model, state->devices)); }, 0);
}

std::unique_ptr<Exercise> gather_outputs(const std::shared_ptr<Replicated>& state) {
  const torch::Tensor whole = torch::cat(state->outputs);
  return std::make_unique<Piece>(
      [state] {
        benchmark::DoNotOptimize(
            gather(*state->model, state->replicas, state->outputs, state->devices.front()));
      },
      2 * static_cast<std::int64_t>(whole.nbytes()));
}

}  // namespace

std::vector<Entry> data_pieces(const MicroOptions& options) {
  std::vector<Entry> entries;
  for (const Model& model : models()) {
    const std::string name = std::string("/") + model.name;
    const auto replicated = [&options, &model] {
      return std::make_shared<Replicated>(model, set_devices(options.stage));
    };
    entries.push_back({"pieces/data_loader" + name, "",
                       [&model](Team& team) { return load_batch(model, team.device()); }});
    entries.push_back(
        {"pieces/scatter" + name, "", [replicated](Team&) { return scatter_batch(replicated()); }});
    entries.push_back({"pieces/replicate" + name, "",
                       [replicated](Team&) { return replicate_model(replicated()); }});
    entries.push_back(
        {"pieces/gather" + name, "", [replicated](Team&) { return gather_outputs(replicated()); }});
  }
  entries.push_back({"pieces/parallel_apply", "", [&options](Team&) {
                       const size_t replicas = set_devices(options.stage).size();
                       return std::make_unique<Piece>(
                           [replicas] { parallel_apply(replicas, [](size_t) {}); }, 0);
                     }});
  return entries;
}

}  // namespace ddp::micro
