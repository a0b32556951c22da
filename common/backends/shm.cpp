#include "common/backends/shm.hpp"

#include "common/backends/host_backend.hpp"
#include "common/backends/store_exchange.hpp"

namespace ddp {
c10::intrusive_ptr<c10d::Backend> make_shm_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const BackendOptions& options,
                                                   const shm::HostIdentity& identity) {
  const shm::Communicator::Settings settings{.rank = options.rank,
                                             .world_size = options.world_size,
                                             .timeout = options.timeout,
                                             .identity = identity};
  try {
    return c10::make_intrusive<HostBackend>(
        "shm", shm::Communicator::connect(
                   settings, exchange_through(store, "shm", options.rank, options.world_size,
                                              options.timeout)));
  } catch (const shm::SegmentError&) {
    let_others_read(*store, "shm", options.rank, options.world_size, options.timeout);
    throw;
  }
}

}  // namespace ddp
