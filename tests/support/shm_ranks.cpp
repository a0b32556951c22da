#include "tests/support/shm_ranks.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <exception>
#include <filesystem>
#include <future>
#include <stdexcept>

#include "common/backends/shm/shm_kernels.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{60};

/// How often each rank has called tick(), for all processes.
std::atomic<int>& ticks_of(int rank) {
  static void* const shared = mmap(nullptr, (shm::kMaxRanks + 1) * sizeof(std::atomic<int>),
                                   PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return static_cast<std::atomic<int>*>(shared)[rank];
}

/// A format of so many bits of mantissa and so large a smallest exponent.
struct SmallFloat {
  int mantissa_bits;
  int smallest_exponent;
  int exponent_bits;
};
constexpr SmallFloat kHalf{10, -14, 5};
constexpr SmallFloat kBrain{7, -126, 8};

double small_float_value(const SmallFloat& format, Bits bits) {
  const int exponent_mask = (1 << format.exponent_bits) - 1;
  const int exponent = static_cast<int>(bits >> format.mantissa_bits) & exponent_mask;
  const auto mantissa = static_cast<double>(bits & ((1U << format.mantissa_bits) - 1));
  const double sign = (bits >> 15 & 1) != 0 ? -1.0 : 1.0;
  if (exponent == exponent_mask) {
    return mantissa == 0 ? sign * INFINITY : NAN;
  }
  const double hidden = exponent == 0 ? 0 : std::ldexp(1.0, format.mantissa_bits);
  const int shift =
      (exponent == 0 ? 1 : exponent) - 1 + format.smallest_exponent - format.mantissa_bits;
  return sign * std::ldexp(hidden + mantissa, shift);
}

Bits small_float_bits(const SmallFloat& format, double value) {
  const Bits sign = std::signbit(value) ? 0x8000U : 0U;
  const Bits infinity = ((Bits{1} << format.exponent_bits) - 1) << format.mantissa_bits;
  if (std::isnan(value)) {
    return infinity | 1;
  }
  const double magnitude = std::abs(value);
  if (magnitude == 0) {
    return sign;
  }
  const int exponent = std::isinf(magnitude)
                           ? 1 << format.exponent_bits
                           : std::max(std::ilogb(magnitude), format.smallest_exponent);
  // To nearest, ties to even; may carry into the exponent, which is just what the bits do too.
  const double mantissa = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const Bits bits = static_cast<Bits>(exponent - format.smallest_exponent) << format.mantissa_bits;
  return std::isinf(magnitude) || bits + static_cast<Bits>(mantissa) >= infinity
             ? sign | infinity
             : sign | (bits + static_cast<Bits>(mantissa));
}

/// The value of a floating-point number's bits, and the other way round.
double decode(DType dtype, Bits bits) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits)));
    case DType::kFloat64:
      return std::bit_cast<double>(bits);
    default:
      return small_float_value(dtype == DType::kFloat16 ? kHalf : kBrain, bits);
  }
}

Bits encode(DType dtype, double value) {
  switch (dtype) {
    case DType::kFloat32:
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    case DType::kFloat64:
      return std::bit_cast<uint64_t>(value);
    default:
      return small_float_bits(dtype == DType::kFloat16 ? kHalf : kBrain, value);
  }
}

/// An integer's value: whole, with its sign.
int64_t widen(DType dtype, Bits bits) {
  const size_t shift = dtype == DType::kUint8 ? 0 : 64 - 8 * element_bytes(dtype);
  return static_cast<int64_t>(bits << shift) >> shift;
}

template <typename T>
T combine(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return a + b;
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return a != a || a < b ? a : b;
    case ReduceOp::kMax:
      return a != a || a > b ? a : b;
  }
  return a;
}

template <typename T>
Bits reduce_floats(DType dtype, ReduceOp op, const std::vector<Bits>& values) {
  T result = static_cast<T>(decode(dtype, values[0]));
  for (size_t i = 1; i < values.size(); ++i) {
    result = combine(op, result, static_cast<T>(decode(dtype, values[i])));
  }
  return encode(
      dtype, static_cast<double>(op == ReduceOp::kAverage ? result / static_cast<T>(values.size())
                                                          : result));
}

/// Different for every argument (Steele, Lea, Flood: SplitMix), and much faster than the library's.
uint64_t scramble(uint64_t state) {
  state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9U;
  state = (state ^ state >> 27) * 0x94d049bb133111ebU;
  return state ^ state >> 31;
}

}  // namespace

const std::vector<DType> kAllDTypes = {DType::kFloat32,  DType::kFloat64, DType::kFloat16,
                                       DType::kBFloat16, DType::kInt32,   DType::kInt64,
                                       DType::kInt8,     DType::kUint8,   DType::kBool};
const std::vector<ReduceOp> kAllReduceOps = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kProduct,
                                             ReduceOp::kMin, ReduceOp::kMax};

