// common/backends/mpi/mpi_communicator.hpp - inside libddp_mpi.so: MPI's collectives.
#pragma once

#include <mpi.h>

#include <mutex>
#include <string>
#include <vector>

#include "common/backends/mpi/mpi_module.hpp"
#include "common/backends/mpi/watchdog.hpp"

namespace ddp::mpi {

/// On a communicator of its own, a copy of MPI's world.
///
/// Note [Who calls MPI]: the calling thread does, and blocks. docs/mpi.md has what the two
/// alternatives cost, calls that do not block and a thread that progresses them. Since a blocking
/// call knows no timeout, a watchdog ends the process where one does not return; the launcher then
/// ends the others.
class MpiCommunicator : public Communicator {
 public:
  /// Collective. MPI is initialised.
  explicit MpiCommunicator(const MpiSettings& settings);
  ~MpiCommunicator() override;

  int rank() const noexcept override { return settings_.rank; }
  int world_size() const noexcept override { return settings_.world_size; }
  uint64_t sequence() const noexcept override { return sequence_; }

  // Those with a size for each rank, too.
  using ddp::Communicator::all_gather;
  using ddp::Communicator::reduce_scatter;

  void barrier() override;
  void all_reduce(void* data, size_t count, DType dtype, ReduceOp op) override;
  void broadcast(void* data, size_t count, DType dtype, int root) override;
  void all_gather(const void* input, void* const* outputs, size_t count, DType dtype) override;
  void gather(const void* input, void* const* outputs, size_t count, DType dtype,
              int root) override;
  void reduce_scatter(const void* const* inputs, void* output, size_t count, DType dtype,
                      ReduceOp op) override;
  void close() override;

 private:
  struct Call {
    const char* operation;
    size_t count;
    DType dtype;
    const char* detail;  ///< "sum", "from rank"
    int root;
  };

  /// Makes `call` the current one, runs `body` under the watchdog's eyes, and throws what MPI says.
  template <typename Body>
  void run(const Call& call, const Body& body);
  std::string describe(const Call& call) const;
  [[noreturn]] void fail(int mpi_error);
  std::string current();
  void leave_word();
  void give_up(uint64_t watched);
  std::string who_is_missing();

  MpiSettings settings_;
  MPI_Comm world_ = MPI_COMM_NULL;
  std::mutex call_mutex_;  // the watchdog's thread reads what is called now
  Call call_{};
  uint64_t sequence_ = 0;
  bool failed_ = false;
  std::vector<std::byte> buffer_;  // of gathers and scatters
  Watchdog watchdog_;
};

}  // namespace ddp::mpi
