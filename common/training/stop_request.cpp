#include "common/training/stop_request.hpp"

#include "common/base/signals.hpp"
#include "common/parallel/default_group.hpp"

namespace ddp {

bool stop_requested(const CallSite& site) {
  const bool here = stop_request() != 0;
  const ProcessGroup& group = world();
  const torch::Tensor own =
      torch::full({1}, here ? 1.0 : 0.0, torch::TensorOptions(group.device()));
  return group.all_gather(own, site.in("stop_requested")).any().item<bool>();
}

}  // namespace ddp
