#include "common/parallel/distributed_data_parallel.hpp"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <bit>

#include "common/base/exit_codes.hpp"

namespace ddp {
namespace {

/// Size of a message of parameters or buffers, which are joined in a copy.
constexpr size_t kMessageBytes = size_t{25} << 20;

/// Calls an action before a node of a graph runs the next time.
class OnceBefore : public torch::autograd::FunctionPreHook {
 public:
  /// A leaf's node lives on, so it gets a single hook, which is used again.
  static void add_to(torch::autograd::Node& node, std::function<void()> action) {
    for (const auto& hook : node.pre_hooks()) {
      if (auto* const own = dynamic_cast<OnceBefore*>(hook.get()); own && !own->action_) {
        own->action_ = std::move(action);
        return;
      }
    }
    node.add_pre_hook(std::make_unique<OnceBefore>(std::move(action)));
  }
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

/// Calls `use` for all parameters, also undefined ones. For every forward: Module::parameters()
/// copies all names, and modules() makes a list.
template <typename Use>
void for_each_parameter(const torch::nn::Module& module, const Use& use) {
  struct Access : torch::nn::Module {
    static const auto& parameters_of(const torch::nn::Module& module) {
      return module.*(&Access::parameters_);
    }
  };
  module.apply([&use](const torch::nn::Module& one) {
    for (const auto& item : Access::parameters_of(one)) {
      use(item.value());
    }
  });
}

}  // namespace

GradientReducer::GradientReducer(torch::nn::Module& module, const ProcessGroup& process_group,
                                 const DistributedDataParallelOptions& options,
                                 const CallSite& site)
    : module_(module),
      process_group_(process_group),
      site_(site),
      taken_(take_parameters(module, options.ignored)),
      parameters_(same_parameters(module, process_group, options.ignored,
                                  fmt::format("bucket bytes {} and {}\nbroadcast_buffers {:d}\n",
                                              options.buckets.first_bytes, options.buckets.bytes,
                                              options.broadcast_buffers))),
      buckets_(process_group.world_size() > 1 ? parameters_ : std::vector<torch::Tensor>(),
               process_group, options.buckets, site),
      accumulators_(parameters_.size()),
      target_(std::make_shared<HookTarget>()),
      missed_(parameters_.size()) {
  for (const auto& item : module.named_parameters().pairs()) {
    named_.emplace(item.second.unsafeGetTensorImpl(), item);
  }
  for_each_parameter(module, [this](const torch::Tensor& parameter) {
    walked_.push_back(parameter.unsafeGetTensorImpl());
  });
  std::vector<torch::Tensor> weights;
  for (const auto& [name, parameter] : kept(module.named_parameters(), options.ignored)) {
    weights.push_back(parameter.detach());
    if (!parameter.requires_grad()) {
      frozen_.push_back(parameter);
    }
  }
  std::vector<torch::Tensor> buffers;
  for (const auto& [name, buffer] : kept(module.named_buffers(), options.ignored)) {
    buffers.push_back(buffer);
  }
  broadcast(torch::utils::take_tensors(weights, kMessageBytes));
  buffers_ = torch::utils::take_tensors(buffers, kMessageBytes);
  broadcast(buffers_);
  if (!options.broadcast_buffers) {
    buffers_.clear();
  }
  target_->reducer = this;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    layouts_.push_back(
        {parameters_[i].sizes().vec(), parameters_[i].dtype(), parameters_[i].device()});
    add_hook(i);
  }
}

const std::string& GradientReducer::name_of(const torch::Tensor& parameter) const {
  return named_.at(parameter.unsafeGetTensorImpl()).first;
}

void GradientReducer::add_hook(size_t i) {
  accumulators_[i] = torch::autograd::impl::grad_accumulator(parameters_[i]);
  accumulators_[i]->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [target = target_, i](const torch::autograd::variable_list& outputs,
                            const torch::autograd::variable_list&) {
        const std::lock_guard<std::mutex> lock(target->mutex);
        if (target->reducer != nullptr) {
          target->reducer->gradient_ready(i);
        }
        return outputs;
      }));
}

GradientReducer::~GradientReducer() {
  const std::lock_guard<std::mutex> lock(target_->mutex);
  // The hooks stay, because another thread may run them. They end with the accumulators.
  target_->reducer = nullptr;
}

void GradientReducer::broadcast(const std::vector<torch::utils::TensorGroup>& groups) const {
  if (process_group_.world_size() == 1) {
    return;
  }
  const torch::NoGradGuard no_grad;
  for (const torch::utils::TensorGroup& of_one_type : groups) {
    const torch::Tensor message = at::flatten_dense_tensors(of_one_type.tensors);
    process_group_.broadcast(message, /*root=*/0, site_);
    if (process_group_.rank() == 0) {
      continue;
    }
    const auto values = at::unflatten_dense_tensors(message, of_one_type.tensors);
    for (size_t i = 0; i < values.size(); ++i) {
      // Does not change the version: a later backward may have saved a buffer.
      of_one_type.tensors[i].variable_data().copy_(values[i]);
    }
  }
}

void GradientReducer::before_forward() {
  if (!synchronize_) {
    return;
  }
  expect_unchanged();
  if (!torch::autograd::get_current_node()) {  // not within a backward
    const std::lock_guard<std::mutex> lock(target_->mutex);
    backward_.reset();  // after a backward that threw, if its graph is still there
    leave_failed_backward();
  }
  broadcast(buffers_);
}

