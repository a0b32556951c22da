// libddp_mpi.so: MPI's collectives, its beginning and its end.
#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>  // Open MPI's
#endif

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <mutex>
#include <thread>

#include "common/backends/mpi/mpi_module.hpp"
#include "common/backends/mpi/mpi_reduction.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/seconds_since.hpp"
#include "common/base/watchdog.hpp"

namespace ddp::mpi {
namespace {

/// Of one call to MPI, which counts in int, and shows no progress before it returns.
constexpr size_t kMostElements = size_t{1} << 24;
/// Of each rank, in gathers and scatters, which go through a buffer.
constexpr size_t kPieceBytes = size_t{16} << 20;
/// When a waiting rank tells the others where it is. Long before, nobody needs to know.
constexpr std::chrono::milliseconds kSlowAfter{1000};
/// A rank that gives up waits for the word of those that have begun to wait just now.
constexpr std::chrono::milliseconds kPatience{500};

/// Communicators that were made and not closed.
int open_communicators = 0;

std::string key_of(int rank) {
  return fmt::format("mpi/waits/{}", rank);
}

/// On a communicator of its own, a copy of MPI's world.
///
/// Note [Who calls MPI]: the calling thread does, and blocks. docs/mpi.md has what the two
/// alternatives cost, calls that do not block and a thread that progresses them. Since a blocking
/// call knows no timeout, a watchdog ends the process where one does not return; the launcher then
/// ends the others.
class MpiCommunicator : public Communicator {
 public:
  /// Collective. MPI is initialised.
  explicit MpiCommunicator(const MpiSettings& settings)
      : Communicator(settings.rank, settings.world_size),
        settings_(settings),
        watchdog_(
            kSlowAfter, settings.timeout, [this] { leave_word(); },
            [this](uint64_t call) { give_up(call); }) {
    run({.operation = Operation::kConnect}, [&] { return MPI_Comm_dup(MPI_COMM_WORLD, &world_); });
    MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
    ++open_communicators;
  }

  void close() override {
    run({.operation = Operation::kClose}, [&] { return MPI_Comm_free(&world_); });
    --open_communicators;
  }

  void barrier() override {
    run({.operation = Operation::kBarrier}, [&] { return MPI_Barrier(world_); });
  }

  void all_reduce(void* data, size_t count, DType dtype, ReduceOp op) override {
    const Reduction reduction = find_reduction(dtype, op);
    run_in_pieces(
        {.operation = Operation::kAllReduce, .dtype = dtype, .reduce_op = op, .count = count},
        count, kMostElements, [&](size_t begin, size_t piece) {
          return MPI_Allreduce(MPI_IN_PLACE,
                               static_cast<std::byte*>(data) + begin * element_bytes(dtype),
                               static_cast<int>(piece), reduction.type, reduction.op, world_);
        });
  }

  void broadcast(void* data, size_t count, DType dtype, int root) override {
    run_in_pieces({.operation = Operation::kBroadcast,
                   .dtype = dtype,
                   .root = static_cast<uint8_t>(root),
                   .count = count},
                  count * element_bytes(dtype), kMostElements, [&](size_t begin, size_t piece) {
                    return MPI_Bcast(static_cast<std::byte*>(data) + begin, static_cast<int>(piece),
                                     MPI_BYTE, root, world_);
                  });
  }

  void all_gather(const void* input, void* const* outputs, const size_t* counts,
                  DType dtype) override {
    collect({.operation = Operation::kAllGather, .dtype = dtype, .count = only_count(counts)},
            input, outputs, [&](const void* from, int bytes) {
              return MPI_Allgather(from, bytes, MPI_BYTE, buffer_.data(), bytes, MPI_BYTE, world_);
            });
  }

  void gather(const void* input, void* const* outputs, size_t count, DType dtype,
              int root) override {
    collect({.operation = Operation::kGather,
             .dtype = dtype,
             .root = static_cast<uint8_t>(root),
             .count = count},
            input, rank() == root ? outputs : nullptr, [&](const void* from, int bytes) {
              return MPI_Gather(from, bytes, MPI_BYTE, buffer_.data(), bytes, MPI_BYTE, root,
                                world_);
            });
  }

