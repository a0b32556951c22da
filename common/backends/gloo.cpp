// The only source that sees Gloo's headers. The wheel ships ProcessGroupGloo.hpp but not the
// gloo/*.h that it includes, so they come from the system's libgloo-dev, which is older. That is
// safe because c10d holds Gloo's types only behind shared_ptr; nothing of Gloo itself may be called
// through these headers.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "common/backends/backend.hpp"

namespace ddp {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const BackendOptions& options) {
  const auto gloo_options = c10d::ProcessGroupGloo::Options::create();
  gloo_options->timeout = options.timeout;
  gloo_options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.address));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, options.rank, options.world_size,
                                                     gloo_options);
}

}  // namespace ddp
