#include "common/parallel/distributed_data_parallel.hpp"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <fmt/format.h>
#include <algorithm>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "common/base/exit_codes.hpp"
#include "common/parallel/agreement.hpp"

namespace ddp {
namespace {

std::string describe(const torch::nn::Module& module,
                     const DistributedDataParallelOptions& options) {
  std::ostringstream text;
  text << "bucket bytes " << options.buckets.first_bytes << " and " << options.buckets.bytes
       << "\nbroadcast_buffers " << options.broadcast_buffers << "\n";
  std::unordered_map<const torch::TensorImpl*, std::string> names;
  for (const auto& item : module.named_parameters()) {
    text << item.key() << " " << item.value().sizes() << " " << item.value().dtype()
         << (item.value().requires_grad() ? "" : " frozen");
    if (!item.value().is_contiguous()) {
      text << " strides " << item.value().strides();
    }
    const auto [first, is_new] = names.emplace(item.value().unsafeGetTensorImpl(), item.key());
    text << (is_new ? "" : " tied to " + first->second) << "\n";
  }
  for (const auto& item : module.named_buffers()) {
    text << item.key() << " " << item.value().sizes() << " " << item.value().dtype() << " buffer\n";
  }
  return text.str();
}

/// Two reducers of one parameter would each add its gradient up, in the same memory at a time.
/// @return while it lives, the module's parameters are taken
/// @throws UsageError naming one that is taken already
std::shared_ptr<void> take_parameters(const torch::nn::Module& module) {
  static std::mutex mutex;
  static std::unordered_set<const torch::TensorImpl*> taken;
  using Parameters = std::unordered_set<const torch::TensorImpl*>;
  const std::shared_ptr<Parameters> own(new Parameters, [](Parameters* parameters) {
    const std::lock_guard<std::mutex> lock(mutex);
    for (const torch::TensorImpl* const parameter : *parameters) {
      taken.erase(parameter);
    }
    delete parameters;
  });
  const std::lock_guard<std::mutex> lock(mutex);
  for (const auto& item : module.named_parameters()) {
    const torch::TensorImpl* const parameter = item.value().unsafeGetTensorImpl();
    if (!own->contains(parameter) && !taken.insert(parameter).second) {
      throw UsageError(fmt::format(
          "parameter {} belongs to another DistributedDataParallel, expected one at a time: wrap "
          "the whole model, once",
          item.key()));
    }
    own->insert(parameter);
  }
  return own;
}

/// Compares the ranks' models first: with different ones the collectives would hang or abort.
FlatParameters flatten_same_parameters(const torch::nn::Module& module,
                                       const ProcessGroup& process_group,
                                       const DistributedDataParallelOptions& options) {
  verify_same(process_group, "model", describe(module, options));
  return flatten_parameters(module, [&](int64_t numel, torch::ScalarType dtype) {
    return process_group.allocate(numel, dtype);
  });
}

}  // namespace

GradientReducer::GradientReducer(torch::nn::Module& module, const ProcessGroup& process_group,
                                 const DistributedDataParallelOptions& options,
                                 const CallSite& site)
    : process_group_(process_group),
      site_(site),
      taken_(take_parameters(module)),
      flat_(flatten_same_parameters(module, process_group, options)),
      buckets_(flat_, process_group, options.buckets, site),
      broadcasts_buffers_(options.broadcast_buffers),
      target_(std::make_shared<HookTarget>()) {
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    // Bucket 0 has the last parameters.
    bucket_of_.insert(bucket_of_.begin(), buckets_.range(bucket).parameters, bucket);
  }
  for (const torch::Tensor& buffer : module.buffers()) {
    const auto like = std::ranges::find_if(buffers_, [&](const auto& others) {
      return others.front().options().type_equal(buffer.options()) &&
             others.front().device() == buffer.device();
    });
    (like == buffers_.end() ? buffers_.emplace_back() : *like).push_back(buffer);
  }
  for (const auto& item : module.named_parameters()) {
    names_.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (!item.value().requires_grad()) {
      frozen_.push_back(item.value());
    }
  }
  if (process_group.world_size() > 1) {
    broadcast_parameters();
    broadcast_buffers();
    add_hooks();
  }
}

