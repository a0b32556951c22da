// docs/exercises/gradient_hook.hpp - for exercise 18, Python's
// register_post_accumulate_grad_hook().
#pragma once

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <memory>
#include <utility>

/// Has `call` called in every backward, in the midst of it, as soon as it has added to the gradient
/// of `parameter`. One hook for each parameter; it lives as long as the parameter.
inline void on_gradient(const torch::Tensor& parameter,
                        std::function<void(const torch::Tensor& gradient)> call) {
  struct Hook final : torch::autograd::PostAccumulateGradHook {
    explicit Hook(std::function<void(const torch::Tensor&)> body) : call(std::move(body)) {}
    void operator()(const torch::autograd::Variable& of) override { call(of.grad()); }
    std::function<void(const torch::Tensor&)> call;
  };
  torch::autograd::impl::set_post_acc_grad_hooks(parameter,
                                                 std::make_unique<Hook>(std::move(call)));
}
