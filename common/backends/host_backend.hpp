// common/backends/host_backend.hpp - a Communicator as a c10d::Backend.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <mutex>
#include <string>

#include "common/backends/shm/communicator.hpp"

namespace ddp {

/// What c10d, its Reducer and our ProcessGroup call. Collectives are done by the calling thread:
/// what they return is complete, and they throw themselves. Tensors that are not contiguous are
/// copied there and back.
class HostBackend : public c10d::Backend {
 public:
  enum class Tensors {
    kCpu,
    kStaged,  ///< those of a GPU too: copied to the host and back
    kDirect,  ///< the same, but sums of float and double are left to the communicator
  };
  /// @param name as --backend has it
  HostBackend(std::string name, std::unique_ptr<Communicator> communicator,
              Tensors tensors = Tensors::kCpu);

  const std::string getBackendName() const override { return name_; }
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
  /// ordinary one if the communicator has none.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }

 private:
  /// What to ask of the communicator, and whether its result is a sum that is to be divided.
  struct Reduction {
    DType dtype;
    ReduceOp op;
    bool divides;
  };

  Communicator& communicator();
  void check_tensor(const char* operation, const at::Tensor& tensor) const;
  void check_same_type(const char* operation, const at::Tensor& tensor,
                       const at::Tensor& other) const;
  void check_same_form(const char* operation, const at::Tensor& tensor,
                       const at::Tensor& other) const;
  /// Memory that the communicator can sum in: the tensor itself, or a copy on the host.
  at::Tensor summable(const at::Tensor& tensor) const;
  const at::Tensor& only(const char* operation, const std::vector<at::Tensor>& tensors) const;
  Reduction reducible(const char* operation, const at::Tensor& tensor,
                      const c10d::ReduceOp& reduce_op);

  std::string name_;
  std::string prefix_;  // of messages
  Tensors tensors_;
  std::unique_ptr<Communicator> communicator_;  // none after shutdown()
  std::mutex mutex_;
};

}  // namespace ddp