const std::string& GradientReducer::name_of(const torch::Tensor& parameter) const {
  return names_.at(parameter.unsafeGetTensorImpl());
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

void GradientReducer::broadcast_parameters() const {
  process_group_.broadcast(flat_.data, /*root=*/0, site_);
  for (const torch::Tensor& parameter : frozen_) {
    process_group_.broadcast(parameter.detach(), /*root=*/0, site_);
  }
}

void GradientReducer::broadcast_buffers() const {
  const torch::NoGradGuard no_grad;
  for (const std::vector<torch::Tensor>& buffers : buffers_) {
    std::vector<torch::Tensor> flattened;
    for (const torch::Tensor& buffer : buffers) {
      flattened.push_back(buffer.reshape(-1));
    }
    const torch::Tensor message = torch::cat(flattened);
    process_group_.broadcast(message, /*root=*/0, site_);
    for (int64_t i = 0, begin = 0; process_group_.rank() != 0 && i < std::ssize(buffers); ++i) {
      const torch::Tensor& buffer = buffers[static_cast<size_t>(i)];
      // Past the version counter: a backward that is still to come may have saved the buffer.
      buffer.variable_data().copy_(message.narrow(0, begin, buffer.numel()).view(buffer.sizes()));
      begin += buffer.numel();
    }
  }
}

void GradientReducer::before_forward() {
  if (!synchronize_ || process_group_.world_size() == 1) {
    return;
  }
  expect_hooks();
  if (broadcasts_buffers_) {
    broadcast_buffers();
  }
}

void GradientReducer::expect_hooks() const {
  for (size_t i = 0; i < accumulators_.size(); ++i) {
    if (torch::autograd::impl::try_get_grad_accumulator(flat_.parameters[i]) != accumulators_[i]) {
      throw UsageError(fmt::format(
          "parameter {} was moved to another device or type after the model was wrapped, expected "
          "it to stay: move the model first, then wrap it",
          name_of(flat_.parameters[i])));
    }
  }
  for (const torch::Tensor& parameter : frozen_) {
    if (parameter.requires_grad()) {
      throw UsageError(fmt::format(
          "parameter {} was frozen when the model was wrapped and requires a gradient now, "
          "expected it to stay frozen: unfreeze it first, then wrap the model",
          name_of(parameter)));
    }
  }
}

void GradientReducer::gradient_ready(size_t parameter) {
  if (!synchronize_) {
    return;
  }
  if (backward_.expired()) {
    buckets_.finish();  // of a backward that threw: their sums may still be on their way
    const auto token = std::make_shared<char>();
    backward_ = token;
    next_to_start_ = 0;
    ready_.assign(flat_.parameters.size(), false);
    pending_.clear();
    for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      pending_.push_back(buckets_.range(bucket).parameters);
    }
    torch::autograd::Engine::get_default_engine().queue_callback([target = target_, token] {
      const std::lock_guard<std::mutex> lock(target->mutex);
      if (target->reducer != nullptr) {
        target->reducer->finish_backward();
      }
    });
  }
  TORCH_CHECK(!ready_[parameter], "Expected one gradient of parameter ",
              name_of(flat_.parameters[parameter]),
              " in a backward, got a second one: it is used inside and outside of a nested "
              "backward (activation checkpointing)");
  ready_[parameter] = true;
  TORCH_CHECK(!flat_.parameters[parameter].grad().requires_grad(),
              "Expected backward with create_graph=false, got a gradient of parameter ",
              name_of(flat_.parameters[parameter]),
              " that has a graph; torch::autograd::grad() gives one");
  // zero_grad() of a stock optimizer drops gradients; backward then makes new ones elsewhere.
  flat_.rebind_grad(parameter);
  --pending_[bucket_of_[parameter]];
  while (next_to_start_ < buckets_.size() && pending_[next_to_start_] == 0) {
    buckets_.start(next_to_start_++);
  }
}

void GradientReducer::finish_backward() {
  backward_.reset();
  for (; next_to_start_ < buckets_.size(); ++next_to_start_) {
    if (pending_[next_to_start_] > 0) {
      const BucketRange& range = buckets_.range(next_to_start_);
      for (size_t i = range.first_parameter; i < range.first_parameter + range.parameters; ++i) {
        if (flat_.parameters[i]
                .requires_grad()) {  // not frozen since: see Note [Unused parameters]
          flat_.rebind_grad(i);
        }
      }
    }
    buckets_.start(next_to_start_);
  }
  buckets_.finish();
}

}  // namespace ddp
