// common/fused/engine.hpp - forward and backward of an MLP, written by hand, on one device.
#pragma once

#include <c10/util/FunctionRef.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "common/data/data_loader.hpp"
#include "common/data/step_observer.hpp"
#include "common/model/flat_parameters.hpp"

namespace ddp::fused {

/// Where the parameters and the gradients of one layer of a replica lie.
struct LinearStorage {
  torch::Tensor weight;  ///< (out, in) float32
  torch::Tensor bias;  ///< (out)
  torch::Tensor weight_gradient;
  torch::Tensor bias_gradient;

  int64_t in() const { return weight.size(1); }
  int64_t out() const { return weight.size(0); }
};
using MlpStorage = std::vector<LinearStorage>;

/// The layers of an Mlp whose parameters, all of them trained and laid out as `flat` is, are in
/// `data` and `grad`.
inline MlpStorage mlp_storage(const FlatParameters& flat, const torch::Tensor& data,
                              const torch::Tensor& grad) {
  const auto part_of = [&flat](const torch::Tensor& all, size_t index) {
    const torch::Tensor& parameter = flat.parameters[index];
    return all.narrow(0, flat.offsets[index], parameter.numel()).view(parameter.sizes());
  };
  MlpStorage storage;
  for (size_t i = 0; i < flat.parameters.size(); i += 2) {
    storage.push_back(
        {part_of(data, i), part_of(data, i + 1), part_of(grad, i), part_of(grad, i + 1)});
  }
  return storage;
}

/// A batch, or a replica's part of one, and what its gradients are to be multiplied with.
struct Work {
  const Batch& batch;
  int64_t begin;  ///< first sample
  int64_t samples;  ///< may be 0
  double gradient_scale;  ///< 1 / (samples of the step), see Note [Averaging]
  bool accumulate;  ///< add to the gradients that are there instead of replacing them
};

/// What an engine tells while it runs, on the thread that runs it.
struct Progress {
  StepObserver& observer;  ///< of the phases
  /// The weight and bias gradients of this layer are final. Layers come in order, the last first.
  c10::function_ref<void(size_t layer)> gradient_ready;
};

/// One replica's forward and backward without autograd: all it writes was allocated with it.
class Engine {
 public:
  Engine() = default;
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Before compute(). A CUDA Graph repeats compute() alone, so an engine for GPUs copies here all
  /// that differs from batch to batch into memory that stays where it is. (Batch::rows do.)
  virtual void load(const Work&) {}
  virtual void compute(const Work& work, const Progress& progress) = 0;
  /// Whether all gradients that compute() has made so far are finite. False if this engine does not
  /// look, or was not asked to.
  virtual bool gradients_are_finite() const { return false; }
  /// Whether ReLU is a part of the product's own kernel.
  virtual bool fuses_relu() const { return true; }
  /// Scalar on the engine's device, written by compute(): the sum over the samples of their losses
  /// divided by batch.step_samples_per_rank.
  virtual const torch::Tensor& loss() const = 0;
};

/// On the CPU: our own kernels, no allocation after construction.
/// @param max_samples the largest `samples` of a run
/// @param look at the gradients: are they finite?
std::unique_ptr<Engine> make_host_engine(const MlpStorage& storage, int64_t max_samples,
                                         size_t threads, bool look = false);

/// On any device, CUDA above all: ATen operators that write to given tensors.
std::unique_ptr<Engine> make_aten_engine(const MlpStorage& storage, int64_t max_samples);

}  // namespace ddp::fused
