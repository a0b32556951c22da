#include "common/backends/mpi/mpi_communicator.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "common/backends/mpi/mpi_reduction.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::mpi {
namespace {

/// MPI counts in int.
constexpr size_t kMostElements = size_t{1} << 30;
/// Of each rank, in gathers and scatters, which go through a buffer.
constexpr size_t kPieceBytes = size_t{16} << 20;
/// When a waiting rank tells the others where it is. Long before, nobody needs to know.
constexpr std::chrono::milliseconds kSlowAfter{1000};
/// A rank that gives up waits for the word of those that have begun to wait just now.
constexpr std::chrono::milliseconds kPatience{500};

std::string key_of(int rank) {
  return "mpi/waits/" + std::to_string(rank);
}

}  // namespace

MpiCommunicator::MpiCommunicator(const MpiSettings& settings)
    : settings_(settings),
      watchdog_(kSlowAfter, settings.timeout,
                {[this] { leave_word(); }, [this](uint64_t call) { give_up(call); }}) {
  run({"connect", 0, DType::kUint8, "", -1}, [&] { return MPI_Comm_dup(MPI_COMM_WORLD, &world_); });
  MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
}

MpiCommunicator::~MpiCommunicator() = default;

std::string MpiCommunicator::describe(const Call& call) const {
  std::string text = call.operation;
  if (*call.detail != '\0') {
    text += std::string(" ") + call.detail;
  }
  if (call.root >= 0) {
    text += " " + std::to_string(call.root);
  }
  if (call.count > 0) {
    text += " of " + std::to_string(call.count) + " " + to_string(call.dtype);
  }
  return text;
}

template <typename Body>
void MpiCommunicator::run(const Call& call, const Body& body) {
  if (failed_) {
    throw Error(ExitCode::kTrainingFailed, "--backend mpi: " + describe(call) +
                                               " was called after " + describe(call_) +
                                               " had failed");
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
    fail(result);
  }
}

void MpiCommunicator::fail(int mpi_error) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(mpi_error, text.data(), &length);
  throw Error(ExitCode::kTrainingFailed, "--backend mpi: " + describe(call_) + " (collective " +
                                             std::to_string(sequence_) + "): " + text.data());
}

/// "17 all_reduce sum of 784 float32"
std::string MpiCommunicator::current() {
  const std::lock_guard<std::mutex> lock(call_mutex_);
  return std::to_string(sequence_) + " " + describe(call_);
}

void MpiCommunicator::leave_word() {
  try {
    settings_.notes.leave(key_of(rank()), current());
  } catch (const std::exception&) {
    // The store went with rank 0, whose end ends this process too.
  }
}

/// What the others have left word of: who did not, has not come.
std::string MpiCommunicator::who_is_missing() {
  const std::string here = current();
  const uint64_t sequence = std::stoull(here);
  std::string missing;
  std::string elsewhere;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank()) {
      continue;
    }
    const std::optional<std::string> word = settings_.notes.find(key_of(peer));
    const uint64_t theirs = word ? std::stoull(*word) : 0;
    if (theirs < sequence) {
      missing += (missing.empty() ? "rank " : ", ") + std::to_string(peer);
    } else if (*word != here && elsewhere.empty()) {
      elsewhere = "rank " + std::to_string(peer) + " calls " + word->substr(word->find(' ') + 1);
    }
  }
  if (!missing.empty()) {
    return missing + " did not arrive within ";
  }
  return (elsewhere.empty() ? "nobody is missing, but it did not end" : elsewhere) + " within ";
}

/// The process ends here, as the thread that waits is inside MPI and hears nothing; unless the
/// missing ranks come at the last moment.
void MpiCommunicator::give_up(uint64_t watched) {
  std::this_thread::sleep_for(std::min(kSlowAfter + kPatience, settings_.timeout + kPatience));
  std::string who = "not all ranks arrived within ";
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
  std::fflush(stdout);
  std::fprintf(stderr,
               "%s: error: [rank %d] --backend mpi: %s (collective %s): %s%g s, expected all %d "
               "ranks\n",
               program_invocation_short_name, rank(), call.substr(blank + 1).c_str(),
               call.substr(0, blank).c_str(), who.c_str(),
               std::chrono::duration<double>(settings_.timeout).count(), world_size());
  _exit(static_cast<int>(ExitCode::kTrainingFailed));
}

void MpiCommunicator::barrier() {
  run({"barrier", 0, DType::kUint8, "", -1}, [&] { return MPI_Barrier(world_); });
}

