// The collectives over shared memory, on plain memory: sums and means against a reference, every
// element of random sequences, and waits between ranks.
#include <sys/resource.h>

#include <ctime>
#include <filesystem>
#include <span>

#include "common/backends/shm/shm_kernels.hpp"
#include "common/backends/shm/spin_budget.hpp"
#include "tests/backends/random_collectives.hpp"
#include "tests/backends/shm_ranks.hpp"
#include "tests/support/catch.hpp"

namespace {

using ddp::DType;
using ddp::ReduceOp;
using ddp::shm::Collectives;
using Bytes = std::vector<std::byte>;

struct Kind {
  DType dtype;
  ReduceOp op;
};
constexpr std::array kKinds = {
    Kind{DType::kFloat32, ReduceOp::kSum}, Kind{DType::kFloat32, ReduceOp::kAverage},
    Kind{DType::kFloat64, ReduceOp::kSum}, Kind{DType::kFloat64, ReduceOp::kAverage},
    Kind{DType::kInt64, ReduceOp::kSum}};

/// Two ranks that compute, meet, and wait like Barrier, on a simulated clock.
class TwoRanks {
 public:
  /// @param wake_up_ns time from a peer's arrival until a sleeping rank runs
  TwoRanks(int64_t compute_ns, int64_t wake_up_ns)
      : compute_ns_(compute_ns), wake_up_ns_(wake_up_ns) {}

  /// @param late_ns extra compute time, for the ranks in turns @return number of sleeps
  int steps(int count, int64_t late_ns = 0) {
    int sleeps = 0;
    for (int step = 0; step < count; ++step) {
      for (size_t rank : {0U, 1U}) {
        const int64_t own_ns = rank == static_cast<size_t>(step % 2) ? late_ns : 0;
        now_ns_[rank] += compute_ns_ + own_ns + static_cast<int64_t>(random_() % 3000);
      }
      const size_t first = now_ns_[0] < now_ns_[1] ? 0 : 1;
      const int64_t arrival_ns = now_ns_[1 - first];
      const int64_t limit_ns = budget_[first].limit_ns(now_ns_[first]);
      if (arrival_ns - now_ns_[first] <= limit_ns) {
        now_ns_[first] = arrival_ns;
        continue;
      }
      budget_[first].spin_failed(limit_ns);
      budget_[first].woken_after(wake_up_ns_);
      failed_ns_[first] += limit_ns;
      now_ns_[first] = arrival_ns + wake_up_ns_;
      ++sleeps;
    }
    return sleeps;
  }
  int64_t now_ns() const { return now_ns_[0]; }
  double failed_share(size_t rank) const {
    return static_cast<double>(failed_ns_[rank]) / static_cast<double>(now_ns_[rank]);
  }

 private:
  int64_t compute_ns_;
  int64_t wake_up_ns_;
  std::array<int64_t, 2> now_ns_{1'000'000'000, 1'000'000'000};
  std::array<int64_t, 2> failed_ns_{};
  std::array<ddp::shm::SpinBudget, 2> budget_;
  std::mt19937 random_{1};
};

/// Calls `body` with a value of the type.
template <typename Body>
auto with_type(DType dtype, const Body& body) {
  return dtype == DType::kFloat32   ? body(float{})
         : dtype == DType::kFloat64 ? body(double{})
                                    : body(uint64_t{});
}

/// Different for every rank and element, and the same in every run.
Bytes data_of(DType dtype, size_t count, int rank) {
  std::mt19937_64 random(count * 1000 + static_cast<unsigned>(rank));
  return with_type(dtype, [&](auto value) {
    Bytes bytes(count * sizeof(value));
    for (size_t i = 0; i < count; ++i) {
      value = static_cast<decltype(value)>(std::ldexp(static_cast<double>(random() >> 11), -31));
      std::memcpy(&bytes[i * sizeof(value)], &value, sizeof(value));
    }
    return bytes;
  });
}

/// Sum, or mean, of `inputs` in their order.
Bytes reduced(const Kind& kind, const std::vector<Bytes>& inputs) {
  return with_type(kind.dtype, [&](auto value) {
    Bytes bytes(inputs[0].size());
    for (size_t at = 0; at < bytes.size(); at += sizeof(value)) {
      decltype(value) result{};
      for (const Bytes& input : inputs) {
        std::memcpy(&value, &input[at], sizeof(value));
        result += value;
      }
      if (kind.op == ReduceOp::kAverage) {
        result /= static_cast<decltype(value)>(inputs.size());
      }
      std::memcpy(&bytes[at], &result, sizeof(value));
    }
    return bytes;
  });
}

std::vector<Bytes> all_ranks_data(DType dtype, size_t count, int world_size) {
  std::vector<Bytes> all;
  for (int rank = 0; rank < world_size; ++rank) {
    all.push_back(data_of(dtype, count, rank));
  }
  return all;
}

/// Content that begins `shift` bytes after a multiple of 64, with 64 bytes of 0x5a on either side.
class Guarded {
 public:
  Guarded(const Bytes& content, size_t shift)
      : lines_(content.size() / 64 + 4), data_(lines_[1].data() + shift) {
    std::memset(lines_.data(), 0x5a, lines_.size() * sizeof(Line));
    std::ranges::copy(content, data_);
  }
  std::byte* data() const { return data_; }
  bool operator==(const Guarded& other) const { return lines_ == other.lines_; }

