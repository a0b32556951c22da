#include "common/parallel/distributed_data_parallel.hpp"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <fmt/format.h>
#include <cstdint>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "common/base/exit_codes.hpp"
#include "common/data/flat_parameters.hpp"
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

/// Calls `action` before a node of a graph runs for the first time.
class OnceBefore : public torch::autograd::FunctionPreHook {
 public:
  explicit OnceBefore(std::function<void()> action) : action_(std::move(action)) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    if (const auto action = std::exchange(action_, {})) {
      action();
    }
    return gradients;
  }

 private:
  std::function<void()> action_;
};

/// Refuses a second reducer for a parameter: both would sum its gradient in the same memory.
/// @return marks the module's parameters as taken while it lives
/// @throws UsageError naming a parameter that is taken already
std::shared_ptr<void> take_parameters(const torch::nn::Module& module) {
  static std::mutex mutex;
  static std::unordered_map<const torch::TensorImpl*, std::weak_ptr<void>> owners;
  const std::lock_guard<std::mutex> lock(mutex);
  std::erase_if(owners, [](const auto& entry) { return entry.second.expired(); });
  const auto own = std::make_shared<char>();
  for (const auto& item : module.named_parameters()) {
    std::weak_ptr<void>& owner = owners[item.value().unsafeGetTensorImpl()];
    const auto other = owner.lock();
    if (other != nullptr && other != own) {
      throw UsageError(fmt::format(
          "parameter {} belongs to another DistributedDataParallel, expected one at a time: wrap "
          "the whole model, once",
          item.key()));
    }
    owner = own;
  }
  return own;
}

/// Compares the ranks' models, because with different models the collectives would hang or abort.
/// @return the parameters to average: none with a single rank
/// @throws UsageError naming a parameter that is not on the group's device, or if there are none
std::vector<torch::Tensor> same_parameters(const torch::nn::Module& module,
                                           const ProcessGroup& process_group,
                                           const DistributedDataParallelOptions& options) {
  verify_same(process_group, "model", describe(module, options));
  std::vector<torch::Tensor> parameters = trainable_parameters(module);
  if (parameters.empty()) {
    throw UsageError("got a module none of whose parameters requires a gradient, expected one");
  }
  const torch::Device& expected = process_group.device();
  for (const auto& item : module.named_parameters()) {
    const torch::Device device = item.value().device();
    if (device.type() != expected.type() ||
        (expected.has_index() && device.index() != expected.index())) {
      throw UsageError(
          fmt::format("parameter {} is on {}, expected the process group's {}: move "
                      "the model there first, then wrap it",
                      item.key(), device.str(), expected.str()));
    }
  }
  return process_group.world_size() == 1 ? std::vector<torch::Tensor>() : parameters;
}

}  // namespace

GradientReducer::GradientReducer(torch::nn::Module& module, const ProcessGroup& process_group,
                                 const DistributedDataParallelOptions& options,
                                 const CallSite& site)
    : process_group_(process_group),
      site_(site),
      taken_(take_parameters(module)),
      buffers_(torch::utils::take_tensors(module.buffers(), SIZE_MAX)),
      buckets_(same_parameters(module, process_group, options), process_group, options.buckets,
               site),
      broadcasts_buffers_(options.broadcast_buffers),
      target_(std::make_shared<HookTarget>()) {
  for (const auto& item : module.named_parameters()) {
    names_.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (!item.value().requires_grad()) {
      frozen_.push_back(item.value());
    }
  }
  if (process_group.world_size() > 1) {
    for (const torch::Tensor& parameter : module.parameters()) {
      process_group.broadcast(parameter.detach(), /*root=*/0, site);
    }
    broadcast_buffers();
    add_hooks();
  }
}

const std::string& GradientReducer::name_of(const torch::Tensor& parameter) const {
  return names_.at(parameter.unsafeGetTensorImpl());
}

