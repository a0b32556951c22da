// What single pieces of a training step cost, on one rank: data, replicas, optimizers, snapshots.
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <turbojpeg.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>

#include "bench/micro/suites.hpp"
#include "bench/report/statistics.hpp"
#include "bench/report/step_cost.hpp"
#include "common/backends/device.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/data/tensor_file.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/data_parallel.hpp"
#include "common/training/optimizer.hpp"
#include "common/training/snapshot.hpp"

namespace ddp::micro {
namespace {

constexpr std::int64_t kSamples = 2048;  // the stages' default
constexpr std::int64_t kClassBytes = sizeof(std::int64_t);

struct Model {
  std::string name;
  std::vector<std::int64_t> layers;
  std::int64_t batch_per_rank;
};

/// Those of bench, from one that is all overhead to one that is all arithmetic.
const std::vector<Model> kModels = {
    {"S", {64, 128, 128, 10}, 32},
    {"M", {784, 512, 512, 10}, 64},
    {"L", {1024, 1024, 1024, 1024}, 64},
};

Mlp make_mlp(const Model& model, const torch::Device& device) {
  torch::manual_seed(0);
  Mlp mlp(model.layers);
  mlp->to(device);
  return mlp;
}

std::int64_t parameter_count(const Mlp& mlp) {
  std::int64_t count = 0;
  for (const torch::Tensor& parameter : mlp->parameters()) {
    count += parameter.numel();
  }
  return count;
}

/// @param bytes that must at least be read and written, 0: no measure of this piece
Exercise piece(
    std::int64_t bytes, const std::function<void()>& run,
    const std::function<void()>& prepare = [] {}) {
  return {.run = run,
          .report =
              [bytes](const Series& series, benchmark::UserCounters& counters) {
                if (bytes > 0) {
                  counters["bytes"] = static_cast<double>(bytes);
                  counters["bandwidth"] =
                      static_cast<double>(bytes) / bench::median(series.slowest()).value_or(0);
                }
              },
          .prepare = [prepare](std::int64_t) { prepare(); }};
}

/// The loader of stage 01, batch by batch, epoch after epoch.
struct EndlessLoader {
  EndlessLoader(const Samples& all, std::int64_t batch_per_rank, const torch::Device& device)
      : samples(all),
        sampler(all.size(), /*seed=*/0),
        loader(samples, sampler, {.batch_per_rank = batch_per_rank, .device = device}) {}

  /// Begins anew if the next batch would be the first of an epoch.
  void prepare() {
    if (++batch >= samples.size() / loader.batch_per_rank()) {
      iterator = loader.begin();
      batch = 1;
    }
  }

  Samples samples;
  RandomSampler sampler;
  DataLoader loader;
  DataLoader::Iterator iterator{nullptr};
  std::int64_t batch = samples.size();
};

Exercise load_batch(const Model& model, const torch::Device& device) {
  const Samples synthetic{torch::randn({kSamples, model.layers.front()}),
                          torch::randint(model.layers.back(), {kSamples}, torch::kInt64)};
  const auto endless = std::make_shared<EndlessLoader>(synthetic, model.batch_per_rank, device);
  const std::int64_t bytes =
      model.batch_per_rank * (model.layers.front() * kFloatBytes + kClassBytes);
  return piece(
      2 * bytes,
      [endless] {
        ++endless->iterator;
        benchmark::DoNotOptimize((*endless->iterator).input.const_data_ptr());
      },
      [endless] { endless->prepare(); });
}

/// 160 pictures as JPEG files, and their pixels as a safetensors file. A fifth is held out.
class Pictures {
 public:
  static constexpr std::int64_t kCount = 160;
  static constexpr std::int64_t kBatch = 64;
  static constexpr std::int64_t kSide = 224;
  static constexpr std::int64_t kBytes = kSide * kSide * 3;

  Pictures() {
    torch::manual_seed(0);
    for (std::int64_t i = 0; i < kCount; ++i) {
      // Surfaces, edges and a little noise, as photographs have them: 28 coarse patches a side.
      const torch::Tensor patches = torch::rand({kSide / 8, 1, kSide / 8, 1, 3}) * 230;
      const torch::Tensor picture = patches.expand({-1, 8, -1, 8, -1}).reshape({kSide, kSide, 3}) +
                                    torch::rand({kSide, kSide, 3}) * 25;
      save(
          picture.to(torch::kUInt8).contiguous(),
          folder_.path() + (i < kCount / 2 ? "/jpeg/a/" : "/jpeg/b/") + std::to_string(i) + ".jpg");
    }
    const ImageFolder images(jpeg_path());
    const torch::Tensor pixels = torch::empty({kCount, kBytes}, torch::kUInt8);
    for (std::int64_t i = 0; i < kCount; ++i) {
      images.decode(static_cast<size_t>(i), pixels.mutable_data_ptr<uint8_t>() + i * kBytes);
    }
    write_tensor_file(
        tensors_path(),
        {{}, {{"features", pixels}, {"labels", torch::tensor(images.labels(), torch::kInt64)}}});
  }

