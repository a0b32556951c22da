// common/backends/shm.hpp - collectives over shared memory, for ranks on one host, as a
// c10d::Backend.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "common/backends/backend.hpp"
#include "common/backends/shm_communicator.hpp"

namespace ddp {

/// Meets the other ranks through the store, then through memory only. Collectives are done by the
/// calling thread: what they return is complete, and they throw themselves.
/// @param identity where this rank is; tests pretend
/// @throws shm::SegmentError on all ranks alike if they are not on one host or cannot share memory
/// @throws TransientError naming the ranks that did not come in time
c10::intrusive_ptr<c10d::Backend> make_shm_backend(
    const c10::intrusive_ptr<c10d::Store>& store, const BackendOptions& options,
    const shm::HostIdentity& identity = shm::read_host_identity());

/// What c10d, its Reducer and our ProcessGroup call. CPU tensors only; tensors that are not
/// contiguous are copied there and back.
class ShmBackend : public c10d::Backend {
 public:
  explicit ShmBackend(std::unique_ptr<shm::Communicator> communicator);

  const std::string getBackendName() const override { return "shm"; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  void shutdown() override;

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs,
                                        std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

  /// Collective. A tensor of `size` elements that allreduce() works on without a copy, or an
  /// ordinary one if the ranks' sizes differ or memory is short.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }

 private:
  shm::Communicator& communicator();

  std::unique_ptr<shm::Communicator> communicator_;  // none after shutdown()
  std::mutex mutex_;
};

}  // namespace ddp