void GradientReducer::add_hooks() {
  target_->reducer = this;
  for (size_t i = 0; i < buckets_.parameters().size(); ++i) {
    accumulators_.push_back(torch::autograd::impl::grad_accumulator(buckets_.parameters()[i]));
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
  // The hooks stay, because another thread may run them. They end with the accumulators.
  target_->reducer = nullptr;
}

void GradientReducer::broadcast_buffers() const {
  const torch::NoGradGuard no_grad;
  for (const torch::utils::TensorGroup& of_one_type : buffers_) {
    const torch::Tensor message = at::flatten_dense_tensors(of_one_type.tensors);
    process_group_.broadcast(message, /*root=*/0, site_);
    if (process_group_.rank() == 0) {
      continue;
    }
    const auto values = at::unflatten_dense_tensors(message, of_one_type.tensors);
    for (size_t i = 0; i < values.size(); ++i) {
      // Does not change the version: a later backward may have saved the buffer.
      of_one_type.tensors[i].variable_data().copy_(values[i]);
    }
  }
}

void GradientReducer::before_forward() {
  if (!synchronize_ || process_group_.world_size() == 1) {
    return;
  }
  expect_unchanged();
  if (!torch::autograd::get_current_node()) {  // not within a backward
    const std::lock_guard<std::mutex> lock(target_->mutex);
    backward_.reset();  // after a backward that threw, if its graph is still there
  }
  if (broadcasts_buffers_) {
    broadcast_buffers();
  }
}

void GradientReducer::expect_unchanged() const {
  for (size_t i = 0; i < accumulators_.size(); ++i) {
    if (torch::autograd::impl::try_get_grad_accumulator(buckets_.parameters()[i]) !=
        accumulators_[i]) {
      throw UsageError(fmt::format(
          "parameter {} was moved to another device or type after the model was wrapped, expected "
          "it to stay: move the model first, then wrap it",
          name_of(buckets_.parameters()[i])));
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
    buckets_.finish();  // after a backward that threw, all-reduces may still run
    const auto running = std::make_shared<char>();
    backward_ = running;
    next_to_start_ = 0;
    ready_.assign(buckets_.parameters().size(), false);
    pending_.clear();
    for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      pending_.push_back(buckets_.parameters_of(bucket).size());
    }
    ready_order_.clear();
    finish_at_end(target_, running);
  }
  TORCH_CHECK(!ready_[parameter], "Expected one gradient of parameter ",
              name_of(buckets_.parameters()[parameter]),
              " in a backward, got a second one: it is used inside and outside of a nested "
              "backward (activation checkpointing)");
  ready_[parameter] = true;
  TORCH_CHECK(!buckets_.parameters()[parameter].grad().requires_grad(),
              "Expected backward with create_graph=false, got a gradient of parameter ",
              name_of(buckets_.parameters()[parameter]),
              " that has a graph; torch::autograd::grad() gives one");
  buckets_.collect(parameter);
  if (!rebuilt_) {
    ready_order_.push_back(static_cast<int64_t>(parameter));
  }
  --pending_[buckets_.bucket_of(parameter)];
  while (next_to_start_ < buckets_.size() && pending_[next_to_start_] == 0) {
    buckets_.start(next_to_start_++);
  }
}

// Note [Nested backward]
// ~~~~~~~~~~~~~~~~~~~~~~~
// Activation checkpointing runs a backward within a node of an outer backward. The buckets must be
// finished at the end of the outer backward. Else each checkpoint would all-reduce all buckets, and
// ranks that use different layers would do so a different number of times. But queue_callback()
// takes a callback for the innermost running backward. If a node is running when the callback is
// called, that node belongs to an outer backward. Then a hook before the next node queues the
// callback again, for the outer backward.
void GradientReducer::finish_at_end(const std::shared_ptr<HookTarget>& target,
                                    const std::shared_ptr<void>& running) {
  torch::autograd::Engine::get_default_engine().queue_callback([target, running] {
    if (const auto outer = torch::autograd::get_current_node()) {
      for (const torch::autograd::Edge& edge : outer->next_edges()) {
        // Not a leaf's node, which lives on and would get a new hook in each step.
        if (edge.is_valid() &&
            dynamic_cast<torch::autograd::AccumulateGrad*>(edge.function.get()) == nullptr) {
          edge.function->add_pre_hook(
              std::make_unique<OnceBefore>([target, running] { finish_at_end(target, running); }));
          return;
        }
      }
    }
    const std::lock_guard<std::mutex> lock(target->mutex);
    if (target->reducer != nullptr) {
      target->reducer->finish_backward();
    }
  });
}

void GradientReducer::finish_backward() {
  backward_.reset();
  for (; next_to_start_ < buckets_.size(); ++next_to_start_) {
    for (const size_t i : buckets_.parameters_of(next_to_start_)) {
      if (ready_[i]) {
        continue;
      }
      const torch::Tensor& parameter = buckets_.parameters()[i];
      const bool has_none = !parameter.requires_grad() && !parameter.grad().defined();
      buckets_.collect(i);
      if (has_none) {  // see Note [Unused parameters]
        parameter.mutable_grad().reset();
      }
    }
    buckets_.start(next_to_start_);
  }
  buckets_.finish();
  if (!std::exchange(rebuilt_, true)) {
    rebuild_buckets();
  }
}

void GradientReducer::rebuild_buckets() {
  for (size_t parameter = ready_.size(); parameter-- > 0;) {
    if (!ready_[parameter]) {
      ready_order_.push_back(static_cast<int64_t>(parameter));
    }
  }
  const torch::Tensor order =
      torch::tensor(ready_order_, torch::kInt64).to(process_group_.device());
  process_group_.broadcast(order, /*root=*/0, site_);
  const torch::Tensor on_host = order.to(torch::kCPU);
  const auto* const begin = on_host.const_data_ptr<int64_t>();
  buckets_.rebuild({begin, begin + on_host.numel()});
}

}  // namespace ddp