  std::string jpeg_path() const { return folder_.path() + "/jpeg"; }
  std::string tensors_path() const { return folder_.path() + "/pictures.safetensors"; }

 private:
  static void save(const torch::Tensor& picture, const std::string& path) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    const tjhandle encoder = tjInitCompress();
    unsigned char* bytes = nullptr;
    unsigned long size = 0;
    const int failed = tjCompress2(encoder, picture.const_data_ptr<uint8_t>(), kSide, 0, kSide,
                                   TJPF_RGB, &bytes, &size, TJSAMP_420, /*jpegQual=*/90, 0);
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes), static_cast<std::streamsize>(size));
    tjFree(bytes);
    tjDestroy(encoder);
    TORCH_CHECK(failed == 0, "Expected a JPEG file, got no ", path);
  }

  ScratchFolder folder_{"bench-micro"};
};

/// A batch of pictures, as a loader reads them in every epoch.
Exercise load_pictures(bool decode, const torch::Device& device) {
  const auto pictures = std::make_shared<const Pictures>();
  Options options;
  options.dataset = decode ? pictures->jpeg_path() : pictures->tensors_path();
  const auto endless =
      std::make_shared<EndlessLoader>(load_dataset(options).train, Pictures::kBatch, device);
  Exercise exercise = piece(
      Pictures::kBatch * Pictures::kBytes,
      [endless, pictures] {
        ++endless->iterator;
        benchmark::DoNotOptimize((*endless->iterator).input.const_data_ptr());
      },
      [endless] { endless->prepare(); });
  exercise.report = [report = exercise.report](const Series& series,
                                               benchmark::UserCounters& counters) {
    report(series, counters);
    counters["images_per_second"] =
        static_cast<double>(Pictures::kBatch) / bench::median(series.slowest()).value_or(0);
  };
  return exercise;
}

/// One step of stage 02, up to its backward.
struct Replicated {
  Replicated(const Model& description, const std::vector<torch::Device>& all)
      : devices(all),
        model(make_mlp(description, all.front())),
        batch(torch::randn({description.batch_per_rank * static_cast<std::int64_t>(all.size()),
                            description.layers.front()})),
        replicas(replicate(*model, all)),
        outputs(all.size()) {
    const std::vector<torch::Tensor> inputs = scatter(batch, devices);
    parallel_apply(devices.size(), [&](size_t i) {
      outputs[i] = std::dynamic_pointer_cast<MlpImpl>(replicas->modules[i])->forward(inputs[i]);
    });
  }

  std::vector<torch::Device> devices;
  Mlp model;
  torch::Tensor batch;  // (batch over all devices, in_features) float32, on the host
  std::shared_ptr<const Replicas> replicas;
  std::vector<torch::Tensor> outputs;  // by device: (batch_per_rank, out_features) float32
};

Exercise scatter_batch(const std::shared_ptr<Replicated>& state) {
  return piece(0, [state] { benchmark::DoNotOptimize(scatter(state->batch, state->devices)); });
}

Exercise replicate_model(const std::shared_ptr<Replicated>& state) {
  return piece(0, [state] { benchmark::DoNotOptimize(replicate(*state->model, state->devices)); });
}

Exercise gather_outputs(const std::shared_ptr<Replicated>& state) {
  const auto bytes = static_cast<std::int64_t>(torch::cat(state->outputs).nbytes());
  return piece(2 * bytes, [state] {
    benchmark::DoNotOptimize(gather(*state->replicas, state->outputs, state->devices.front()));
  });
}

/// LibTorch's own, with the same settings as ours: one parameter after the other.
std::shared_ptr<torch::optim::Optimizer> torch_optimizer(const Mlp& mlp, const Options& options) {
  const double rate = resolve_learning_rate(options);
  const std::vector<torch::Tensor> parameters = mlp->parameters();
  if (options.optimizer == "adam") {
    return std::make_shared<torch::optim::Adam>(parameters, torch::optim::AdamOptions(rate));
  }
  if (options.optimizer == "adamw") {
    return std::make_shared<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(rate));
  }
  return std::make_shared<torch::optim::SGD>(
      parameters,
      torch::optim::SGDOptions(rate).momentum(options.optimizer == "momentum" ? 0.9 : 0.0));
}

