#include "common/parallel/distributed_data_parallel.hpp"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <sstream>
#include <vector>

#include "common/model/flat_parameters.hpp"

namespace ddp {
namespace {

std::string describe_parameters(const torch::nn::Module& module) {
  std::ostringstream text;
  for (const auto& item : module.named_parameters()) {
    text << item.key() << " " << item.value().sizes() << " " << item.value().dtype()
         << (item.value().requires_grad() ? "" : " frozen") << "\n";
  }
  for (const auto& item : module.named_buffers()) {
    text << item.key() << " " << item.value().sizes() << " " << item.value().dtype() << " buffer\n";
  }
  return text.str();
}

}  // namespace

struct GradientReducer::State : std::enable_shared_from_this<State> {
  State(torch::nn::Module& module, const ProcessGroup& group,
        const DistributedDataParallelOptions& reducer_options)
      : process_group(group), options(reducer_options), buffers(module.buffers()) {}

  void make_buckets() {
    buckets.emplace(flat, process_group, options, GradientBuckets::Scale::kDivide);
    bucket_of.resize(flat.parameters.size());
    parameters_in.resize(buckets->size());
    size_t end = flat.parameters.size();
    for (size_t bucket = 0; bucket < buckets->size(); ++bucket) {
      const size_t begin = buckets->range(bucket).first_parameter;
      std::fill(bucket_of.begin() + static_cast<std::ptrdiff_t>(begin),
                bucket_of.begin() + static_cast<std::ptrdiff_t>(end), bucket);
      parameters_in[bucket] = end - begin;
      end = begin;
    }
  }

  void install_hooks() {
    for (size_t i = 0; i < flat.parameters.size(); ++i) {
      auto accumulator = torch::autograd::impl::grad_accumulator(flat.parameters[i]);
      accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [weak = weak_from_this(), i](const torch::autograd::variable_list& outputs,
                                       const torch::autograd::variable_list&) {
            if (const auto state = weak.lock()) {
              state->gradient_ready(i);
            }
            return outputs;
          }));
      accumulators.push_back(std::move(accumulator));
    }
  }

  void gradient_ready(size_t parameter) {
    if (!synchronize || process_group.is_accumulating() || process_group.world_size() == 1) {
      return;
    }
    // With several GPUs in one process autograd has a thread for each.
    const std::lock_guard<std::mutex> lock(mutex);
    if (!in_backward) {
      in_backward = true;
      next_to_start = 0;
      pending = parameters_in;
      torch::autograd::Engine::get_default_engine().queue_callback(
          [state = shared_from_this()] { state->finish_backward(); });
    }
    // zero_grad() of a stock optimizer drops gradients; backward then makes new ones elsewhere.
    flat.rebind_grad(parameter);
    --pending[bucket_of[parameter]];
    while (next_to_start < buckets->size() && pending[next_to_start] == 0) {
      buckets->start(next_to_start++);
    }
  }

  void finish_backward() {
    const std::lock_guard<std::mutex> lock(mutex);
    while (next_to_start < buckets->size()) {
      buckets->start(next_to_start++);
    }
    buckets->finish();
    in_backward = false;
  }

  const ProcessGroup& process_group;
  DistributedDataParallelOptions options;
  std::vector<torch::Tensor> buffers;
  FlatParameters flat;
  std::optional<GradientBuckets> buckets;  // in the order in which backward fills them
  std::vector<size_t> bucket_of;  // each parameter
  std::vector<size_t> parameters_in;  // each bucket
  std::vector<size_t> pending;  // of these, those whose gradient is not there yet
  // Held here because the parameters refer to them only weakly, and the hooks with them would be
  // gone.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;
  bool synchronize = true;
  bool in_backward = false;
  size_t next_to_start = 0;
  std::mutex mutex;
};

GradientReducer::GradientReducer(torch::nn::Module& module, const ProcessGroup& process_group,
                                 const DistributedDataParallelOptions& options)
    : state_(std::make_shared<State>(module, process_group, options)) {
  process_group.verify_same("model", describe_parameters(module));
  state_->flat = flatten_parameters(module, [&](int64_t numel, torch::ScalarType dtype) {
    return process_group.allocate(numel, dtype);
  });
  state_->make_buckets();
  state_->install_hooks();
  const torch::NoGradGuard no_grad;
  process_group.broadcast(state_->flat.data);
  for (const torch::Tensor& parameter : module.parameters()) {
    if (!parameter.requires_grad()) {
      process_group.broadcast(parameter.detach());
    }
  }
  for (const torch::Tensor& buffer : state_->buffers) {
    process_group.broadcast(buffer);
  }
}

GradientReducer::~GradientReducer() = default;

void GradientReducer::before_forward() {
  state_->in_backward = false;  // if a backward threw, its callback never ran
  if (!state_->synchronize || state_->process_group.is_accumulating() ||
      !state_->options.broadcast_buffers) {
    return;
  }
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& buffer : state_->buffers) {
    state_->process_group.broadcast(buffer);
  }
}

bool GradientReducer::synchronize() const {
  return state_->synchronize;
}
void GradientReducer::set_synchronize(bool synchronize) {
  state_->synchronize = synchronize;
}
size_t GradientReducer::bucket_count() const {
  return state_->buckets->size();
}

}  // namespace ddp
