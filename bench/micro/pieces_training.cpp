// What happens to the parameters: optimizers, flat storage, snapshots.
#include "bench/micro/piece.hpp"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstdlib>
#include <filesystem>

#include "bench/micro/suites.hpp"
#include "bench/report/statistics.hpp"
#include "common/base/exit_codes.hpp"
#include "common/data/dataset.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/training/optimizer.hpp"
#include "common/training/snapshot.hpp"

namespace ddp::micro {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOptimizers[] = {"sgd", "momentum", "adam", "adamw"};

/// Values that a step reads or writes per parameter: the weight twice, the gradient once, and each
/// of the optimizer's own twice.
std::int64_t values_per_parameter(const std::string& kind) {
  return kind == "sgd" ? 3 : kind == "momentum" ? 5 : 7;
}

Options with_optimizer(const MicroOptions& options, const std::string& kind) {
  Options result = options.stage;
  result.optimizer = kind;
  return result;
}

/// Gradients that stay: they are not what is measured.
void set_gradients(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& parameter : module.parameters()) {
    const torch::Tensor values = torch::randn_like(parameter).mul_(1e-3);
    if (parameter.grad().defined()) {
      parameter.mutable_grad().copy_(values);  // a view of flat storage stays one
    } else {
      parameter.mutable_grad() = values;
    }
  }
}

/// LibTorch's own, with the same settings as ours: one parameter after the other.
std::shared_ptr<torch::optim::Optimizer> torch_optimizer(const Mlp& model, const Options& options) {
  const double rate = resolve_learning_rate(options);
  const std::vector<torch::Tensor> parameters = model->parameters();
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

std::unique_ptr<Exercise> optimizer_step(const Model& description, const Options& options,
                                         bool flat, const torch::Device& device) {
  Mlp model = make_model(description, device);
  const std::int64_t bytes =
      values_per_parameter(options.optimizer) * kFloatBytes * parameter_count(*model);
  if (flat) {
    const auto optimizer = std::make_shared<Optimizer>(*model, options);
    set_gradients(*model);
    return std::make_unique<Piece>([model, optimizer] { optimizer->step(); }, bytes);
  }
  set_gradients(*model);
  const auto optimizer = torch_optimizer(model, options);
  return std::make_unique<Piece>([model, optimizer] { optimizer->step(); }, bytes);
}

/// A model with all that a snapshot holds, in a folder that goes with it.
class Saved {
 public:
  Saved(const Model& description, const MicroOptions& options, const torch::Device& device)
      : folder_(make_folder()),
        options_(with_optimizer(options, "sgd")),
        model_(make_model(description, device)),
        optimizer_(*model_, options_) {
    options_.snapshot = (folder_ / "model.safetensors").string();
    options_.resume = "auto";
    dataset_.name = "synthetic";
    dataset_.layers = description.layers;
    snapshot_.emplace(options_, environment_, dataset_, *model_, optimizer_);
    save();
  }
  ~Saved() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  Saved(const Saved&) = delete;
  Saved& operator=(const Saved&) = delete;

  void save() { snapshot_->save(++epochs_); }
  void load() {
    if (snapshot_->load() != epochs_) {
      throw WrongResult("loading a snapshot gave another one than was saved last");
    }
  }
  std::int64_t bytes() const { return parameter_count(*model_) * kFloatBytes; }

 private:
  static fs::path make_folder() {
    std::string name = (fs::temp_directory_path() / "bench-micro-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw UsageError("TMPDIR: got " + fs::temp_directory_path().string() +
                       ", expected a writable folder");
    }
    return name;
  }

  fs::path folder_;
  Options options_;
  LaunchEnvironment environment_;
  Dataset dataset_;
  Mlp model_;
  Optimizer optimizer_;
  std::optional<Snapshot> snapshot_;
  std::int64_t epochs_ = 0;
};

}  // namespace

void Piece::report(const Series& series, benchmark::UserCounters& counters) const {
  if (bytes_ > 0) {
    const auto bytes = static_cast<double>(bytes_);
    counters["bytes"] = bytes;
    counters["bandwidth"] = bytes / bench::median(series.slowest()).value_or(0);
  }
}

std::vector<Entry> optimizer_pieces(const MicroOptions& options) {
  std::vector<Entry> entries;
  for (const char* const kind : kOptimizers) {
    for (const bool flat : {true, false}) {
      for (const Model& model : models()) {
        entries.push_back(
            {std::string("pieces/optimizer/") + kind + (flat ? "/flat/" : "/torch/") + model.name,
             "", [&options, &model, kind, flat](Team& team) {
               return optimizer_step(model, with_optimizer(options, kind), flat, team.device());
             }});
      }
    }
  }
  return entries;
}

std::vector<Entry> parameter_pieces(const MicroOptions&) {
  std::vector<Entry> entries;
  for (const Model& model : models()) {
    const std::string name = std::string("/") + model.name;
    entries.push_back(
        {"pieces/flatten_parameters" + name, "", [&model](Team& team) {
           const auto mlp = std::make_shared<Mlp>(make_model(model, team.device()));
           const std::int64_t bytes = 2 * kFloatBytes * parameter_count(**mlp);
           // Flat storage is found again by whoever asks twice, so each time gets a copy.
           const auto fresh = std::make_shared<std::shared_ptr<torch::nn::Module>>();
           return std::make_unique<Piece>(
               [fresh] { benchmark::DoNotOptimize(flatten_parameters(**fresh).data); }, bytes,
               [mlp, fresh] { *fresh = (*mlp)->clone(); });
         }});
    entries.push_back({"pieces/parameter_vector" + name, "", [&model](Team& team) {
                         const Mlp mlp = make_model(model, team.device());
                         const std::int64_t bytes =
                             (kFloatBytes + static_cast<std::int64_t>(sizeof(double))) *
                             parameter_count(*mlp);
                         return std::make_unique<Piece>(
                             [mlp] { benchmark::DoNotOptimize(parameter_vector(*mlp)); }, bytes);
                       }});
  }
  return entries;
}

std::vector<Entry> snapshot_pieces(const MicroOptions& options) {
  std::vector<Entry> entries;
  for (const Model& model : models()) {
    for (const bool save : {true, false}) {
      entries.push_back(
          {std::string(save ? "pieces/snapshot_save/" : "pieces/snapshot_load/") + model.name, "",
           [&options, &model, save](Team& team) {
             const auto saved = std::make_shared<Saved>(model, options, team.device());
             return std::make_unique<Piece>([saved, save] { save ? saved->save() : saved->load(); },
                                            saved->bytes());
           }});
    }
  }
  return entries;
}

}  // namespace ddp::micro
