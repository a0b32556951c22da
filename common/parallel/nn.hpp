// common/parallel/nn.hpp - collectives through which gradients flow, as torch.distributed.nn.
#pragma once

#include "common/parallel/default_group.hpp"

/// Each rank's loss may depend on all ranks' tensors, as a contrastive loss does. The gradient of a
/// tensor is the sum of the gradients of all ranks' losses. Forward and backward are collective, so
/// all ranks make the same calls, and every rank's loss depends on the result. A wrapped model's
/// gradients are means over the ranks: multiply the loss by the world size if their sum is meant.
/// `group` must outlive the graph. Tensors and errors are as in ProcessGroup; the sum must have a
/// gradient, so the type is a floating-point one.
namespace ddp::nn {

/// @return sum of the ranks' `tensor`, in new memory
torch::Tensor all_reduce(const torch::Tensor& tensor,
                         const ProcessGroup& group = default_process_group(),
                         const CallSite& site = CallSite::current());
/// @return (world_size, ...): row r is rank r's `tensor`
torch::Tensor all_gather(const torch::Tensor& tensor,
                         const ProcessGroup& group = default_process_group(),
                         const CallSite& site = CallSite::current());
/// @param rows (world_size, ...): row r is for rank r @return (...): sum of the rows for this rank
torch::Tensor reduce_scatter(const torch::Tensor& rows,
                             const ProcessGroup& group = default_process_group(),
                             const CallSite& site = CallSite::current());

}  // namespace ddp::nn
