// --batch-size auto: the search, the counting of memory, and training in micro-batches.
#include "common/training/batch_finder.hpp"

#include <bit>
#include <cmath>
#include <new>
#include <regex>

#include "common/base/files.hpp"
#include "common/base/process.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace {

constexpr double kMib = 1 << 20;

RunResult run(const std::string& line) {
  const ddp::ScratchFolder folder("ddp-batch");
  return run_program(words(line + " 2 9 --quiet --layers 1024,1024,10 --dataset-size 4096"),
                     {.environment = kOpenMpiAsRoot, .cwd = folder.path()});
}

/// `moved` of a run that ended well.
double moved(const RunResult& result) {
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  std::smatch match;
  REQUIRE(std::regex_search(result.out, match, std::regex("moved (\\S+)")));
  return std::stod(match[1]);
}

}  // namespace

TEST_CASE("the largest power of two that fits is found, or the most that is wanted", "[search]") {
  for (const int64_t most : {0, 1, 2, 12, 64, 100}) {
    for (int64_t limit = 0; limit <= 130; ++limit) {
      int64_t trials = 0;
      const int64_t found = ddp::largest_fitting(most, [&](int64_t size) {
        ++trials;
        REQUIRE(size <= most);
        return size <= limit;
      });
      INFO("most " << most << ", limit " << limit << ": " << found);
      const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(limit)));
      CHECK(found == (limit < most ? power : most));
      CHECK(trials <= 8);
    }
  }
}

TEST_CASE("errors that say that memory is exhausted are known, others go on", "[trial]") {
  CHECK(ddp::is_out_of_memory(std::bad_alloc()));
  for (const auto& [text, expected] :
       {std::pair("DefaultCPUAllocator: can't allocate memory: you tried ...", true),
        std::pair("CUDA error: out of memory", true),
        std::pair("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", true),
        std::pair("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", true),
        std::pair("mat1 and mat2 shapes cannot be multiplied", false)}) {
    CHECK(ddp::is_out_of_memory(std::runtime_error(text)) == expected);
  }
}

TEST_CASE("trials stay within --memory-limit, and what follows is free of it", "[trial]") {
  ddp::Options options;
  options.program = "batch_finder_test";
  options.find_batch = true;
  const auto find = [&](double mib, int64_t most) {
    options.memory_limit_bytes = static_cast<int64_t>((ddp::peak_rss_mib() + mib) * kMib);
    return ddp::find_batch_size(options, most, torch::kCPU, [](int64_t samples) {
      static_cast<void>(torch::empty({samples, 1 << 18}));  // a MiB per sample
    });
  };
  // At least so much is left below the limit: the peak was more than the memory in use.
  CHECK(find(40, 1000) == 32);
  CHECK(find(40, 20) == 20);
  CHECK(contains(message_of([&] { find(-1e3, 1000); }), "no memory for one sample"));
  CHECK_NOTHROW(torch::empty({100 << 20}));
  CHECK_THROWS_WITH(ddp::find_batch_size(options, 8, torch::kCPU,
                                         [](int64_t) { throw std::runtime_error("other"); }),
                    "other");
  options.find_batch = false;
  options.memory_limit_bytes.reset();
  CHECK(ddp::find_batch_size(options, 1000, torch::kCPU, [](int64_t) {}) == 32);  // --batch-size
}

TEST_CASE("the ranks of a host share its memory, and agree on the least", "[trial]") {
  CHECK(ddp::memory_per_rank(1000, 1) == 800);
  CHECK(ddp::memory_per_rank(1000, 2) == 400);
  ddp::Options options;
  options.find_batch = true;
  std::array<int64_t, 2> found{};
  const ddp::ScratchFolder folder("ddp-batch");
  const ddp::StoreLocation store{.kind = ddp::StoreLocation::Kind::kFile,
                                 .host = "",
                                 .file = folder.path() + "/store",
                                 .prefix = ""};
  run_threads(2, [&](int rank) {
    const auto launch = rank_of(rank, 2, store);
    ddp::init_process_group(launch, torch::kCPU, {.backend = "gloo"});
    found[static_cast<size_t>(rank)] =
        ddp::find_batch_size(options, 64, torch::kCPU, [rank](int64_t size) {
          if (size > (rank == 0 ? 8 : 4)) {
            throw std::bad_alloc();
          }
        });
    ddp::destroy_process_group();
  });
  CHECK(found == std::array<int64_t, 2>{4, 4});
}

TEST_CASE("with the batch that was found a step of many ends on stage 03's weights", "[program]") {
  const std::string step = " --global-batch 4096";
  const double reference = moved(run(DDP_BIN_DIR "/03_ddp_spawn --nprocs 2" + step));
  for (const std::string launcher : {"", "mpirun --oversubscribe -np 2 "}) {
    // The first limit with room for a sample has no room for a rank's 2,048 samples of 40 MiB.
    RunResult result;
    for (int limit_mib = 100; limit_mib < 1000 && result.exit_code != 0; limit_mib += 20) {
      result = run(
          fmt::format("{}{}/04_ddp_launcher_auto_batch --batch-size auto --memory-limit {}MiB{}",
                      launcher, DDP_BIN_DIR, limit_mib, step));
    }
    INFO(launcher << result.out << result.err);
    std::smatch match;
    REQUIRE(std::regex_search(result.err, match,
                              std::regex("--batch-size auto: (\\d+) samples per rank")));
    CHECK(std::stoll(match[1]) < 2048);
    CHECK(std::abs(moved(result) - reference) <= 1e-4 * reference);
  }
}
