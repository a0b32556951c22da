// The collectives over shared memory under the thread sanitizer: ranks are threads on one mapping,
// so that the sanitizer sees every access to it and knows which is ordered before which. Compiled
// with all of the sources it uses, and with nothing else.
//
//   shm_core_tsan          must be silent
//   shm_core_tsan --race   skips one meeting: the sanitizer must report it, or it sees nothing at
//   all
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/backends/shm/shm_communicator.hpp"
#include "common/backends/shm/shm_kernels.hpp"

namespace {

using ddp::shm::Communicator;
using ddp::shm::DType;
using ddp::shm::ReduceOp;

/// One mapping with a part for each rank, as long as the object lives.
class SharedParts {
 public:
  SharedParts(int world_size, size_t bytes)
      : bytes_(bytes * static_cast<size_t>(world_size)),
        memory_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) {
      std::abort();
    }
    for (int rank = 0; rank < world_size; ++rank) {
      parts_.push_back(static_cast<std::byte*>(memory_) + static_cast<size_t>(rank) * bytes);
    }
  }
  ~SharedParts() { munmap(memory_, bytes_); }
  SharedParts(const SharedParts&) = delete;
  SharedParts& operator=(const SharedParts&) = delete;
  const std::vector<std::byte*>& parts() const { return parts_; }

 private:
  size_t bytes_;
  void* memory_;
  std::vector<std::byte*> parts_;
};

size_t round_to_page(size_t bytes) {
  return (bytes + 4095) / 4096 * 4096;
}

void expect(bool right, const char* what, int step) {
  if (!right) {
    std::fprintf(stderr, "step %d: wrong %s\n", step, what);
    std::_Exit(1);
  }
}

void run_rank(Communicator& communicator, std::byte* region, int steps) {
  const int world_size = communicator.world_size();
  const int own = communicator.rank();
  std::mt19937 random(static_cast<unsigned>(world_size));  // the same on every rank
  for (int step = 0; step < steps; ++step) {
    // Up to the slots, beyond them, and at times beyond a mailbox.
    const size_t count = random() % (step % 16 == 15 ? 2500000U : 20000U) + 1;
    const int root = static_cast<int>(random() % static_cast<unsigned>(world_size));
    std::vector<int32_t> data(count, own + step);
    const int32_t sum = world_size * (world_size - 1) / 2 + world_size * step;
    switch (random() % 5) {
      case 0:
        communicator.broadcast(data.data(), count, DType::kInt32, root);
        expect(data.front() == root + step && data.back() == root + step, "broadcast", step);
        break;
      case 1: {
        std::vector<std::vector<int32_t>> gathered(static_cast<size_t>(world_size),
                                                   std::vector<int32_t>(count));
        std::vector<void*> outputs;
        for (auto& output : gathered) {
          outputs.push_back(output.data());
        }
        communicator.all_gather(data.data(), outputs.data(), count, DType::kInt32);
        expect(gathered.back().back() == world_size - 1 + step, "all_gather", step);
        break;
      }
      case 2: {
        const std::vector<const void*> inputs(static_cast<size_t>(world_size), data.data());
        std::vector<int32_t> output(count);
        communicator.reduce_scatter(inputs.data(), output.data(), count, DType::kInt32,
                                    ReduceOp::kSum);
        expect(output.front() == sum && output.back() == sum, "reduce_scatter", step);
        break;
      }
      case 3: {
        const size_t in_region = std::min<size_t>(count, 100000);
        auto* const place = reinterpret_cast<int32_t*>(region);
        std::copy_n(data.data(), in_region, place);
        communicator.all_reduce(place, in_region, DType::kInt32, ReduceOp::kSum);
        expect(place[0] == sum && place[in_region - 1] == sum, "all_reduce in place", step);
        break;
      }
      default:
        communicator.all_reduce(data.data(), count, DType::kInt32, ReduceOp::kSum);
        expect(data.front() == sum && data.back() == sum, "all_reduce", step);
        break;
    }
  }
}

/// What a collective with one meeting too few would do: a rank stores with one kernel into its
/// mailbox, and another loads from there with another kernel.
void race(const std::vector<std::byte*>& parts, int rank, std::atomic<int>& here) {
  // Side by side, but ordered by nothing: a rank that came late would, by seeing how far the other
  // is, be ordered after it.
  here.fetch_add(1, std::memory_order_relaxed);
  while (here.load(std::memory_order_relaxed) < 2) {
    std::this_thread::yield();
  }
  std::byte* const mailbox = parts[0] + Communicator::part_bytes(2) - 8192;
  std::vector<float> data(1024);
  if (rank == 0) {
    ddp::shm::kernels().stream(mailbox, data.data(), 4096);
  } else {
    const void* input = mailbox;
    void* output = data.data();
    ddp::shm::kernels().reduce({.count = data.size(),
                                .inputs = &input,
                                .input_count = 1,
                                .outputs = &output,
                                .output_count = 1});
  }
}

void run(int world_size, bool cores_for_all, bool with_race) {
  const SharedParts memory(world_size, round_to_page(Communicator::part_bytes(world_size)));
  const auto region = std::make_shared<SharedParts>(world_size, round_to_page(400000));
  std::atomic<int> here{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Communicator communicator(rank, memory.parts(), std::chrono::seconds(100),
                                  ddp::shm::wait_policy(world_size, cores_for_all ? world_size : 1),
                                  [](int) { return true; });
        communicator.add_region(region->parts(), 400000, region);
        run_rank(communicator, region->parts()[static_cast<size_t>(rank)], 40);
        if (with_race) {
          race(memory.parts(), rank, here);
        }
        communicator.barrier();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        std::_Exit(1);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool with_race = argc > 1 && std::string(argv[1]) == "--race";
  if (with_race) {
    run(2, true, true);
    return 0;
  }
  for (const int world_size : {2, 3, 4}) {
    run(world_size, true, false);
    run(world_size, false, false);
  }
  std::printf("done\n");
  return 0;
}
