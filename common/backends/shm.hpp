// common/backends/shm.hpp - collectives over shared memory, for ranks on one host, as a
// c10d::Backend.
#pragma once

#include "common/backends/backend.hpp"
#include "common/backends/shm/shm_communicator.hpp"

namespace ddp {

/// Meets the other ranks through the store, then through memory only. CPU tensors only.
/// @param identity where this rank is; tests pretend
/// @throws shm::SegmentError on all ranks alike if they are not on one host or cannot share memory
/// @throws TransientError naming the ranks that did not come in time
c10::intrusive_ptr<c10d::Backend> make_shm_backend(
    const c10::intrusive_ptr<c10d::Store>& store, const BackendOptions& options,
    const shm::HostIdentity& identity = shm::read_host_identity());

}  // namespace ddp
