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

/// Where the weights and the gradients of one replica of the MLP lie.
struct MlpStorage {
  std::vector<int64_t> widths;  ///< of the input, of each hidden layer, of the output
  std::vector<torch::Tensor> weights;  ///< of each layer, (out, in) float32
  std::vector<torch::Tensor> biases;  ///< (out)
  std::vector<torch::Tensor> weight_gradients;
  std::vector<torch::Tensor> bias_gradients;

  size_t layers() const { return weights.size(); }
};

/// The storage of an MLP whose parameters, laid out as `flat` is, are in `data` and `grad`.
/// @throws c10::Error unless the parameters are weight and bias of a chain of linear layers
MlpStorage mlp_storage(const FlatParameters& flat, const torch::Tensor& data,
                       const torch::Tensor& grad);

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
  c10::function_ref<void(Phase)> begin_phase;
  /// The weight and bias gradients of this layer are final. Layers come in order, the last first.
  c10::function_ref<void(size_t layer)> gradient_ready;
};

/// One replica's forward and backward without autograd: everything it writes was allocated when it
/// was made.
class Engine {
 public:
  Engine() = default;
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  virtual void run(const Work& work, const Progress& progress) = 0;
  /// Scalar on the engine's device, written by run(): the sum over the samples of their losses
  /// divided by batch.step_samples_per_rank.
  virtual const torch::Tensor& loss() const = 0;
};

/// An engine whose computation a CUDA Graph can repeat: what differs from batch to batch is copied
/// by load(), into memory that stays where it is.
class RepeatableEngine : public Engine {
 public:
  void run(const Work& work, const Progress& progress) final {
    load(work);
    compute(work.samples, work.accumulate, progress);
  }
  virtual void load(const Work& work) = 0;
  /// What is left of run().
  virtual void compute(int64_t samples, bool accumulate, const Progress& progress) = 0;
};

/// On the CPU: our own kernels, no allocation after construction.
/// @param max_samples the largest `samples` of a run
std::unique_ptr<Engine> make_host_engine(const MlpStorage& storage, int64_t max_samples,
                                         size_t threads);

/// On any device, CUDA above all: ATen operators that write to given tensors.
std::unique_ptr<RepeatableEngine> make_aten_engine(const MlpStorage& storage, int64_t max_samples);

}  // namespace ddp::fused