Bits expected_reduction(DType dtype, ReduceOp op, const std::vector<Bits>& values) {
  if (dtype == DType::kFloat64) {
    return reduce_floats<double>(dtype, op, values);
  }
  if (is_floating(dtype)) {
    return reduce_floats<float>(dtype, op, values);
  }
  if (dtype == DType::kBool) {  // "any" or "all"
    op = op == ReduceOp::kSum || op == ReduceOp::kMax ? ReduceOp::kMax : ReduceOp::kMin;
  }
  const bool is_order = op == ReduceOp::kMin || op == ReduceOp::kMax;
  Bits result = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    // Sums and products as unsigned numbers, which wrap.
    result = is_order
                 ? static_cast<Bits>(combine(op, widen(dtype, result), widen(dtype, values[i])))
                 : combine(op, result, values[i]);
  }
  return result & (~Bits{0} >> (64 - 8 * element_bytes(dtype)));
}

bool is_nan(DType dtype, Bits value) {
  return is_floating(dtype) && std::isnan(decode(dtype, value));
}

bool same_element(DType dtype, Bits a, Bits b) {
  return a == b || (is_nan(dtype, a) && is_nan(dtype, b));
}

Bits load_element(const void* data, size_t index, size_t bytes) {
  Bits bits = 0;
  std::memcpy(&bits, static_cast<const std::byte*>(data) + index * bytes, bytes);
  return bits;
}

std::vector<std::byte> rank_data(DType dtype, size_t count, int rank, uint64_t seed) {
  const size_t bytes = element_bytes(dtype);
  std::vector<std::byte> data(count * bytes);
  uint64_t state = scramble(seed * 1000 + static_cast<uint64_t>(rank) + 1);
  const auto random = [&state] { return scramble(state += 0x9e3779b97f4a7c15U); };
  for (size_t i = 0; i < count; ++i) {
    Bits bits = random();
    // Any bits are a number of that type, but most sums of such floats are just the larger one:
    // most elements are near 1 instead.
    const double near = std::ldexp(static_cast<double>(random() >> 11), -52) - 1.0;
    if (dtype == DType::kBool) {
      bits &= 1;
    } else if (i % 8 != 0 && is_floating(dtype)) {
      bits = encode(dtype, near);
    }
    std::memcpy(data.data() + i * bytes, &bits, bytes);
  }
  return data;
}

void own_shared_memory(const char* options) {
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("none", "/dev/shm", "tmpfs", 0, options) != 0) {
    throw std::runtime_error(
        "cannot mount: expected root, and in a chroot one that is a mount point (mount --bind)");
  }
}

size_t count_shared_memory_names() {
  const std::filesystem::directory_iterator names("/dev/shm");
  return static_cast<size_t>(std::distance(begin(names), end(names)));
}

void run_shm_threads(int world_size, const std::function<void(shm::Communicator&)>& body) {
  RankExchange exchange(world_size);
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const auto communicator = shm::Communicator::connect(
          {.rank = rank, .world_size = world_size, .timeout = kPatience}, exchange.of(rank));
      body(*communicator);
      communicator->barrier();
    }));
  }
  for (std::future<void>& rank : ranks) {
    rank.get();
  }
}

RankProcesses::RankProcesses(int world_size, const Body& body)
    : exchange_(std::make_unique<RankExchange>(world_size)) {
  for (int rank = 0; rank < world_size; ++rank) {
    ticks_of(rank) = 0;
  }
  for (int rank = 0; rank < world_size; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) {
      throw std::runtime_error("no pipe");
    }
    const pid_t pid = fork();
    if (pid == 0) {
      std::string text;
      int code = 0;
      try {
        text = body(rank, exchange_->of(rank));
      } catch (const Error& error) {
        text = std::string("Error: ") + error.what();
        code = static_cast<int>(error.code());
      } catch (const shm::SegmentError& error) {
        text = std::string("SegmentError: ") + error.what();
        code = 2;
      } catch (const std::exception& error) {
        text = std::string("exception: ") + error.what();
        code = 99;
      }
      if (write(ends[1], text.data(), text.size()) < 0) {
        code = 98;
      }
      _exit(code);
    }
    close(ends[1]);
    pids_.push_back(pid);
    pipes_.push_back(ends[0]);
  }
}

RankProcesses::~RankProcesses() {
  wait();
}

void RankProcesses::tick(int rank) {
  ++ticks_of(rank);
}

void RankProcesses::await(int rank, int times) {
  const Clock::time_point deadline = Clock::now() + kPatience;
  while (ticks_of(rank) < times) {
    if (Clock::now() > deadline) {
      throw std::runtime_error("rank " + std::to_string(rank) + " did not come so far");
    }
    usleep(200);
  }
}

void RankProcesses::await_all(int times) const {
  for (size_t rank = 0; rank < pids_.size(); ++rank) {
    await(static_cast<int>(rank), times);
  }
}

std::vector<ProcessOutcome> RankProcesses::wait() {
  const Clock::time_point deadline = Clock::now() + kPatience;
  std::vector<ProcessOutcome> outcomes;
  for (size_t i = 0; i < pids_.size(); ++i) {
    ProcessOutcome& outcome = outcomes.emplace_back();
    while (waitpid(pids_[i], &outcome.status, WNOHANG) == 0) {
      if (Clock::now() > deadline) {
        kill(pids_[i], SIGKILL);
      }
      usleep(500);
    }
    char buffer[4096];
    for (ssize_t n = 0; (n = read(pipes_[i], buffer, sizeof(buffer))) > 0;) {
      outcome.text.append(buffer, static_cast<size_t>(n));
    }
    close(pipes_[i]);
  }
  pids_.clear();
  return outcomes;
}

}  // namespace ddp::test
