// libddp_mpi.so: MPI's collectives, its initialisation and its end.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/backends/mpi/mpi_module.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::mpi {
namespace {

constexpr size_t kMostElements = size_t{1} << 30;  // of a call, because MPI counts in int
constexpr size_t kPieceBytes = size_t{16} << 20;  // of each rank in an all-gather, for its buffer

int open_communicators = 0;

/// @throws Error with MPI's message, unless `result` is success
void expect_success(const char* call, int result) {
  if (result != MPI_SUCCESS) {
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(result, text.data(), &length);
    throw Error(ExitCode::kTrainingFailed, fmt::format("--backend mpi: {}: {}", call, text.data()));
  }
}

/// Calls `body(begin, size)` for each piece, with sizes of at most `largest`.
template <typename Body>
void in_pieces(size_t size, size_t largest, const Body& body) {
  size_t begin = 0;
  do {
    const size_t piece = std::min(largest, size - begin);
    body(begin, static_cast<int>(piece));
    begin += piece;
  } while (begin < size);
}

/// Collectives over a copy of MPI's world. The calling thread calls MPI and blocks. There is no
/// timeout, because the launcher ends the job when one of its processes ends.
class MpiCommunicator : public Communicator {
 public:
  /// Collective. MPI must be initialised.
  MpiCommunicator(int rank, int world_size) : Communicator(rank, world_size) {
    expect_success("MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &world_));
    MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
    ++open_communicators;
  }

  void close() override {
    expect_success("MPI_Comm_free", MPI_Comm_free(&world_));
    --open_communicators;
  }

  void barrier() override { expect_success("MPI_Barrier", MPI_Barrier(world_)); }

  void all_reduce(void* data, size_t count, DType dtype, ReduceOp op) override {
    const MPI_Op mpi_op = op == ReduceOp::kMax ? MPI_MAX : op == ReduceOp::kMin ? MPI_MIN : MPI_SUM;
    const MPI_Datatype type = dtype == DType::kFloat32   ? MPI_FLOAT
                              : dtype == DType::kFloat64 ? MPI_DOUBLE
                                                         : MPI_INT64_T;
    in_pieces(count, kMostElements, [&](size_t begin, int piece) {
      std::byte* const place = static_cast<std::byte*>(data) + begin * element_bytes(dtype);
      expect_success("MPI_Allreduce",
                     MPI_Allreduce(MPI_IN_PLACE, place, piece, type, mpi_op, world_));
    });
  }

  void broadcast(void* data, size_t bytes, int root) override {
    in_pieces(bytes, kMostElements, [&](size_t begin, int piece) {
      expect_success("MPI_Bcast", MPI_Bcast(static_cast<std::byte*>(data) + begin, piece, MPI_BYTE,
                                            root, world_));
    });
  }

  void all_gather(const void* input, void* const* outputs, size_t bytes) override {
    const auto ranks = static_cast<size_t>(world_size());
    in_pieces(bytes, kPieceBytes, [&](size_t begin, int piece) {
      const auto size = static_cast<size_t>(piece);
      buffer_.resize(size * ranks);
      expect_success("MPI_Allgather",
                     MPI_Allgather(static_cast<const std::byte*>(input) + begin, piece, MPI_BYTE,
                                   buffer_.data(), piece, MPI_BYTE, world_));
      for (size_t r = 0; r < ranks && size > 0; ++r) {
        std::memcpy(static_cast<std::byte*>(outputs[r]) + begin, buffer_.data() + r * size, size);
      }
    });
  }

 private:
  MPI_Comm world_ = MPI_COMM_NULL;
  std::vector<std::byte> buffer_;  // for all_gather()
};

/// Note [MPI's end]: MPI_Finalize() waits for the other ranks. So it is called at the end of the
/// program only if every communicator was closed, which all ranks do together. A rank that ends by
/// an error ends without it: mpirun notices, and ends the other ranks.
void finalize() {
  if (open_communicators == 0) {
    MPI_Finalize();
  }
}

void initialize() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) {
    return;
  }
  // Without mpirun, Open MPI would start a daemon for ranks that are never added.
  setenv("OMPI_MCA_ess_singleton_isolated", "1", /*overwrite=*/0);
  // Backward hooks call MPI from autograd's threads, one call at a time.
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (provided < MPI_THREAD_SERIALIZED) {
    refuse("--backend mpi: MPI gives thread level {}, expected MPI_THREAD_SERIALIZED, {}", provided,
           int{MPI_THREAD_SERIALIZED});
  }
  std::atexit(finalize);
}

std::unique_ptr<Communicator> connect(int rank, int world_size) {
  initialize();
  int mpi_rank = 0;
  int mpi_size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &mpi_size);
  if (mpi_rank != rank || mpi_size != world_size) {
    ++open_communicators;  // no MPI_Finalize(): other ranks may never call it
    refuse("--backend mpi: MPI has rank {} of {}, expected rank {} of {}, as the launcher has it",
           mpi_rank, mpi_size, rank, world_size);
  }
  return std::make_unique<MpiCommunicator>(rank, world_size);
}

}  // namespace
}  // namespace ddp::mpi

extern "C" const ddp::MpiModule* ddp_module() {
  static const ddp::MpiModule module{.connect = ddp::mpi::connect};
  return &module;
}