void MpiCommunicator::all_reduce(void* data, size_t count, DType dtype, ReduceOp op) {
  const Reduction reduction = find_reduction(dtype, op);
  run({"all_reduce", count, dtype, to_string(op), -1}, [&] {
    int result = MPI_SUCCESS;
    size_t begin = 0;
    do {
      const size_t piece = std::min(kMostElements, count - begin);
      result =
          MPI_Allreduce(MPI_IN_PLACE, static_cast<std::byte*>(data) + begin * element_bytes(dtype),
                        static_cast<int>(piece), reduction.type, reduction.op, world_);
      begin += piece;
    } while (begin < count && result == MPI_SUCCESS);
    return result;
  });
}

void MpiCommunicator::broadcast(void* data, size_t count, DType dtype, int root) {
  const size_t bytes = count * element_bytes(dtype);
  run({"broadcast", count, dtype, "from rank", root}, [&] {
    int result = MPI_SUCCESS;
    size_t begin = 0;
    do {
      const size_t piece = std::min(kMostElements, bytes - begin);
      result = MPI_Bcast(static_cast<std::byte*>(data) + begin, static_cast<int>(piece), MPI_BYTE,
                         root, world_);
      begin += piece;
    } while (begin < bytes && result == MPI_SUCCESS);
    return result;
  });
}

void MpiCommunicator::all_gather(const void* input, void* const* outputs, size_t count,
                                 DType dtype) {
  const size_t bytes = count * element_bytes(dtype);
  const auto ranks = static_cast<size_t>(world_size());
  run({"all_gather", count, dtype, "", -1}, [&] {
    int result = MPI_SUCCESS;
    size_t begin = 0;
    do {
      const size_t piece = std::min(kPieceBytes, bytes - begin);
      buffer_.resize(piece * ranks);
      result = MPI_Allgather(static_cast<const std::byte*>(input) + begin, static_cast<int>(piece),
                             MPI_BYTE, buffer_.data(), static_cast<int>(piece), MPI_BYTE, world_);
      for (size_t r = 0; r < ranks && piece > 0; ++r) {
        std::memcpy(static_cast<std::byte*>(outputs[r]) + begin, buffer_.data() + r * piece, piece);
      }
      begin += piece;
    } while (begin < bytes && result == MPI_SUCCESS);
    return result;
  });
}

void MpiCommunicator::gather(const void* input, void* const* outputs, size_t count, DType dtype,
                             int root) {
  const size_t bytes = count * element_bytes(dtype);
  const size_t places = rank() == root ? static_cast<size_t>(world_size()) : 0;
  run({"gather", count, dtype, "to rank", root}, [&] {
    int result = MPI_SUCCESS;
    size_t begin = 0;
    do {
      const size_t piece = std::min(kPieceBytes, bytes - begin);
      buffer_.resize(piece * places);
      result =
          MPI_Gather(static_cast<const std::byte*>(input) + begin, static_cast<int>(piece),
                     MPI_BYTE, buffer_.data(), static_cast<int>(piece), MPI_BYTE, root, world_);
      for (size_t r = 0; r < places && piece > 0; ++r) {
        std::memcpy(static_cast<std::byte*>(outputs[r]) + begin, buffer_.data() + r * piece, piece);
      }
      begin += piece;
    } while (begin < bytes && result == MPI_SUCCESS);
    return result;
  });
}

void MpiCommunicator::reduce_scatter(const void* const* inputs, void* output, size_t count,
                                     DType dtype, ReduceOp op) {
  const Reduction reduction = find_reduction(dtype, op);
  const auto ranks = static_cast<size_t>(world_size());
  const size_t unit = element_bytes(dtype);
  run({"reduce_scatter", count, dtype, to_string(op), -1}, [&] {
    int result = MPI_SUCCESS;
    size_t begin = 0;
    do {
      const size_t piece = std::min(kPieceBytes / unit, count - begin);
      buffer_.resize(piece * unit * ranks);
      for (size_t r = 0; r < ranks && piece > 0; ++r) {
        std::memcpy(buffer_.data() + r * piece * unit,
                    static_cast<const std::byte*>(inputs[r]) + begin * unit, piece * unit);
      }
      result =
          MPI_Reduce_scatter_block(buffer_.data(), static_cast<std::byte*>(output) + begin * unit,
                                   static_cast<int>(piece), reduction.type, reduction.op, world_);
      begin += piece;
    } while (begin < count && result == MPI_SUCCESS);
    return result;
  });
}

void MpiCommunicator::close() {
  run({"close", 0, DType::kUint8, "", -1}, [&] { return MPI_Comm_free(&world_); });
}

}  // namespace ddp::mpi
