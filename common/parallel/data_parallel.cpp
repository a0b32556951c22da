#include "common/parallel/data_parallel.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <unordered_set>

#include "common/device/device.hpp"

namespace ddp {
namespace {

using torch::autograd::variable_list;

std::vector<torch::Tensor> split_over(const torch::Tensor& input,
                                      const std::vector<torch::Device>& devices) {
  std::vector<torch::Tensor> parts =
      input.tensor_split(static_cast<int64_t>(devices.size()), /*dim=*/0);
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i] = parts[i].to(devices[i], /*non_blocking=*/true);
  }
  return parts;
}

/// Makes a node of a graph, held by shared_ptr, or from LibTorch 2.15 on by intrusive_ptr.
template <typename Node>
auto make_node() {
  using Pointer = decltype(torch::autograd::impl::grad_accumulator({}));
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::shared_ptr<Node>(new Node(), [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Node>();
  }
}

struct GatherBackward : torch::autograd::Node {
  variable_list apply(variable_list&& gradients) override {
    // Moved, so that the replicas' graphs are freed here even if the gathered output is kept.
    const std::vector<torch::Tensor> replica_outputs = std::move(outputs);
    TORCH_CHECK(replica_outputs.size() == parameters.size(),
                "Expected one backward per forward of DataParallel, got a second one");
    const std::vector<torch::Tensor> output_gradients =
        split_over(gradients[0], threads->devices());
    std::vector<variable_list> replica_gradients(parameters.size());
    threads->run([&](size_t i) {
      replica_gradients[i] = torch::autograd::grad(
          {replica_outputs[i]}, parameters[i], {output_gradients[i]},
          /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    });
    variable_list sums = std::move(replica_gradients[0]);
    for (size_t i = 1; i < replica_gradients.size(); ++i) {
      for (size_t p = 0; p < sums.size(); ++p) {
        if (replica_gradients[i][p].defined()) {
          const torch::Tensor part = replica_gradients[i][p].to(parameter_device);
          // Not in place: autograd may have given the same tensor to two parameters.
          sums[p] = sums[p].defined() ? sums[p].to(parameter_device) + part : part;
        }
      }
    }
    return sums;
  }

  std::shared_ptr<DeviceThreads> threads;
  std::vector<variable_list> parameters;  // by replica, all that require a gradient
  std::vector<torch::Tensor> outputs;
  torch::Device parameter_device = torch::kCPU;
};

}  // namespace

std::vector<std::shared_ptr<torch::nn::Module>> clone_to(
    const torch::nn::Module& module, const std::vector<torch::Device>& devices) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const torch::Tensor state = generator.get_state();  // a clone draws its first weights
  std::vector<std::shared_ptr<torch::nn::Module>> clones;
  for (const torch::Device& device : devices) {
    clones.push_back(module.clone(device));
  }
  generator.set_state(state);
  return clones;
}

DeviceThreads::DeviceThreads(std::vector<torch::Device> devices)
    : devices_(std::move(devices)),
      // Looks more often before it sleeps if each thread has a core: bridges the fetch of a batch.
      threads_(devices_.size(),
               WorkerPool::kSpinsBeforeSleep *
                   (std::cmp_less_equal(devices_.size(), count_cores()) ? 10 : 1)) {
  TORCH_CHECK(!devices_.empty(), "Expected at least one device, got none");
  for (auto device = devices_.begin(); device != devices_.end(); ++device) {
    // Autograd has one thread per device: backward would wait in that thread for itself.
    TORCH_CHECK(device->is_cpu() || std::find(devices_.begin(), device, *device) == device,
                "Expected each device once, got ", *device, " twice");
  }
  // Without it ATen's operators would use all cores in each of our threads.
  threads_.run([](size_t i) {
    if (i > 0) {
      leave_openmp_place();
      at::init_num_threads();
    }
  });
}