void GradientReducer::expect_unchanged() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& parameter = parameters_[i];
    if (torch::autograd::impl::try_get_grad_accumulator(parameter) == accumulators_[i] &&
        parameter.sizes() == layouts_[i].sizes) {
      continue;
    }
    const auto& [sizes, dtype, device] = layouts_[i];
    if (parameter.sizes() != sizes || parameter.dtype() != dtype || parameter.device() != device) {
      refuse(
          "parameter {} was moved to another device, type or shape after the model was wrapped, "
          "expected it to stay: move the model first, then wrap it",
          name_of(parameter));
    }
    if (parameter.requires_grad()) {  // else it was frozen after the wrap, and has no accumulator
      add_hook(i);
    }
  }
  size_t number = 0;
  bool has_new = false;
  for_each_parameter(module_, [&](const torch::Tensor& parameter) {
    const auto* const impl = parameter.unsafeGetTensorImpl();
    const bool is_as_wrapped = number < walked_.size() && walked_[number++] == impl;
    has_new |= !is_as_wrapped && parameter.requires_grad() && !named_.contains(impl);
  });
  if (has_new) {
    for (const auto& [name, parameter] : module_.named_parameters().pairs()) {
      if (parameter.requires_grad() && !named_.contains(parameter.unsafeGetTensorImpl())) {
        refuse(
            "parameter {} was added after the model was wrapped (register_parameter, "
            "register_module, replace_module), expected the parameters that it had: change the "
            "model first, then wrap it",
            name);
      }
    }
  }
  for (const torch::Tensor& parameter : frozen_) {
    if (parameter.requires_grad()) {
      refuse(
          "parameter {} was frozen when the model was wrapped and requires a gradient now, "
          "expected it to stay frozen: unfreeze it first, then wrap the model",
          name_of(parameter));
    }
  }
}

void GradientReducer::leave_failed_backward() {
  if (!std::exchange(is_unfinished_, false)) {
    return;
  }
  // Ranks that failed at other layers, or not at all, may wait for these buckets.
  buckets_.abandon(std::exchange(next_to_start_, buckets_.size()));
  process_group_.meet_after_failed_backward();
}

void GradientReducer::gradient_ready(size_t parameter) {
  if (!synchronize_) {
    return;
  }
  if (backward_.expired()) {
    if (is_unfinished_) {
      torch::Tensor& present = parameters_[parameter].mutable_grad();
      present = present.clone();  // not in the failed backward's bucket
      leave_failed_backward();
    }
    is_unfinished_ = true;
    const auto running = std::make_shared<char>();
    backward_ = running;
    next_to_start_ = 0;
    ready_.assign(parameters_.size(), false);
    pending_.clear();
    for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      pending_.push_back(buckets_.parameters_of(bucket).size());
    }
    ready_order_.clear();
    finish_at_end(target_, running);
  }
  TORCH_CHECK(!ready_[parameter], "Expected one gradient of parameter ",
              name_of(parameters_[parameter]),
              " in a backward, got a second one: it is used inside and outside of a nested "
              "backward (activation checkpointing)");
  ready_[parameter] = true;
  TORCH_CHECK(!parameters_[parameter].grad().requires_grad(),
              "Expected backward with create_graph=false, got a gradient of parameter ",
              name_of(parameters_[parameter]),
              " that has a graph; torch::autograd::grad() gives one");
  if (buckets_.size() == 0) {
    return;
  }
  buckets_.collect(parameter);
  ready_order_.push_back(static_cast<int64_t>(parameter));
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
        if (edge.is_valid()) {
          OnceBefore::add_to(*edge.function, [target, running] { finish_at_end(target, running); });
          return;
        }
      }
    }
    const std::lock_guard<std::mutex> lock(target->mutex);
    // Else a leaf kept this callback from a backward that threw.
    if (target->reducer != nullptr && target->reducer->backward_.lock() == running) {
      target->reducer->finish_backward();
    }
  });
}

void GradientReducer::finish_backward() {
  backward_.reset();
  // Buckets that are not full.
  for (; next_to_start_ < buckets_.size(); ++next_to_start_) {
    for (const size_t i : buckets_.parameters_of(next_to_start_)) {
      if (ready_[i]) {
        continue;
      }
      const torch::Tensor& parameter = parameters_[i];
      const bool has_none = !parameter.requires_grad() && !parameter.grad().defined();
      buckets_.collect(i);
      if (has_none) {  // see Note [Unused parameters]
        parameter.mutable_grad().reset();
      }
    }
    buckets_.start(next_to_start_);
  }
  buckets_.finish();
  is_unfinished_ = false;
  for (size_t i = 0; ready_order_.size() < missed_.size() && i < missed_.size(); ++i) {
    missed_[i] = missed_[i] || !ready_[i];
  }
  if (buckets_.size() > 0 && std::has_single_bit(++backwards_)) {
    rebuild_buckets();
  }
}

void GradientReducer::rebuild_buckets() {
  std::erase_if(ready_order_, [this](int64_t i) { return missed_[static_cast<size_t>(i)]; });
  for (size_t parameter = missed_.size(); parameter-- > 0;) {
    if (missed_[parameter]) {
      ready_order_.push_back(static_cast<int64_t>(parameter));
    }
  }
  const torch::Tensor order =
      torch::tensor(ready_order_, torch::kInt64).to(process_group_.device());
  process_group_.broadcast(order, /*root=*/0, site_);
  const torch::Tensor on_host = order.to(torch::kCPU);
  const auto* const begin = on_host.const_data_ptr<int64_t>();
  const std::vector<size_t> order_of_rank_0(begin, begin + on_host.numel());
  if (order_of_rank_0 != buckets_.order()) {
    buckets_.rebuild(order_of_rank_0);
  }
}

}  // namespace ddp
