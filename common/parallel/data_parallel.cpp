#include "common/parallel/data_parallel.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "common/launch/spawn.hpp"
#include "common/parallel/worker_pool.hpp"

namespace ddp {
namespace {

using torch::autograd::variable_list;

/// What autograd calls when the gradient of the gathered output is known.
struct GatherBackward : torch::autograd::Node {
  variable_list apply(variable_list&& gradients) override {
    // Taken out, so that the replicas' graphs are freed here even if the gathered output is kept.
    const std::vector<torch::Tensor> replica_outputs = std::move(outputs);
    TORCH_CHECK(replica_outputs.size() == parameters.size(),
                "Expected one backward per forward of data_parallel, got a second one");
    std::vector<torch::Device> devices;
    for (const torch::Tensor& output : replica_outputs) {
      devices.push_back(output.device());
    }
    const std::vector<torch::Tensor> output_gradients = scatter(gradients[0], devices);
    std::vector<variable_list> replica_gradients(parameters.size());
    parallel_apply(devices, [&](size_t i) {
      replica_gradients[i] = torch::autograd::grad(
          {replica_outputs[i]}, parameters[i], {output_gradients[i]},
          /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    });
    variable_list sums = std::move(replica_gradients[0]);
    for (size_t i = 1; i < replica_gradients.size(); ++i) {
      for (size_t p = 0; p < sums.size(); ++p) {
        if (replica_gradients[i][p].defined()) {
          const torch::Tensor part = replica_gradients[i][p].to(parameter_device);
          // Not in place: autograd may have given one tensor to two parameters.
          sums[p] = sums[p].defined() ? sums[p].to(parameter_device) + part : part;
        }
      }
    }
    return sums;
  }

  std::vector<variable_list> parameters;  // of each replica, those that require a gradient
  std::vector<torch::Tensor> outputs;
  torch::Device parameter_device = torch::kCPU;
};

/// See Note [Replicas].
struct KeptReplicas {
  std::weak_ptr<const torch::nn::Module> module;
  std::vector<torch::Device> devices;
  std::shared_ptr<const Replicas> replicas;
};

/// Of the models of this thread's `train`, which in tests is one of several.
thread_local std::vector<KeptReplicas> kept_replicas;

/// Of the last parallel_apply() of this thread: to start threads takes longer than a small step.
thread_local std::unique_ptr<WorkerPool> kept_pool;

/// Puts the state of the CPU's default generator back, where modules draw their first weights.
class RandomStateGuard {
 public:
  RandomStateGuard() : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~RandomStateGuard() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(state_);
  }
  RandomStateGuard(const RandomStateGuard&) = delete;
  RandomStateGuard& operator=(const RandomStateGuard&) = delete;

