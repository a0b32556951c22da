#include "common/parallel/distributed_data_parallel.hpp"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <sstream>
#include <unordered_map>

#include "common/parallel/agreement.hpp"

namespace ddp {
namespace {

std::string describe_parameters(const torch::nn::Module& module) {
  std::ostringstream text;
  std::unordered_map<const torch::TensorImpl*, std::string> names;
  for (const auto& item : module.named_parameters()) {
    text << item.key() << " " << item.value().sizes() << " " << item.value().dtype()
         << (item.value().requires_grad() ? "" : " frozen");
    const auto [first, is_new] = names.emplace(item.value().unsafeGetTensorImpl(), item.key());
    text << (is_new ? "" : " tied to " + first->second) << "\n";
  }
  for (const auto& item : module.named_buffers()) {
    text << item.key() << " " << item.value().sizes() << " " << item.value().dtype() << " buffer\n";
  }
  return text.str();
}

/// Compares the ranks' models first: with different ones the collectives would hang or abort.
FlatParameters flatten_same_parameters(const torch::nn::Module& module,
                                       const ProcessGroup& process_group) {
  verify_same(process_group, "model", describe_parameters(module));
  return flatten_parameters(module, [&](int64_t numel, torch::ScalarType dtype) {
    return process_group.allocate(numel, dtype);
  });
}

}  // namespace

GradientReducer::GradientReducer(torch::nn::Module& module, const ProcessGroup& process_group,
                                 const BucketSizes& sizes, const CallSite& site)
    : process_group_(process_group),
      site_(site),
      buffers_(module.buffers()),
      flat_(flatten_same_parameters(module, process_group)),
      buckets_(flat_, process_group, sizes, site),
      target_(std::make_shared<HookTarget>()) {
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    // Bucket 0 has the last parameters.
    bucket_of_.insert(bucket_of_.begin(), buckets_.range(bucket).parameters, bucket);
  }
  broadcast_parameters(module);
  broadcast_buffers();
  if (process_group.world_size() > 1) {
    add_hooks();
  }
}

void GradientReducer::add_hooks() {
  target_->reducer = this;
  for (size_t i = 0; i < flat_.parameters.size(); ++i) {
    accumulators_.push_back(torch::autograd::impl::grad_accumulator(flat_.parameters[i]));
    accumulators_.back()->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [target = target_, i](const torch::autograd::variable_list& outputs,
                              const torch::autograd::variable_list&) {
          const std::lock_guard<std::mutex> lock(target->mutex);
          if (target->reducer != nullptr) {
            target->reducer->gradient_ready(i);
          }
          return outputs;
        }));
  }
}

GradientReducer::~GradientReducer() {
  const std::lock_guard<std::mutex> lock(target_->mutex);
  // The hooks stay: another thread may be going through them. They end with the accumulators.
  target_->reducer = nullptr;
}

void GradientReducer::broadcast_parameters(const torch::nn::Module& module) const {
  process_group_.broadcast(flat_.data, /*root=*/0, site_);
  for (const torch::Tensor& parameter : module.parameters()) {
    if (!parameter.requires_grad()) {
      process_group_.broadcast(parameter.detach(), /*root=*/0, site_);
    }
  }
}

void GradientReducer::broadcast_buffers() const {
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& buffer : buffers_) {
    process_group_.broadcast(buffer, /*root=*/0, site_);
  }
}

void GradientReducer::before_forward() {
  if (!synchronize_) {
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(target_->mutex);
    in_backward_ = false;  // if a backward threw, its callback never ran
  }
  broadcast_buffers();
}

void GradientReducer::gradient_ready(size_t parameter) {
  if (!synchronize_) {
    return;
  }
  if (!in_backward_) {
    in_backward_ = true;
    next_to_start_ = 0;
    pending_.clear();
    for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      pending_.push_back(buckets_.range(bucket).parameters);
    }
    torch::autograd::Engine::get_default_engine().queue_callback([target = target_] {
      const std::lock_guard<std::mutex> lock(target->mutex);
      if (target->reducer != nullptr) {
        target->reducer->finish_backward();
      }
    });
  }
  // zero_grad() of a stock optimizer drops gradients; backward then makes new ones elsewhere.
  flat_.rebind_grad(parameter);
  --pending_[bucket_of_[parameter]];
  while (next_to_start_ < buckets_.size() && pending_[next_to_start_] == 0) {
    buckets_.start(next_to_start_++);
  }
}

void GradientReducer::finish_backward() {
  for (; next_to_start_ < buckets_.size(); ++next_to_start_) {
    if (pending_[next_to_start_] > 0) {
      const BucketRange& range = buckets_.range(next_to_start_);
      for (size_t i = 0; i < range.parameters; ++i) {
        flat_.rebind_grad(range.first_parameter + i);  // see Note [Unused parameters]
      }
    }
    buckets_.start(next_to_start_);
  }
  buckets_.finish();
  in_backward_ = false;
}

}  // namespace ddp
