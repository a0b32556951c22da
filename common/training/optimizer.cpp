#include "common/training/optimizer.hpp"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <type_traits>

#include "common/base/exit_codes.hpp"

namespace ddp {
namespace {

using torch::optim::Optimizer;

/// Calls `visit(name, value)` for every value of a parameter's state, which may change it.
template <typename Visit>
void visit_state(torch::optim::SGDParamState& state, const Visit& visit) {
  visit("momentum_buffer", state.momentum_buffer());
}
template <typename AdamState, typename Visit>
void visit_state(AdamState& state, const Visit& visit) {
  visit("step", state.step());
  visit("exp_avg", state.exp_avg());
  visit("exp_avg_sq", state.exp_avg_sq());
  visit("max_exp_avg_sq", state.max_exp_avg_sq());  // AMSGrad only
}

/// Calls `use` with a null pointer to the type of the optimizer's states.
template <typename Use>
void with_state_type(const Optimizer& optimizer, const Use& use) {
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr) {
    use(static_cast<torch::optim::SGDParamState*>(nullptr));
  } else if (dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr) {
    use(static_cast<torch::optim::AdamParamState*>(nullptr));
  } else if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr) {
    use(static_cast<torch::optim::AdamWParamState*>(nullptr));
  } else {
    refuse("snapshot: got an optimizer of another type, expected SGD, Adam or AdamW");
  }
}

std::vector<torch::Tensor> parameters_of(const Optimizer& optimizer) {
  std::vector<torch::Tensor> all;
  for (const auto& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const std::vector<torch::Tensor>& parameters,
                                          const TrainOptions& options) {
  const double rate = resolve_learning_rate(options);
  if (options.optimizer == "adam") {
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(rate));
  }
  if (options.optimizer == "adamw") {
    return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(rate));
  }
  const bool has_momentum = options.optimizer == "momentum";
  TORCH_CHECK(has_momentum || options.optimizer == "sgd", "Expected a known optimizer, got ",
              options.optimizer);
  return std::make_unique<torch::optim::SGD>(
      parameters, torch::optim::SGDOptions(rate).momentum(has_momentum ? 0.9 : 0));
}

NamedTensors named_state(Optimizer& optimizer) {
  NamedTensors named;
  const std::vector<torch::Tensor> parameters = parameters_of(optimizer);
  with_state_type(optimizer, [&]<typename State>(State*) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto found = optimizer.state().find(parameters[i].unsafeGetTensorImpl());
      if (found == optimizer.state().end()) {
        continue;
      }
      visit_state(static_cast<State&>(*found->second), [&](const char* name, auto& value) {
        torch::Tensor tensor;
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, int64_t>) {
          tensor = torch::scalar_tensor(value, torch::kInt64);
        } else {
          tensor = value;
        }
        if (tensor.defined()) {
          named.emplace_back(fmt::format("state.{}.{}", i, name), tensor);
        }
      });
    }
  });
  return named;
}

void load_named_state(Optimizer& optimizer, const NamedTensors& state) {
  const std::map<std::string, torch::Tensor> by_name(state.begin(), state.end());
  const std::vector<torch::Tensor> parameters = parameters_of(optimizer);
  size_t used = 0;
  with_state_type(optimizer, [&]<typename State>(State*) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      auto of_parameter = std::make_unique<State>();
      const size_t before = used;
      visit_state(*of_parameter, [&](const char* name, auto& value) {
        const auto found = by_name.find(fmt::format("state.{}.{}", i, name));
        if (found == by_name.end()) {
          return;
        }
        ++used;
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, int64_t>) {
          value = found->second.template item<int64_t>();
        } else {
          TORCH_CHECK(found->second.sizes() == parameters[i].sizes(), "Expected ", found->first,
                      " of sizes ", parameters[i].sizes(), ", got ", found->second.sizes());
          value = found->second.to(parameters[i].options().requires_grad(false),
                                   /*non_blocking=*/false, /*copy=*/true);
        }
      });
      if (used > before) {
        optimizer.state()[parameters[i].unsafeGetTensorImpl()] = std::move(of_parameter);
      }
    }
  });
  TORCH_CHECK(used == state.size(), "Expected ", used, " tensors of the optimizer's state, got ",
              state.size());
}

}  // namespace ddp