 private:
  at::Generator generator_;
  torch::Tensor state_;
};

std::shared_ptr<const Replicas> make_replicas(const torch::nn::Module& module,
                                              const std::vector<torch::Device>& devices) {
  const auto replicas = std::make_shared<Replicas>();
  replicas->originals = module.parameters();
  replicas->modules = clone_to(module, devices);
  for (const auto& replica : replicas->modules) {
    replicas->parameters.push_back(replica->parameters());
  }
  return replicas;
}

bool are_same(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::ranges::equal(a, b, [](const torch::Tensor& left, const torch::Tensor& right) {
    return left.is_same(right);
  });
}

/// Those of a living module, with the same parameters as when they were made.
std::shared_ptr<const Replicas> find_replicas(const torch::nn::Module& module,
                                              const std::vector<torch::Device>& devices) {
  std::erase_if(kept_replicas, [](const KeptReplicas& kept) { return kept.module.expired(); });
  const auto kept = std::ranges::find_if(kept_replicas, [&](const KeptReplicas& candidate) {
    return candidate.module.lock().get() == &module && candidate.devices == devices;
  });
  if (kept == kept_replicas.end()) {
    at_train_end([] {
      kept_replicas.clear();
      kept_pool.reset();
    });
    kept_replicas.push_back({module.weak_from_this(), devices, make_replicas(module, devices)});
    return kept_replicas.back().replicas;
  }
  if (!are_same(module.parameters(), kept->replicas->originals)) {
    kept->replicas = make_replicas(module, devices);
  }
  return kept->replicas;
}

/// Parameters and their gradients' needs, buffers, and whether it trains.
void update_replica(const torch::nn::Module& module, const Replicas& replicas, size_t i,
                    const torch::Device& device) {
  for (size_t p = 0; p < replicas.originals.size(); ++p) {
    const torch::Tensor& original = replicas.originals[p];
    torch::Tensor copy = replicas.parameters[i][p];
    // New memory, as for buffers: the graph of an earlier forward may refer to the old.
    if (original.device() != device) {
      copy.set_data(original.detach().to(device, /*non_blocking=*/true));
    } else if (copy.const_data_ptr() != original.const_data_ptr()) {
      copy.set_data(original.detach());
    }
    copy.set_requires_grad(original.requires_grad());
  }
  const std::vector<torch::Tensor> buffers = module.buffers();
  const std::vector<torch::Tensor> buffer_copies = replicas.modules[i]->buffers();
  for (size_t b = 0; b < buffers.size(); ++b) {
    const bool shares = i == 0 && buffers[b].device() == device;
    buffer_copies[b].set_data(
        shares ? buffers[b] : buffers[b].to(device, /*non_blocking=*/false, /*copy=*/true));
  }
  // From the root down: train() sets what is below, too.
  const auto modules = module.modules();
  const auto module_copies = replicas.modules[i]->modules();
  for (size_t m = 0; m < modules.size(); ++m) {
    if (module_copies[m]->is_training() != modules[m]->is_training()) {
      module_copies[m]->train(modules[m]->is_training());
    }
  }
}

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

std::vector<std::shared_ptr<torch::nn::Module>> clone_to(
    const torch::nn::Module& module, const std::vector<torch::Device>& devices) {
  const RandomStateGuard guard;
  std::vector<std::shared_ptr<torch::nn::Module>> clones;
  for (const torch::Device& device : devices) {
    clones.push_back(module.clone(device));
  }
  return clones;
}

std::shared_ptr<const Replicas> replicate(const torch::nn::Module& module,
                                          const std::vector<torch::Device>& devices) {
  const torch::NoGradGuard no_grad;
  std::shared_ptr<const Replicas> replicas = find_replicas(module, devices);
  for (size_t i = 0; i < devices.size(); ++i) {
    update_replica(module, *replicas, i, devices[i]);
  }
  return replicas;
}

void parallel_apply(size_t replicas, const std::function<void(size_t)>& apply) {
  // Not kept while it works, for a replica that is itself a data_parallel.
  std::unique_ptr<WorkerPool> pool = std::move(kept_pool);
  if (pool == nullptr || pool->size() != replicas) {
    pool = std::make_unique<WorkerPool>(replicas);
  }
  const bool grad_enabled = torch::GradMode::is_enabled();
  pool->run([&](size_t i) {
    const torch::AutoGradMode grad_mode(grad_enabled);  // thread-local, so it must be handed on
    apply(i);
  });
  kept_pool = std::move(pool);
}

void parallel_apply(const std::vector<torch::Device>& devices,
                    const std::function<void(size_t)>& apply) {
  std::vector<c10::Stream> streams;  // thread-local, as the current device
  for (const torch::Device& device : devices) {
    streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  parallel_apply(devices.size(), [&](size_t i) {
    const c10::StreamGuard guard(streams[i]);
    apply(i);
  });
}

torch::Tensor gather(const Replicas& replicas, const std::vector<torch::Tensor>& outputs,
                     const torch::Device& device) {
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& output : outputs) {
    parts.push_back(output.detach().to(device));
  }
  torch::Tensor gathered = torch::cat(parts);
  if (!torch::GradMode::is_enabled()) {
    return gathered;
  }
  std::vector<torch::Tensor> originals;
  std::vector<variable_list> parameters(replicas.parameters.size());
  std::unordered_set<const torch::TensorImpl*> seen;
  for (size_t p = 0; p < replicas.originals.size(); ++p) {
    // Tied parameters may be one in the replica, too: its gradient is asked for once.
    const bool is_new = seen.insert(replicas.parameters[0][p].unsafeGetTensorImpl()).second;
    if (is_new && replicas.originals[p].requires_grad()) {
      originals.push_back(replicas.originals[p]);
      for (size_t i = 0; i < parameters.size(); ++i) {
        parameters[i].push_back(replicas.parameters[i][p]);
      }
    }
  }
  if (!originals.empty()) {
    const auto node =
        std::shared_ptr<GatherBackward>(new GatherBackward(), torch::autograd::deleteNode);
    node->set_next_edges(torch::autograd::collect_next_edges(originals));
    node->parameters = std::move(parameters);
    node->outputs = outputs;
    node->parameter_device = originals.front().device();
    torch::autograd::set_history(gathered, node);
  }
  return gathered;
}

}  // namespace ddp
