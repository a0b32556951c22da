#include "common/parallel/distributed_data_parallel.hpp"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <sstream>

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

/// Compares the ranks' models first: with different ones the collectives would hang or abort.
FlatParameters flatten_same_parameters(const torch::nn::Module& module,
                                       const ProcessGroup& process_group) {
  process_group.verify_same("model", describe_parameters(module));
  return flatten_parameters(module, [&](int64_t numel, torch::ScalarType dtype) {
    return process_group.allocate(numel, dtype);
  });
}

}  // namespace

GradientReducer::GradientReducer(torch::nn::Module& module, const ProcessGroup& process_group,
                                 const DistributedDataParallelOptions& options)
    : process_group_(process_group),
      buffers_(module.buffers()),
      flat_(flatten_same_parameters(module, process_group)),
      buckets_(flat_, process_group, options, GradientBuckets::Scale::kDivide) {
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    const size_t parameters = buckets_.range(bucket).parameters;
    bucket_of_.insert(bucket_of_.begin(), parameters, bucket);  // buckets begin at the end
    parameters_in_.push_back(parameters);
  }
  process_group.broadcast(flat_.data);
  for (const torch::Tensor& parameter : module.parameters()) {
    if (!parameter.requires_grad()) {
      process_group.broadcast(parameter.detach());
    }
  }
  broadcast_buffers();
  for (size_t i = 0; i < flat_.parameters.size(); ++i) {
    auto accumulator = torch::autograd::impl::grad_accumulator(flat_.parameters[i]);
    const uintptr_t key =
        accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
            [this, i](const torch::autograd::variable_list& outputs,
                      const torch::autograd::variable_list&) {
              gradient_ready(i);
              return outputs;
            }));
    hooks_.emplace_back(std::move(accumulator), key);
  }
}

GradientReducer::~GradientReducer() {
  for (const auto& [accumulator, key] : hooks_) {
    accumulator->del_post_hook(key);
  }
}

void GradientReducer::broadcast_buffers() const {
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& buffer : buffers_) {
    process_group_.broadcast(buffer);
  }
}

void GradientReducer::before_forward() {
  in_backward_ = false;  // if a backward threw, its callback never ran
  if (completes_step()) {
    broadcast_buffers();
  }
}

void GradientReducer::gradient_ready(size_t parameter) {
  if (!completes_step() || process_group_.world_size() == 1) {
    return;
  }
  // With several GPUs in one process autograd has a thread for each.
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!in_backward_) {
    in_backward_ = true;
    next_to_start_ = 0;
    pending_ = parameters_in_;
    torch::autograd::Engine::get_default_engine().queue_callback([this] { finish_backward(); });
  }
  // zero_grad() of a stock optimizer drops gradients; backward then makes new ones elsewhere.
  flat_.rebind_grad(parameter);
  --pending_[bucket_of_[parameter]];
  while (next_to_start_ < buckets_.size() && pending_[next_to_start_] == 0) {
    buckets_.start(next_to_start_++);
  }
}

void GradientReducer::finish_backward() {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (next_to_start_ < buckets_.size()) {
    buckets_.start(next_to_start_++);
  }
  buckets_.finish();
  in_backward_ = false;
}

}  // namespace ddp