  void reduce_scatter(const void* const* inputs, void* output, const size_t* counts, DType dtype,
                      ReduceOp op) override {
    const Reduction reduction = find_reduction(dtype, op);
    const size_t count = only_count(counts);
    const size_t unit = element_bytes(dtype);
    run_in_pieces(
        {.operation = Operation::kReduceScatter, .dtype = dtype, .reduce_op = op, .count = count},
        count, kPieceBytes / unit, [&](size_t begin, size_t piece) {
          const size_t bytes = piece * unit;
          const auto ranks = static_cast<size_t>(world_size());
          buffer_.resize(bytes * ranks);
          for (size_t r = 0; r < ranks && bytes > 0; ++r) {
            std::memcpy(buffer_.data() + r * bytes,
                        static_cast<const std::byte*>(inputs[r]) + begin * unit, bytes);
          }
          return MPI_Reduce_scatter_block(
              buffer_.data(), static_cast<std::byte*>(output) + begin * unit,
              static_cast<int>(piece), reduction.type, reduction.op, world_);
        });
  }

 private:
  /// Makes `call` the current one, runs `body` under the watchdog's eyes, and throws what MPI says.
  template <typename Body>
  void run(const Call& call, const Body& body) {
    if (failed_) {
      throw Error(ExitCode::kTrainingFailed,
                  fmt::format("--backend mpi: {} was called after {} had failed", to_string(call),
                              to_string(call_)));
    }
    {
      const std::lock_guard<std::mutex> lock(call_mutex_);
      call_ = call;
      ++sequence_;
    }
    int result = MPI_SUCCESS;
    {
      const Watchdog::Watch watch(watchdog_);
      result = body();
    }
    if (result != MPI_SUCCESS) {
      failed_ = true;
      std::array<char, MPI_MAX_ERROR_STRING> text{};
      int length = 0;
      MPI_Error_string(result, text.data(), &length);
      throw Error(ExitCode::kTrainingFailed,
                  fmt::format("--backend mpi: {}: {}", to_string(call), text.data()));
    }
  }

  /// The same with a `body` that is given where a piece begins and how long it is, one at least.
  template <typename Body>
  void run_in_pieces(const Call& call, size_t size, size_t largest, const Body& body) {
    run(call, [&] {
      int result = MPI_SUCCESS;
      size_t begin = 0;
      do {
        const size_t piece = std::min(largest, size - begin);
        result = body(begin, piece);
        begin += piece;
        watchdog_.progress();
      } while (begin < size && result == MPI_SUCCESS);
      return result;
    });
  }

  /// Every rank's input, which `body` brings into the buffer, to `outputs` if there are any.
  template <typename Body>
  void collect(const Call& call, const void* input, void* const* outputs, const Body& body) {
    const size_t places = outputs == nullptr ? 0 : static_cast<size_t>(world_size());
    run_in_pieces(call, call.count * element_bytes(call.dtype), kPieceBytes,
                  [&](size_t begin, size_t piece) {
                    buffer_.resize(piece * places);
                    const int result =
                        body(static_cast<const std::byte*>(input) + begin, static_cast<int>(piece));
                    for (size_t r = 0; r < places && piece > 0; ++r) {
                      std::memcpy(static_cast<std::byte*>(outputs[r]) + begin,
                                  buffer_.data() + r * piece, piece);
                    }
                    return result;
                  });
  }

  /// "17 all_reduce sum of 784 float32"
  std::string current() {
    const std::lock_guard<std::mutex> lock(call_mutex_);
    return fmt::format("{} {}", sequence_, to_string(call_));
  }

  void leave_word() {
    try {
      settings_.leave_note(key_of(rank()), current());
    } catch (const std::exception&) {
      // The store went with rank 0, whose end ends this process too.
    }
  }