Exercise optimizer_step(const Model& model, Options options, const std::string& kind, bool flat,
                        const torch::Device& device) {
  options.optimizer = kind;
  Mlp mlp = make_mlp(model, device);
  std::function<void()> step;
  if (flat) {
    step = [optimizer = std::make_shared<Optimizer>(*mlp, options)] { optimizer->step(); };
  } else {
    step = [optimizer = torch_optimizer(mlp, options)] { optimizer->step(); };
  }
  // Gradients that stay: they are not what is measured.
  mlp->forward(torch::ones({1, model.layers.front()}, device)).mean().backward();
  return piece(bench::updated_values(kind) * kFloatBytes * parameter_count(mlp), step);
}

Exercise flatten_model(const Model& model, const torch::Device& device) {
  const Mlp mlp = make_mlp(model, device);
  // Flat storage is found again by whoever asks twice, so each time gets a copy.
  const auto fresh = std::make_shared<std::shared_ptr<torch::nn::Module>>();
  return piece(
      2 * kFloatBytes * parameter_count(mlp),
      [fresh] { benchmark::DoNotOptimize(flatten_parameters(**fresh).data); },
      [mlp, fresh] { *fresh = mlp->clone(); });
}

Exercise copy_parameters(const Model& model, const torch::Device& device) {
  const Mlp mlp = make_mlp(model, device);
  constexpr auto kDoubleBytes = static_cast<std::int64_t>(sizeof(double));
  return piece((kFloatBytes + kDoubleBytes) * parameter_count(mlp),
               [mlp] { benchmark::DoNotOptimize(parameter_vector(*mlp)); });
}

/// A model with all that a snapshot holds, in a folder that goes with it.
class Saved {
 public:
  Saved(const Model& model, const Options& options, const torch::Device& device)
      : options_(options), mlp_(make_mlp(model, device)), optimizer_(*mlp_, options) {
    options_.snapshot = folder_.path() + "/model.safetensors";
    options_.resume = "auto";
    dataset_.name = "synthetic";
    dataset_.layers = model.layers;
    save();
  }

  void save() { snapshot_.save(++epochs_); }
  void load() {
    if (snapshot_.load() != epochs_) {
      throw WrongResult("loading a snapshot gave another one than was saved last");
    }
  }
  std::int64_t bytes() const { return parameter_count(mlp_) * kFloatBytes; }

 private:
  ScratchFolder folder_{"bench-micro"};
  Options options_;
  LaunchEnvironment environment_;
  Dataset dataset_;
  Mlp mlp_;
  Optimizer optimizer_;
  Snapshot snapshot_{options_, environment_, dataset_, *mlp_, optimizer_};
  std::int64_t epochs_ = 0;
};

}  // namespace

std::vector<Entry> piece_entries(const MicroOptions& options) {
  std::vector<Entry> entries;
  const auto add = [&](const std::string& name, const auto& make) {
    entries.push_back({"pieces/" + name, "", [make](Team& team) { return make(team.device()); }});
  };
  for (const Model& model : kModels) {
    add("data_loader/" + model.name,
        [&model](const torch::Device& device) { return load_batch(model, device); });
    const auto add_replicated = [&](const std::string& name, const auto& make) {
      add(name + model.name, [&options, &model, make](const torch::Device&) {
        return make(std::make_shared<Replicated>(model, set_devices(options.stage)));
      });
    };
    add_replicated("scatter/", scatter_batch);
    add_replicated("replicate/", replicate_model);
    add_replicated("gather/", gather_outputs);
  }
  for (const bool decode : {true, false}) {
    add(decode ? "images/jpeg" : "images/tensors",
        [decode](const torch::Device& device) { return load_pictures(decode, device); });
  }
  add("parallel_apply", [&options](const torch::Device&) {
    const size_t replicas = set_devices(options.stage).size();
    return piece(0, [replicas] { parallel_apply(replicas, [](size_t) {}); });
  });
  for (const std::string kind : {"sgd", "momentum", "adam", "adamw"}) {
    for (const bool flat : {true, false}) {
      for (const Model& model : kModels) {
        add("optimizer/" + kind + (flat ? "/flat/" : "/torch/") + model.name,
            [&options, &model, kind, flat](const torch::Device& device) {
              return optimizer_step(model, options.stage, kind, flat, device);
            });
      }
    }
  }
  for (const Model& model : kModels) {
    add("flatten_parameters/" + model.name,
        [&model](const torch::Device& device) { return flatten_model(model, device); });
    add("parameter_vector/" + model.name,
        [&model](const torch::Device& device) { return copy_parameters(model, device); });
  }
  for (const Model& model : kModels) {
    for (const bool save : {true, false}) {
      add((save ? "snapshot_save/" : "snapshot_load/") + model.name,
          [&options, &model, save](const torch::Device& device) {
            const auto saved = std::make_shared<Saved>(model, options.stage, device);
            return piece(saved->bytes(), [saved, save] { save ? saved->save() : saved->load(); });
          });
    }
  }
  return entries;
}

}  // namespace ddp::micro
