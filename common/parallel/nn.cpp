#include "common/parallel/nn.hpp"

#include <torch/csrc/autograd/custom_function.h>

namespace ddp::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Collective = torch::Tensor (*)(const torch::Tensor& tensor, const ProcessGroup& group,
                                     const CallSite& site);

/// A collective whose backward is `adjoint`, which has a backward itself: second derivatives work.
template <Collective collective, Collective adjoint>
struct WithBackward : torch::autograd::Function<WithBackward<collective, adjoint>> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& tensor,
                               const ProcessGroup* group, const CallSite* site) {
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    context->saved_data["file"] = reinterpret_cast<int64_t>(site->file);
    context->saved_data["line"] = site->line;
    return collective(tensor, *group, *site);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const CallSite site{.file = reinterpret_cast<const char*>(context->saved_data["file"].toInt()),
                        .line = static_cast<int>(context->saved_data["line"].toInt()),
                        .caller = "backward of a collective"};
    const auto* const group =
        reinterpret_cast<const ProcessGroup*>(context->saved_data["group"].toInt());
    return {adjoint(gradients[0], *group, site), torch::Tensor(), torch::Tensor()};
  }
};

torch::Tensor sum(const torch::Tensor& tensor, const ProcessGroup& group, const CallSite& site) {
  const torch::Tensor result = tensor.clone(at::MemoryFormat::Contiguous);
  group.all_reduce(result, c10d::ReduceOp::SUM, site);
  return result;
}

torch::Tensor gather(const torch::Tensor& tensor, const ProcessGroup& group, const CallSite& site) {
  return group.all_gather(tensor, site);
}

torch::Tensor scatter(const torch::Tensor& rows, const ProcessGroup& group, const CallSite& site) {
  return group.reduce_scatter(rows, c10d::ReduceOp::SUM, site);
}

}  // namespace

torch::Tensor all_reduce(const torch::Tensor& tensor, const ProcessGroup& group,
                         const CallSite& site) {
  return WithBackward<sum, all_reduce>::apply(tensor, &group, &site);
}

torch::Tensor all_gather(const torch::Tensor& tensor, const ProcessGroup& group,
                         const CallSite& site) {
  return WithBackward<gather, reduce_scatter>::apply(tensor, &group, &site);
}

torch::Tensor reduce_scatter(const torch::Tensor& rows, const ProcessGroup& group,
                             const CallSite& site) {
  return WithBackward<scatter, all_gather>::apply(rows, &group, &site);
}

}  // namespace ddp::nn