  /// What the others have left word of: who did not, has not come.
  std::string who_is_missing() {
    const std::string here = current();
    std::vector<int> missing;
    std::string elsewhere;
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer == rank()) {
        continue;
      }
      const std::optional<std::string> word = settings_.find_note(key_of(peer));
      if (!word || std::stoull(*word) < std::stoull(here)) {
        missing.push_back(peer);
      } else if (*word != here && elsewhere.empty()) {
        elsewhere = fmt::format("rank {} calls {}", peer, word->substr(word->find(' ') + 1));
      }
    }
    if (!missing.empty()) {
      return fmt::format("rank {} did not arrive", fmt::join(missing, ", "));
    }
    return elsewhere.empty() ? "nobody is missing, but it did not end" : elsewhere;
  }

  /// The process ends here, as the thread that waits is inside MPI and hears nothing; unless the
  /// missing ranks come at the last moment.
  void give_up(uint64_t watched) {
    std::this_thread::sleep_for(std::min(kSlowAfter + kPatience, settings_.timeout + kPatience));
    std::string who = "not all ranks arrived";
    try {
      who = who_is_missing();
    } catch (const std::exception&) {
      // Nobody left to ask.
    }
    const std::string call = current();
    if (watchdog_.has_ended(watched)) {
      return;
    }
    const size_t blank = call.find(' ');
    const std::string caller = settings_.last_call ? settings_.last_call() : "";
    std::fflush(stdout);
    std::cerr << fmt::format(
        "{}: error: [rank {}] --backend mpi: {}: {} within {} s, expected all {} ranks{}\n",
        program_invocation_short_name, rank(), call.substr(blank + 1), who,
        in_seconds(settings_.timeout), world_size(), caller.empty() ? "" : "; " + caller);
    _exit(static_cast<int>(ExitCode::kTrainingFailed));
  }

  MpiSettings settings_;
  MPI_Comm world_ = MPI_COMM_NULL;
  std::mutex call_mutex_;  // the watchdog's thread reads what is called now
  Call call_;
  uint64_t sequence_ = 0;
  bool failed_ = false;
  std::vector<std::byte> buffer_;  // of gathers and scatters
  Watchdog watchdog_;
};

/// Note [MPI's end]: MPI_Finalize() waits for the other ranks. It is called when the program ends
/// and every communicator was closed, which all ranks did together. A rank that ends by an error
/// leaves without it: mpirun sees that, and ends the others.
void finalize() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (open_communicators == 0 && finalized == 0) {
    MPI_Finalize();
  }
}

void initialize() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) {
    return;
  }
  // A process that mpirun did not start would start a daemon, for ranks that it never adds.
  setenv("OMPI_MCA_ess_singleton_isolated", "1", /*overwrite=*/0);
  // Backward hooks call from autograd's threads, one call at a time.
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (provided < MPI_THREAD_SERIALIZED) {
    throw UsageError(
        fmt::format("--backend mpi: MPI gives thread level {}, expected MPI_THREAD_SERIALIZED, {}",
                    provided, int{MPI_THREAD_SERIALIZED}));
  }
  std::atexit(finalize);
}

std::unique_ptr<Communicator> connect(const MpiSettings& settings) {
  initialize();
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank != settings.rank || size != settings.world_size) {
    ++open_communicators;  // nobody else may come to the end
    throw UsageError(fmt::format(
        "--backend mpi: MPI has rank {} of {}, expected rank {} of {}, as the launcher has it",
        rank, size, settings.rank, settings.world_size));
  }
  return std::make_unique<MpiCommunicator>(settings);
}

bool is_cuda_aware() {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

}  // namespace
}  // namespace ddp::mpi

extern "C" const ddp::MpiModule* ddp_mpi_module() {
  static const ddp::MpiModule module{.connect = ddp::mpi::connect,
                                     .is_cuda_aware = ddp::mpi::is_cuda_aware};
  return &module;
}