void DeviceThreads::run(c10::function_ref<void(size_t)> apply) {
  const bool grad_enabled = torch::GradMode::is_enabled();  // thread-local, as the streams are
  std::vector<c10::Stream> streams;
  if (!devices_[0].is_cpu()) {
    for (const torch::Device& device : devices_) {
      streams.push_back(current_stream(device));
    }
  }
  threads_.run([&](size_t i) {
    const torch::AutoGradMode grad_mode(grad_enabled);
    const c10::MultiStreamGuard stream_guard(streams);
    const c10::DeviceGuard device_guard(devices_[i]);
    apply(i);
  });
}

Replicas::Replicas(std::shared_ptr<torch::nn::Module> module, std::vector<torch::Device> devices)
    : module_(std::move(module)),
      threads_(std::make_shared<DeviceThreads>(std::move(devices))),
      replicas_(clone_to(*module_, threads_->devices())) {}

std::vector<torch::Tensor> Replicas::scatter(const torch::Tensor& input) const {
  TORCH_CHECK(!input.requires_grad() || !torch::GradMode::is_enabled(),
              "Expected an input of DataParallel that requires no gradient, got one: it would get "
              "none; wrap the layers before it, too");
  return split_over(input, threads_->devices());
}

void Replicas::replicate() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const torch::Device& device = threads_->devices()[i];
    const std::vector<torch::Tensor> parameters = module_->parameters();
    const std::vector<torch::Tensor> copies = replicas_[i]->parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const torch::Tensor& original = parameters[p];
      // New memory, as for buffers: the graph of an earlier forward may refer to the old memory.
      if (original.device() != device) {
        copies[p].set_data(original.detach().to(device, /*non_blocking=*/true));
      } else if (copies[p].const_data_ptr() != original.const_data_ptr()) {
        copies[p].set_data(original.detach());
      }
      copies[p].set_requires_grad(original.requires_grad());
    }
    const std::vector<torch::Tensor> buffers = module_->buffers();
    const std::vector<torch::Tensor> buffer_copies = replicas_[i]->buffers();
    for (size_t b = 0; b < buffers.size(); ++b) {
      const bool shares = i == 0 && buffers[b].device() == device;
      buffer_copies[b].set_data(
          shares ? buffers[b] : buffers[b].to(device, /*non_blocking=*/false, /*copy=*/true));
    }
    // From the root down, because train() sets the children too.
    const auto modules = module_->modules();
    const auto module_copies = replicas_[i]->modules();
    for (size_t m = 0; m < modules.size(); ++m) {
      if (module_copies[m]->is_training() != modules[m]->is_training()) {
        module_copies[m]->train(modules[m]->is_training());
      }
    }
  }
}

torch::Tensor Replicas::gather(const std::vector<torch::Tensor>& outputs) const {
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& output : outputs) {
    parts.push_back(output.detach().to(threads_->devices().front()));
  }
  torch::Tensor gathered = torch::cat(parts);
  if (!torch::GradMode::is_enabled()) {
    return gathered;
  }
  std::vector<torch::Tensor> originals;
  std::vector<variable_list> parameters(replicas_.size());
  std::unordered_set<const torch::TensorImpl*> seen;
  const std::vector<torch::Tensor> all = module_->parameters();
  for (size_t p = 0; p < all.size(); ++p) {
    // Tied parameters are a single tensor in the replica: asks for its gradient once.
    const torch::Tensor first = replicas_[0]->parameters()[p];
    if (seen.insert(first.unsafeGetTensorImpl()).second && all[p].requires_grad()) {
      originals.push_back(all[p]);
      for (size_t i = 0; i < replicas_.size(); ++i) {
        parameters[i].push_back(replicas_[i]->parameters()[p]);
      }
    }
  }
  if (!originals.empty()) {
    const auto node = make_node<GatherBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(originals));
    node->threads = threads_;
    node->parameters = std::move(parameters);
    node->outputs = outputs;
    node->parameter_device = originals.front().device();
    torch::autograd::set_history(gathered, node);
  }
  return gathered;
}

}  // namespace ddp
