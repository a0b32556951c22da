// common/compiled/compiled_step.hpp - a training step that PyTorch's compiler made from Python.
#pragma once

#include "common/model/flat_parameters.hpp"
#include "common/model/mlp.hpp"

namespace torch::inductor {
class AOTIModelPackageLoader;
}

namespace ddp {

/// Loss and gradients of a model that tools/compile_step compiled. Autograd builds a graph in every
/// step; here the graph was built once, and its small operators became a few loops of C++. No
/// Python runs.
///
/// A module, so that optimizers, snapshots and checks work as for others: its parameters and
/// buffers have the names that they have in Python. Frozen parameters are buffers, so that the
/// optimizer leaves them alone.
class CompiledStep : public torch::nn::Module {
 public:
  /// Loads FILE.pt2, and the first weights from FILE.safetensors beside it.
  /// @param device of the kind given to compile_step
  /// @param allocate_gradients allocates the storage of gradients(); empty: LibTorch does
  /// @throws UsageError naming the file if it is damaged, or made for another processor, kind of
  /// device or version of LibTorch
  CompiledStep(const std::string& file, const torch::Device& device,
               const AllocateFunction& allocate_gradients = {});
  ~CompiledStep() override;

  /// Sets .grad() of every parameter, and updates the buffers as a forward in Python would.
  /// @param input (samples, ...) of the example's shape and dtype, but for the number of samples;
  /// without samples the loss and the gradients are zero
  /// @param target (samples, ...) likewise
  /// @param weight Batch::weight, see Note [Averaging] in data_loader.hpp
  /// @return () the loss times `weight`, detached
  /// @throws UsageError naming the expected shape, dtype and device
  /// @throws Error (1) for fewer samples than the model's BatchNorm needs
  torch::Tensor operator()(const torch::Tensor& input, const torch::Tensor& target,
                           double weight = 1);

  /// All gradients, with gaps between them, in the storage of the parameters' .grad().
  const torch::Tensor& gradients() const noexcept { return flat_.grad; }

  /// Loss and accuracy in the model's evaluation mode, see ddp::evaluate().
  Evaluation evaluate(const Samples& samples);

 private:
  /// Shape and dtype of an argument.
  struct Expected {
    const char* name;
    torch::ScalarType dtype;
    std::vector<int64_t> shape;  // without the samples
  };
  using Loader = torch::inductor::AOTIModelPackageLoader;

  void load_package(const torch::Device& device);
  void check(const Expected& expected, const torch::Tensor& tensor, int64_t samples) const;
  /// @return number of samples @throws UsageError unless shapes, dtypes and devices fit
  int64_t check_batch(const torch::Tensor& input, const torch::Tensor& target) const;
  /// @param last what follows the model's tensors
  std::vector<torch::Tensor> run(Loader& loader, const std::vector<torch::Tensor>& last);

  std::string file_;
  std::unique_ptr<Loader> step_;
  std::unique_ptr<Loader> evaluate_;
  FlatParameters flat_;
  // Parameters, then buffers, in the package's order, which may differ from the module's.
  std::vector<torch::Tensor> tensors_;
  std::vector<torch::Tensor> updated_;  // buffers that a step changes
  int64_t fewest_samples_ = 1;  // of a step: BatchNorm needs 2
  Expected input_;
  Expected target_;
  torch::Tensor weight_;  // () argument of the package
  double last_weight_ = 1;
};

inline Evaluation evaluate(CompiledStep& step, const Samples& samples) {
  return step.evaluate(samples);
}

}  // namespace ddp
