#include "common/parallel/data_parallel.hpp"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <future>

namespace ddp {
namespace {

using torch::autograd::variable_list;

/// The parameters that collect gradients, in the module's order.
std::vector<torch::Tensor> trainable_parameters(const torch::nn::Module& module) {
  std::vector<torch::Tensor> parameters = module.parameters();
  std::erase_if(parameters, [](const torch::Tensor& tensor) { return !tensor.requires_grad(); });
  return parameters;
}

/// What autograd calls when the gradient of the gathered output is known.
struct GatherBackward : torch::autograd::Node {
  variable_list apply(variable_list&& gradients) override {
    // Taken out, so that the replicas' graphs are freed here even if the gathered output is kept.
    const std::vector<torch::Tensor> replica_outputs = std::move(outputs);
    TORCH_CHECK(replica_outputs.size() == replicas.size(),
                "Expected one backward per forward of data_parallel, got a second one");
    std::vector<torch::Device> devices;
    for (const torch::Tensor& output : replica_outputs) {
      devices.push_back(output.device());
    }
    const std::vector<torch::Tensor> output_gradients = scatter(gradients[0], devices);
    std::vector<variable_list> replica_gradients(replicas.size());
    parallel_apply(replicas.size(), [&](size_t i) {
      replica_gradients[i] = torch::autograd::grad(
          {replica_outputs[i]}, trainable_parameters(*replicas[i]), {output_gradients[i]},
          /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    });
    variable_list sums = std::move(replica_gradients[0]);
    for (size_t i = 1; i < replica_gradients.size(); ++i) {
      for (size_t p = 0; p < sums.size(); ++p) {
        if (replica_gradients[i][p].defined()) {
          const torch::Tensor part = replica_gradients[i][p].to(parameter_device);
          sums[p] = sums[p].defined() ? sums[p].to(parameter_device).add_(part) : part;
        }
      }
    }
    return sums;
  }

  std::vector<std::shared_ptr<torch::nn::Module>> replicas;
  std::vector<torch::Tensor> outputs;
  torch::Device parameter_device = torch::kCPU;
};

}  // namespace

std::vector<torch::Tensor> scatter(const torch::Tensor& input,
                                   const std::vector<torch::Device>& devices) {
  std::vector<torch::Tensor> parts =
      input.tensor_split(static_cast<int64_t>(devices.size()), /*dim=*/0);
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i] = parts[i].to(devices[i], /*non_blocking=*/true);
  }
  return parts;
}

std::vector<std::shared_ptr<torch::nn::Module>> replicate(
    const torch::nn::Module& module, const std::vector<torch::Device>& devices) {
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> originals = module.parameters();
  std::vector<std::shared_ptr<torch::nn::Module>> replicas;
  for (const torch::Device& device : devices) {
    std::shared_ptr<torch::nn::Module> replica = module.clone(device);
    std::vector<torch::Tensor> copies = replica->parameters();
    for (size_t p = 0; p < copies.size(); ++p) {
      if (originals[p].device() == device) {
        copies[p].set_data(originals[p].detach());
      }
      copies[p].mutable_grad().reset();
    }
    replicas.push_back(std::move(replica));
  }
  return replicas;
}

void parallel_apply(size_t replicas, const std::function<void(size_t)>& apply) {
  const bool grad_enabled = torch::GradMode::is_enabled();
  const auto apply_to = [&](size_t i) {
    at::init_num_threads();  // a new thread would compute with all cores, see Note [Threads]
    const torch::AutoGradMode grad_mode(grad_enabled);  // thread-local, so it must be handed on
    apply(i);
  };
  std::vector<std::future<void>> others;  // wait for their threads when they go
  for (size_t i = 1; i < replicas; ++i) {
    others.push_back(std::async(std::launch::async, apply_to, i));
  }
  apply_to(0);
  for (std::future<void>& other : others) {
    other.get();
  }
}

torch::Tensor gather(const torch::nn::Module& module,
                     const std::vector<std::shared_ptr<torch::nn::Module>>& replicas,
                     const std::vector<torch::Tensor>& outputs, const torch::Device& device) {
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& output : outputs) {
    parts.push_back(output.detach().to(device));
  }
  torch::Tensor gathered = torch::cat(parts);
  if (torch::GradMode::is_enabled()) {
    const std::vector<torch::Tensor> parameters = trainable_parameters(module);
    const auto node =
        std::shared_ptr<GatherBackward>(new GatherBackward(), torch::autograd::deleteNode);
    node->set_next_edges(torch::autograd::collect_next_edges(parameters));
    node->replicas = replicas;
    node->outputs = outputs;
    node->parameter_device = parameters.front().device();
    torch::autograd::set_history(gathered, node);
  }
  return gathered;
}

}  // namespace ddp