 private:
  struct alignas(64) Line : std::array<std::byte, 64> {};
  std::vector<Line> lines_;
  std::byte* data_;
};

}  // namespace

TEST_CASE("ranks that wake up slowly fall into step again, and do not keep each other asleep") {
  const int64_t compute_ns = GENERATE(3'000, 12'000, 30'000, 150'000, 2'000'000);
  const int64_t wake_up_ns = GENERATE(5'000, 50'000, 150'000, 400'000);
  CAPTURE(compute_ns, wake_up_ns);
  TwoRanks ranks(compute_ns, wake_up_ns);
  CHECK(ranks.steps(1000) <= 5);
  // As if another program took a processor in every step, for longer than a spin, but too short
  // for the budget to grow again.
  CHECK(ranks.steps(200, 2 * wake_up_ns + 300'000) >= 150);
  // The budget grows again within 32 spins of at most 1 ms, in which every step may sleep.
  const int64_t disturbed_until_ns = ranks.now_ns();
  while (ranks.now_ns() < disturbed_until_ns + 32'000'000) {
    ranks.steps(1);
  }
  CHECK(ranks.steps(1000) == 0);
}

TEST_CASE("spins that find nobody take one part in 32 of the time") {
  TwoRanks ranks(100'000, 50'000);
  ranks.steps(20'000, GENERATE(500'000, 3'000'000));
  // Includes the brief spin of every wait.
  for (const size_t rank : {0U, 1U}) {
    CHECK(ranks.failed_share(rank) <= 1.0 / 32 + 2'000.0 / 600'000);
    CHECK(ranks.failed_share(rank) > 1.0 / 64);
  }
}

TEST_CASE("a wait of seconds takes no processor") {
  double cpu_seconds = 0;
  run_shm_threads(2, [&](Collectives& communicator) {
    timespec time{};
    if (communicator.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
    }
    communicator.barrier();
    if (communicator.rank() == 0) {
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      cpu_seconds = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    }
  });
  CHECK(cpu_seconds < 0.5);  // for the start, and for 400 checks that the other rank lives
}

TEST_CASE("a reduction writes every output from any place in a line, and nothing beside") {
  for (const Kind& kind : kKinds) {
    const size_t bytes = ddp::element_bytes(kind.dtype);
    for (const size_t input_count : {1U, 2U, 3U, 8U}) {
      for (const size_t shift : {size_t{0}, bytes, 64 - bytes}) {
        for (const size_t count : {1U, 7U, 16U, 17U, 129U, 1000U}) {
          const auto inputs = all_ranks_data(kind.dtype, count, static_cast<int>(input_count));
          std::vector<Guarded> buffers;
          ddp::shm::Reduction reduction(kind.dtype, kind.op, count, input_count, 1);
          for (size_t i = 0; i < input_count; ++i) {
            reduction.inputs[i] = buffers.emplace_back(inputs[i], shift).data();
          }
          // To an unaligned place, and past the caches; then to all inputs in place.
          const Guarded output(inputs[0], 3);
          const Guarded streamed(inputs[0], 0);
          reduction.outputs[0] = output.data();
          reduction.streamed_output = streamed.data();
          ddp::shm::reduce(reduction);
          reduction.output_count = input_count;
          reduction.streamed_output = nullptr;
          for (size_t i = 0; i < input_count; ++i) {
            reduction.outputs[i] = buffers[i].data();
          }
          ddp::shm::reduce(reduction);
          INFO(count << " elements, " << input_count << " inputs, shift " << shift);
          const Bytes expected = reduced(kind, inputs);
          CHECK(output == Guarded(expected, 3));
          CHECK(streamed == Guarded(expected, 0));
          for (const Guarded& buffer : buffers) {
            CHECK(buffer == Guarded(expected, shift));
          }
        }
      }
    }
  }
}

TEST_CASE("all_reduce of every size, in private memory and in place, has the same bits") {
  constexpr size_t kMailbox = (4 << 20) / 4;
  // Nothing; one more and one less than a line, a slot, a mailbox; and two mailboxes.
  std::vector<size_t> counts = {0,    1,    15,   16,   17,     1023,         1024,
                                1025, 2047, 2048, 2049, 100003, kMailbox + 1, 2 * kMailbox};
  const int world_size = GENERATE(1, 2, 3, 8);
  counts.resize(world_size == 8 ? 12 : counts.size());
  for (const Kind& kind : kKinds) {
    std::vector<std::vector<Bytes>> inputs;  // by count, then by rank
    for (const size_t count : counts) {
      inputs.push_back(all_ranks_data(kind.dtype, count, world_size));
    }
    // By rank: for each count the result through mailboxes, and the result in place.
    std::vector<std::vector<Bytes>> results(static_cast<size_t>(world_size));
    run_shm_threads(world_size, [&](Collectives& communicator) {
      const auto rank = static_cast<size_t>(communicator.rank());
      for (size_t i = 0; i < counts.size(); ++i) {
        const Bytes& input = inputs[i][rank];
        Bytes& mailboxed = results[rank].emplace_back(input);
        communicator.all_reduce(mailboxed.data(), counts[i], kind.dtype, kind.op);
        const size_t shift = 24;
        const auto region = communicator.allocate(input.size() + shift);
        std::byte* const memory = static_cast<std::byte*>(region.get()) + shift;
        std::copy(input.begin(), input.end(), memory);
        communicator.all_reduce(memory, counts[i], kind.dtype, kind.op);
        results[rank].emplace_back(memory, memory + input.size());
      }
    });
    for (size_t i = 0; i < counts.size(); ++i) {
      INFO(counts[i] << " elements");
      const Bytes expected = reduced(kind, inputs[i]);
      for (const std::vector<Bytes>& of_rank : results) {
        CHECK((of_rank[2 * i] == expected && of_rank[2 * i + 1] == expected));
      }
    }
  }
}

TEST_CASE("every collective moves every element, in a random sequence as long as a training's") {
  const int world_size = GENERATE(1, 2, 3, 5);
  std::vector<std::string> wrong(static_cast<size_t>(world_size));
  run_shm_threads(world_size, [&](Collectives& communicator) {
    wrong[static_cast<size_t>(communicator.rank())] = run_random_collectives(
        communicator, 300, [&](size_t bytes) { return communicator.allocate(bytes); });
  });
  CHECK(wrong == std::vector<std::string>(wrong.size()));
}

TEST_CASE("regions: different sizes, places and regions, and memory that outlives the group") {
  constexpr size_t kCount = 100000;
  struct Place {  // by rank
    std::array<size_t, 2> region;
    std::array<size_t, 2> offset;
  };
  const auto inputs = all_ranks_data(DType::kFloat32, kCount, 2);
  const Bytes sum = reduced(kKinds[0], inputs);
  const size_t bytes = sum.size();
  // Only the last of them can be reduced in place.
  const std::vector<Place> places = {
      {{0, 0}, {0, bytes}}, {{0, 0}, {2, 2}}, {{0, 1}, {8, 8}}, {{1, 1}, {24, 24}}};
  std::vector<std::shared_ptr<void>> kept(2);
  std::vector<std::string> wrong(2);
  run_shm_threads(2, [&](Collectives& communicator) {
    const auto own = static_cast<size_t>(communicator.rank());
    const auto check = [&](bool is_right, const std::string& text) {
      wrong[own] += is_right ? "" : text + "\n";
    };
    check(communicator.allocate(own == 0 ? 100 : 101) == nullptr, "a region of two sizes");
    check(communicator.allocate(0) == nullptr, "a region of no bytes");
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    communicator.barrier();
    const rlimit none{0, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &none);
    check(communicator.allocate(bytes) == nullptr, "a region without memory");
    communicator.barrier();
    setrlimit(RLIMIT_FSIZE, &before);
    const std::array regions = {communicator.allocate(2 * bytes), communicator.allocate(2 * bytes)};
    for (const auto& [region, offset] : places) {
      const std::span memory(static_cast<std::byte*>(regions[region[own]].get()), 2 * bytes);
      const size_t at = offset[own];
      const auto image_of = [&](const Bytes& content) {  // 0x5a beside it
        Bytes image(memory.size(), std::byte{0x5a});
        std::memcpy(&image[at], content.data(), bytes);
        return image;
      };
      std::ranges::copy(image_of(inputs[own]), memory.begin());
      communicator.all_reduce(&memory[at], kCount, DType::kFloat32, ReduceOp::kSum);
      check(std::ranges::equal(memory, image_of(sum)), "values, or bytes beside");
    }
    // A region whose memory was freed, and used again for other data.
    Bytes data = inputs[own];
    Bytes other(bytes);
    auto owner = std::make_shared<int>();
    communicator.add_region(
        own == 0 ? std::vector{data.data(), other.data()} : std::vector{other.data(), data.data()},
        bytes, owner);
    owner.reset();
    communicator.all_reduce(data.data(), kCount, DType::kFloat32, ReduceOp::kSum);
    check(data == sum, "freed region");
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code closed;
      const auto file = std::filesystem::read_symlink(entry, closed).native();
      check(!contains(file, "memfd:ddp-cpp") || truncate(entry.path().c_str(), 0) != 0,
            "memory that another process may shorten");
    }
    kept[own] = regions[0];
  });
  CHECK(wrong == std::vector<std::string>(2));
  std::memset(kept[0].get(), 1, 2 * bytes);
  CHECK(static_cast<std::byte*>(kept[1].get())[0] != std::byte{1});  // each has its own part
}
