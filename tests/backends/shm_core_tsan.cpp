// The collectives over shared memory under the thread sanitizer: ranks are threads on one mapping,
// so that the sanitizer sees every access to it and their order. Compiled only with the sources
// that it uses.
//
//   shm_core_tsan          must be silent
//   shm_core_tsan --race   skips a meeting: the sanitizer must report it
#include <cstdio>

#include "common/backends/shm/shm_collectives.hpp"
#include "common/backends/shm/shm_kernels.hpp"
#include "tests/backends/random_collectives.hpp"
#include "tests/support/rank_threads.hpp"

namespace {

using ddp::shm::Collectives;

/// Memory with a part for each rank.
struct SharedParts {
  SharedParts(int world_size, size_t bytes) {
    const size_t pages_each = (bytes + sizeof(Page) - 1) / sizeof(Page);
    pages.resize(pages_each * static_cast<size_t>(world_size));
    for (size_t page = 0; page < pages.size(); page += pages_each) {
      parts.push_back(pages[page].data());
    }
  }
  struct alignas(4096) Page : std::array<std::byte, 4096> {};
  std::vector<Page> pages;
  std::vector<std::byte*> parts;
};

/// Collective without one of its meetings: a rank stores into its mailbox with one kernel, and
/// another rank loads from there with another kernel.
void race(const std::vector<std::byte*>& parts, int rank, std::atomic<int>& here) {
  // At the same time without order: a late rank that reads the other's progress would be ordered
  // after it.
  here.fetch_add(1, std::memory_order_relaxed);
  while (here.load(std::memory_order_relaxed) < 2) {
    std::this_thread::yield();
  }
  std::byte* const mailbox = parts[0] + Collectives::part_bytes(2) - 8192;
  std::vector<float> data(1024);
  if (rank == 0) {
    ddp::shm::stream(mailbox, data.data(), 4096);
  } else {
    ddp::shm::Reduction reduction(ddp::DType::kFloat32, ddp::ReduceOp::kSum, data.size(), 1, 1);
    reduction.inputs[0] = mailbox;
    reduction.outputs[0] = data.data();
    ddp::shm::reduce(reduction);
  }
}

void run(int world_size, bool with_race) {
  const SharedParts memory(world_size, Collectives::part_bytes(world_size));
  const auto region = std::make_shared<SharedParts>(world_size, 400000);
  std::atomic<int> here{0};
  ddp::test::run_rank_threads(world_size, [&](int rank) {
    Collectives communicator(rank, memory.parts, std::chrono::seconds(100),
                             [](int) { return true; });
    communicator.add_region(region->parts, 400000, region);
    const std::string wrong = ddp::test::run_random_collectives(communicator, 40, [&](size_t) {
      return std::shared_ptr<void>(region, region->parts[static_cast<size_t>(rank)]);
    });
    if (!wrong.empty()) {
      throw std::runtime_error(wrong);
    }
    if (with_race) {
      race(memory.parts, rank, here);
    }
    communicator.barrier();
  });
}

}  // namespace

int main(int argc, char** argv) {
  const bool with_race = argc > 1 && std::string(argv[1]) == "--race";
  if (with_race) {
    run(2, true);
    return 0;
  }
  for (const int world_size : {2, 3, 4}) {
    run(world_size, false);
  }
  std::printf("done\n");
  return 0;
}
