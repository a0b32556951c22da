// bench_micro: names, counters and counts of what it writes, that it times no wrong sum, answers a
// mistake in one line, and leaves no process behind; and what reads its documents.
#include <c10/core/CPUAllocator.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "bench/micro/all_reduce.hpp"
#include "bench/micro/google_benchmark.hpp"
#include "bench/report/micro_results.hpp"
#include "bench/report/step_cost.hpp"
#include "bench/run/micro_command.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/gradient_buckets.hpp"
#include "common/training/optimizer.hpp"
#include "tests/catch.hpp"
#include "tests/support/processes.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace {

namespace fs = std::filesystem;
using namespace ddp::bench;
using ddp::ScratchFolder;
using ddp::test::all_gone_within;
using ddp::test::children_of;
using ddp::test::Program;
using ddp::test::run_program;
using ddp::test::RunResult;

constexpr auto kTimeout = std::chrono::seconds(30);

const std::string kProgram = std::string(DDP_BIN_DIR) + "/bench_micro";

/// The program, told what stands in `text` between blanks.
std::vector<std::string> command(const std::string& text) {
  std::istringstream words(kProgram + " " + text);
  return {std::istream_iterator<std::string>(words), {}};
}

/// Runs it to its end. @return what it wrote, which must be whole
MicroResults run_micro(const MicroRun& run, const ScratchFolder& folder,
                       nlohmann::json* raw = nullptr) {
  const fs::path out = fs::path(folder.path()) / "out.json";
  ddp::test::RunOptions options;
  options.environment["TMPDIR"] = folder.path();
  const RunResult result = run_program(micro_command(kProgram, run, out.string()), options);
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  if (raw != nullptr) {
    *raw = nlohmann::json::parse(std::ifstream(out));
  }
  return read_micro_results(out.string());
}

/// What tensors hold, by any thread.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& source) : source_(source) {}
  c10::DataPtr allocate(size_t bytes) override {
    auto* const block = new Block{*this, bytes, source_.allocate(bytes)};
    held_ += bytes;
    return {block->memory.get(), block, &free_block, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  size_t held() const { return held_; }

 private:
  struct Block {
    CountingAllocator& allocator;
    size_t bytes;
    c10::DataPtr memory;
  };
  static void free_block(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    block->allocator.held_ -= block->bytes;
  }

  c10::Allocator& source_;
  std::atomic<size_t> held_ = 0;
};

void check_times(const Distribution& time_us) {
  CHECK(time_us.n >= 10);
  REQUIRE(time_us.median);
  CHECK(*time_us.median > 0);
  CHECK(time_us.p10.value_or(NAN) <= *time_us.median);
  CHECK(time_us.p90.value_or(NAN) >= *time_us.median);
  CHECK(time_us.p95.value_or(NAN) >= time_us.p90.value_or(NAN));
}

}  // namespace

TEST_CASE("all-reduces: exact names, bytes, ranks, percentiles, bandwidths, steps", "[micro]") {
  const ScratchFolder folder("ddp-micro");
  nlohmann::json raw;
  const MicroResults results = run_micro({.suite = "all_reduce",
                                          .world_size = 3,
                                          .device = "cpu",
                                          .backends = {"gloo"},
                                          .bytes = {{4, 65536}},
                                          .steps = {{"S", {4096, 64, 8192}}, {"one.bucket", {40}}},
                                          .min_seconds = 0.02,
                                          .timeout_s = 30},
                                         folder, &raw);
  REQUIRE(results.all_reduce.size() == 2);
  CHECK(results.all_reduce[0].bytes == 4);
  CHECK(results.all_reduce[1].bytes == 65536);
  for (const AllReduceSample& sample : results.all_reduce) {
    CHECK(sample.backend == "gloo");
    CHECK(sample.device == "cpu");
    CHECK(sample.world_size == 3);
    check_times(sample.time_us);
  }
  REQUIRE(results.steps.size() == 2);
  CHECK(results.steps[0].name == "S");
  CHECK(results.steps[0].bytes == 4096 + 64 + 8192);
  CHECK(results.steps[1].name == "one.bucket");
  CHECK(results.steps[1].world_size == 3);
  check_times(results.steps[0].time_us);

  std::vector<std::string> names;
  for (const nlohmann::json& run : raw.at("benchmarks")) {
    names.push_back(run.at("name"));
    const double median_s = run.at("time_us_median").get<double>() / 1e6;
    const double bandwidth = run.at("algorithm_bandwidth");
    CHECK(bandwidth == Approx(run.at("bytes").get<double>() / median_s));
    CHECK(run.at("bus_bandwidth").get<double>() == Approx(bandwidth * 4 / 3));
    CHECK(run.at("iterations").get<double>() == run.at("time_us_n").get<double>());
    CHECK(run.at("real_time").get<double>() > 0);
  }
  CHECK(names == std::vector<std::string>{
                     "all_reduce/gloo/ranks:3/bytes:4", "all_reduce/gloo/ranks:3/bytes:65536",
                     "all_reduce_step/gloo/ranks:3/S", "all_reduce_step/gloo/ranks:3/one.bucket"});
  CHECK(raw.at("benchmarks").at(2).at("buckets") == 3);
  // Without these a sweep cannot be kept in results/.
  const nlohmann::json& context = raw.at("context");
  CHECK_THAT(context.at("command").get<std::string>(),
             Catch::Matchers::Contains("bench_micro --suite all_reduce"));
  CHECK_THAT(context.at("command").get<std::string>(),
             Catch::Matchers::Contains("--benchmark_out="));
  CHECK_THAT(context.at("libtorch").get<std::string>(),
             Catch::Matchers::Matches("[0-9]+\\.[0-9]+\\.[0-9]+.*"));
  for (const char* fact : {"cpu_model", "cpu_governor", "os"}) {
    CHECK(!context.at(fact).get<std::string>().empty());
  }
}

TEST_CASE("limits: the mean over the ranks, with each rank's own; repetitions become one",
          "[micro]") {
  const ScratchFolder folder("ddp-micro");
  nlohmann::json raw;
  MicroResults results = run_micro({.suite = "limits",
                                    .world_size = 2,
                                    .device = "cpu",
                                    .min_seconds = 0.02,
                                    .repetitions = 2,
                                    .filter = "^limits/gemm_fp32/ranks:2$"},
                                   folder, &raw);
  REQUIRE(results.limits.size() == 1);
  CHECK(results.limits[0].world_size == 2);
  CHECK(results.limits[0].device == "cpu");
  CHECK(results.limits[0].fp32_gflops.value_or(NAN) > 0.1);
  CHECK_FALSE(results.limits[0].memory_bandwidth_gbps);
  std::vector<double> gflops;
  for (const nlohmann::json& run : raw.at("benchmarks")) {
    if (run.at("run_type") == "iteration") {
      const double rank0 = run.at("flops_per_second_rank_0");
      const double rank1 = run.at("flops_per_second_rank_1");
      CHECK(run.at("flops_per_second").get<double>() == Approx((rank0 + rank1) / 2));
      CHECK(run.at("operations") == 2.0 * 512 * 512 * 512);
      gflops.push_back(run.at("flops_per_second").get<double>() / 1e9);
    }
  }
  CHECK(gflops.size() == 2);
  CHECK(results.limits[0].fp32_gflops.value_or(NAN) == Approx(median(gflops).value_or(NAN)));

  results.append(run_micro(
      {.suite = "limits", .device = "cpu", .min_seconds = 1e-3, .filter = "mem"}, folder, &raw));
  CHECK(raw.at("benchmarks").at(0).at("name") == "limits/memory/ranks:1");
  CHECK(raw.at("benchmarks").at(1).at("name") == "limits/memory/ranks:1/bytes:131072");
  REQUIRE(results.limits.size() == 2);
  const Limit& limit = results.limits[1];
  CHECK(limit.world_size == 1);
  CHECK_FALSE(limit.fp32_gflops);
  CHECK_FALSE(limit.kernel_launch_us);  // that is a GPU's
  REQUIRE(limit.memory.size() == 6);
  CHECK(std::ranges::is_sorted(limit.memory, std::ranges::less(), &MemoryRate::bytes));
  CHECK(limit.memory[0].bytes == 128 << 10);
  CHECK(limit.memory[5].bytes >= 16 << 20);
  for (const MemoryRate& rate : limit.memory) {
    CHECK(rate.gbps.value_or(NAN) > 0.1);
  }
  CHECK(limit.memory_bandwidth_gbps == limit.memory[5].gbps);
  // At the best, not at the median: what ran beside it does not lower a limit.
  for (const nlohmann::json& one : raw.at("benchmarks")) {
    CHECK(one.at("memory_bandwidth").get<double>() ==
          Approx(one.at("bytes").get<double>() / one.at("time_us_p10").get<double>() * 1e6));
  }
  // y += c x over two arrays: three values an element.
  CHECK(raw.at("benchmarks").at(1).at("bytes") == 1.5 * (128 << 10));
}

TEST_CASE("passes one after the other in random order: their spread, and the sizes in order",
          "[micro]") {
  const ScratchFolder folder("ddp-micro");
  nlohmann::json raw;
  const MicroRun run = {.suite = "all_reduce",
                        .world_size = 2,
                        .device = "cpu",
                        .backends = {"gloo"},
                        .bytes = {{65536, 4, 1024}},
                        .steps = {{"S", {4096}}},
                        .min_seconds = 1e-3,
                        .passes = 5,
                        .timeout_s = 30};
  const MicroResults results = run_micro(run, folder, &raw);
  std::set<std::vector<std::string>> orders;
  std::vector<std::string> order;
  std::string last;
  for (const nlohmann::json& one : raw.at("benchmarks")) {
    const std::string name = one.at("name");
    CHECK(name != last);  // also from one pass to the next
    CHECK(std::ranges::find(order, name) == order.end());
    last = name;
    order.push_back(name);
    if (order.size() == 4) {
      orders.insert(std::exchange(order, {}));
    }
  }
  CHECK(orders.size() > 2);
  REQUIRE(results.all_reduce.size() == 3);
  CHECK(std::ranges::is_sorted(results.all_reduce, std::ranges::less(), &AllReduceSample::bytes));
  for (const AllReduceSample& sample : results.all_reduce) {
    std::vector<double> medians;
    for (const nlohmann::json& one : raw.at("benchmarks")) {
      if (one.at("run_type") == "iteration" && one.at("bytes") == sample.bytes) {
        medians.push_back(one.at("time_us_median"));
      }
    }
    REQUIRE(medians.size() == 5);
    CHECK(sample.time_us.median == median(medians));
    CHECK(sample.pass_spread.value_or(NAN) ==
          Approx(*percentile(medians, 0.9) / *percentile(medians, 0.1)));
  }
  REQUIRE(results.steps.size() == 1);
  CHECK(results.steps[0].time_us.median.value_or(NAN) > 0);
}

TEST_CASE("passes of which some were slow are not steady; one pass says nothing", "[micro]") {
  const ScratchFolder folder("ddp-micro");
  const std::string path = folder.path() + "/out.json";
  const auto read = [&](const std::vector<double>& medians) {
    nlohmann::json entries = nlohmann::json::array();
    for (const double time_us : medians) {
      entries.push_back({{"name", "all_reduce/shm/ranks:2/bytes:2048"},
                         {"run_type", "iteration"},
                         {"ranks", 2},
                         {"bytes", 2048},
                         {"time_us_median", time_us},
                         {"time_us_p10", time_us},
                         {"time_us_p90", time_us},
                         {"time_us_p95", time_us},
                         {"time_us_n", 10}});
    }
    std::ofstream(path) << nlohmann::json{{"context", {{"device", "cpu"}}},
                                          {"benchmarks", entries}};
    return read_micro_results(path).all_reduce.at(0);
  };
  const AllReduceSample slow_mode = read({0.4, 49, 0.4, 49, 0.4});
  CHECK(slow_mode.time_us.median == 0.4);
  CHECK(slow_mode.is_unstable());
  CHECK_FALSE(read({0.40, 0.42, 0.45, 0.41, 0.5}).is_unstable());
  CHECK_FALSE(read({49}).pass_spread);
}

TEST_CASE("pieces: one process, times and bandwidths, and no file left", "[micro]") {
  const ScratchFolder folder("ddp-micro");
  const MicroResults results =
      run_micro({.suite = "pieces",
                 .device = "cpu",
                 .min_seconds = 0.001,
                 .filter = "data_loader/S|gather/S|parallel_apply|optimizer/adam/.*/S|snapshot_.*/S"
                           "|flatten_parameters/S|scatter/S"},
                folder);
  std::vector<std::string> names;
  for (const PieceResult& piece : results.pieces) {
    CAPTURE(piece.name);
    names.push_back(piece.name);
    check_times(piece.time_us);
    const bool measured_in_bytes = piece.name != "parallel_apply" && piece.name != "scatter/S";
    CHECK(piece.bytes.has_value() == measured_in_bytes);
    if (piece.bytes) {
      CHECK(piece.bandwidth_gbps.value_or(NAN) ==
            Approx(static_cast<double>(*piece.bytes) / piece.time_us.median.value_or(NAN) / 1e3));
    }
  }
  CHECK(names == std::vector<std::string>{"data_loader/S", "scatter/S", "gather/S",
                                          "parallel_apply", "optimizer/adam/flat/S",
                                          "optimizer/adam/torch/S", "flatten_parameters/S",
                                          "snapshot_save/S", "snapshot_load/S"});
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);  // out.json
}

TEST_CASE("pieces: the same pictures, decoded and as tensors", "[micro]") {
  const ScratchFolder folder("ddp-micro");
  const MicroResults results = run_micro(
      {.suite = "pieces", .device = "cpu", .min_seconds = 0.001, .filter = "images/"}, folder);
  REQUIRE(results.pieces.size() == 2);
  CHECK(results.pieces[0].name == "images/jpeg");
  CHECK(results.pieces[1].name == "images/tensors");
  for (const PieceResult& piece : results.pieces) {
    check_times(piece.time_us);
    CHECK(piece.bytes == 64 * 224 * 224 * 3);
  }
}

TEST_CASE("a mistake on the command line is named in one line", "[micro]") {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"", {"--suite", "missing"}},
      {"--suite speed", {"--suite", "speed", "limits"}},
      {"--suite limits --nprocs 0", {"--nprocs", "0"}},
      {"--suite limits --nprocs 1e3", {"--nprocs", "1e3"}},
      {"--suite limits --bytes 4", {"--bytes", "limits", "all_reduce"}},
      {"--suite pieces --nprocs 2", {"--nprocs", "2", "pieces"}},
      {"--suite pieces --step S=4", {"--step", "pieces"}},
      {"--suite all_reduce --nprocs 1", {"--nprocs", "1"}},
      {"--suite all_reduce --bytes 4,6", {"--bytes", "6", "multiple of 4"}},
      {"--suite all_reduce --bytes 4,4", {"--bytes", "4", "twice"}},
      {"--suite all_reduce --bytes 4,,8", {"--bytes"}},
      {"--suite all_reduce --bytes -4", {"--bytes", "-4"}},
      {"--suite all_reduce --bytes none", {"--bytes", "none"}},
      {"--suite all_reduce --backends carrier-pigeon", {"--backends", "carrier-pigeon"}},
      {"--suite all_reduce --backends gloo,gloo", {"--backends", "gloo", "twice"}},
      {"--suite all_reduce --step S", {"--step", "S", "NAME"}},
      {"--suite all_reduce --step a/b=4", {"--step", "a/b"}},
      {"--suite all_reduce --step S=4+x", {"--step", "x"}},
      {"--suite all_reduce --step S=4 --step S=8", {"--step", "S", "twice"}},
      {"--suite limits --min-seconds nan", {"--min-seconds", "nan"}},
      {"--suite limits --timeout 0", {"--timeout", "0"}},
      {"--suite limits --threads none", {"--threads", "none"}},
      {"--suite limits --threads auto", {"--threads", "auto"}},
      {"--suite limits --device tpu", {"--device", "tpu"}},
      {"--suite limits --sweet", {"--sweet"}},
      {"--suite limits extra", {"extra"}},
      {"--suite limits --suite pieces", {"--suite"}},
      {"--suite limits --benchmark_out_format=xml", {"--benchmark_out_format", "xml"}},
      {"--suite limits --benchmark_min_time=1", {"--min-seconds"}},
      {"--suite limits --benchmark_repetitions=2", {"--repetitions"}},
      {"--suite limits --benchmark_filter=[", {"--benchmark_filter", "["}},
      {"--suite limits --benchmark_out=/no/such/folder/x", {"/no/such/folder/x"}},
  };
  for (const auto& [text, named] : cases) {
    CAPTURE(text);
    const std::vector<std::string> arguments = command(text);
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) {
      argv.push_back(argument.c_str());
    }
    std::string error;
    try {
      ddp::micro::parse_micro_options(static_cast<int>(argv.size()), argv.data());
    } catch (const ddp::UsageError& usage) {
      error = usage.what();
    }
    CHECK_FALSE(error.empty());
    CHECK(error.find('\n') == std::string::npos);
    for (const std::string& part : named) {
      CHECK(error.find(part) != std::string::npos);
    }
  }
}

TEST_CASE("a mistake that only a rank sees: one line too, exit 2, and nothing on standard output",
          "[micro]") {
  for (const auto& [text, named] : std::vector<std::pair<std::string, std::string>>{
           {"--suite speed", "speed"},
           {"--suite all_reduce --backends nccl --device cpu", "nccl"},
           {"--suite limits --nprocs 3 --device cuda", "--device cuda"},
           {"--suite limits --benchmark_bogus=1", "--benchmark_bogus"},
           {"--suite pieces --benchmark_filter=nothing", "nothing"}}) {
    ddp::test::RunOptions options;
    options.environment["CUDA_VISIBLE_DEVICES"] = "";
    const RunResult result = run_program(command(text), options);
    INFO("said " << result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(result.err.starts_with("bench_micro: error: "));
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    CHECK(result.err.find(named) != std::string::npos);
  }
}

TEST_CASE("--benchmark_list_tests and --benchmark_filter know the exact names", "[micro]") {
  const auto list = [&](const std::string& filter) {
    const RunResult result =
        run_program(command("--suite all_reduce --bytes 4,40,400 --backends gloo "
                            "--benchmark_list_tests --benchmark-filter=" +
                            filter));
    CHECK(result.exit_code == 0);
    return result.out;
  };
  CHECK(list("^all_reduce/gloo/ranks:2/bytes:4$") == "all_reduce/gloo/ranks:2/bytes:4\n");
  CHECK(list("-:4$|:40$") == "all_reduce/gloo/ranks:2/bytes:400\n");
}

namespace {

/// A minute of all-reduces.
std::vector<std::string> long_run() {
  std::string bytes = "4";
  for (int size = 8; size <= 1200; size += 4) {
    bytes += ',';
    bytes += std::to_string(size);
  }
  return command("--suite all_reduce --benchmark_format=csv --bytes " + bytes);
}

}  // namespace

TEST_CASE("a rank that dies takes the others along, and so does the program itself", "[micro]") {
  Program program(long_run());
  REQUIRE(program.wait_for_output("bytes:4\""));  // they have met and measured
  const std::vector<pid_t> ranks = children_of(program.pid());
  REQUIRE(ranks.size() == 2);
  kill(ranks[1], SIGKILL);
  CHECK(all_gone_within(ranks, 10));
  const RunResult result = program.wait();
  INFO(result.err);
  CHECK(result.exit_code == 128 + SIGKILL);
  // In one line, by the launcher or, if it is quicker, by the rank that waits for it.
  const std::string line = result.err.substr(result.err.find("bench_micro: error: "));
  CHECK(std::count(line.begin(), line.end(), '\n') == 1);
  CHECK((line.starts_with("bench_micro: error: rank 1 was killed by signal 9") ||
         line.starts_with("bench_micro: error: [rank 0] rank 1 (pid " + std::to_string(ranks[1]) +
                          ") died during ")));

  Program killed(long_run());
  REQUIRE(killed.wait_for_output("bytes:4\""));
  const std::vector<pid_t> orphans = children_of(killed.pid());
  REQUIRE(orphans.size() == 2);
  kill(killed.pid(), SIGKILL);
  CHECK(all_gone_within(orphans, 10));
}

namespace {

/// Sums as Gloo does, then spoils the result from call `first_wrong_call` on.
class Broken : public c10d::Backend {
 public:
  using Spoil = std::function<void(const torch::Tensor&)>;
  Broken(c10::intrusive_ptr<c10d::Backend> right, int first_wrong_call, Spoil spoil)
      : c10d::Backend(right->getRank(), right->getSize()),
        right_(std::move(right)),
        first_wrong_call_(first_wrong_call),
        spoil_(std::move(spoil)) {}

  const std::string getBackendName() const override { return "broken"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<torch::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    const auto work = right_->allreduce(tensors, options);
    work->wait();
    if (++calls_ >= first_wrong_call_) {
      spoil_(tensors[0]);
    }
    return work;
  }

  int calls() const { return calls_; }

 private:
  c10::intrusive_ptr<c10d::Backend> right_;
  int first_wrong_call_;
  Spoil spoil_;
  int calls_ = 0;
};

struct Outcome {
  std::string error;  // of rank 0
  int calls = 0;
  std::size_t iterations = 0;
};

/// Two ranks measure all-reduces of two buckets; only rank 1's results are spoiled.
Outcome measure_broken(int first_wrong_call, const Broken::Spoil& spoil) {
  Outcome outcome;
  ddp::test::run_ranks(2, [&](ddp::ProcessGroup& right) {
    const auto broken = c10::make_intrusive<Broken>(
        right.c10d_group()->getDefaultBackend(),
        right.rank() == 1 ? first_wrong_call : std::numeric_limits<int>::max(), spoil);
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(right.store(), right.rank(), 2);
    group->setBackend(torch::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
                      c10::intrusive_ptr<c10d::Backend>(broken));
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    group->setGroupName("broken");
    const ddp::ProcessGroup process_group(right.environment(), right.store(), group, "broken",
                                          torch::kCPU);
    ddp::micro::Lockstep lockstep(process_group, kTimeout);
    std::string error;
    ddp::micro::Series series;
    try {
      series =
          ddp::micro::measure(ddp::micro::all_reduce(process_group, {400, 40}), lockstep, 1e-6);
    } catch (const ddp::micro::WrongResult& wrong) {
      error = wrong.what();
    }
    if (right.rank() == 0) {
      outcome = {error, broken->calls(), series.seconds.empty() ? 0 : series.seconds[1].size()};
    }
  });
  return outcome;
}

}  // namespace

TEST_CASE("no wrong sum is timed, whatever is wrong with it", "[micro]") {
  constexpr int kNever = std::numeric_limits<int>::max();
  const Outcome right = measure_broken(kNever, [](const torch::Tensor&) {});
  CHECK(right.error.empty());
  CHECK(right.iterations == 10);
  CHECK(right.calls == 2 * (1 + 5 + 1 + 10));  // buckets x (verified, warm-ups, timed)

  const std::vector<Broken::Spoil> ways = {
      [](const torch::Tensor& sum) { sum.zero_(); },
      [](const torch::Tensor& sum) { sum[-1].add_(1); },
      [](const torch::Tensor& sum) { sum[3].fill_(NAN); },
      [](const torch::Tensor& sum) { sum.copy_(sum.roll(1)); },
      [](const torch::Tensor& sum) { sum.div_(2); },
  };
  for (const Broken::Spoil& spoil : ways) {
    const Outcome wrong = measure_broken(1, spoil);
    CHECK(wrong.error.find("rank 1: the broken all-reduce of 440 bytes is wrong: element ") == 0);
    CHECK(wrong.calls == 2);
    CHECK(wrong.iterations == 0);
  }
  // Right when it is looked at, wrong when it is timed.
  const Outcome later = measure_broken(20, [](const torch::Tensor& sum) { sum[0].mul_(2); });
  CHECK(later.error.find("rank 1: the broken all-reduce") == 0);
  CHECK(later.iterations == 0);
}

TEST_CASE("all ranks make as many iterations, and the slowest counts", "[micro]") {
  std::vector<int> runs(3);
  std::vector<int> prepared(3);
  std::vector<double> slowest;
  ddp::test::run_ranks(3, [&](ddp::ProcessGroup& group) {
    ddp::micro::Lockstep lockstep(group, kTimeout);
    const auto rank = static_cast<std::size_t>(group.rank());
    const ddp::micro::Exercise uneven{
        .run =
            [&, rank] {
              ++runs[rank];
              std::this_thread::sleep_for(std::chrono::microseconds(rank == 1 ? 3000 : 100));
            },
        .report = {},
        .prepare = [&, rank](std::int64_t) { ++prepared[rank]; }};
    const ddp::micro::Series series = ddp::micro::measure(uneven, lockstep, 0.1);
    if (rank == 0) {
      slowest = series.slowest();
    }
  });
  CHECK(runs[0] >= 15);
  CHECK(runs == std::vector<int>(3, runs[0]));
  CHECK(prepared == runs);
  CHECK(slowest.size() >= 10);
  CHECK(*std::min_element(slowest.begin(), slowest.end()) >= 0.003);
}

TEST_CASE("nobody leaves the start line before all are there", "[micro]") {
  constexpr int kRanks = 4;
  constexpr int kRounds = 500;
  std::atomic<int> arrived{0};
  std::atomic<bool> early{false};
  ddp::test::run_ranks(kRanks, [&](ddp::ProcessGroup& group) {
    ddp::micro::Lockstep lockstep(group, kTimeout);
    for (int round = 1; round <= kRounds; ++round) {
      ++arrived;
      lockstep.line_up();
      if (arrived < kRanks * round) {
        early = true;
      }
      lockstep.line_up();
    }
  });
  CHECK(arrived == kRanks * kRounds);
  CHECK_FALSE(early);

  std::string error;
  ddp::test::run_ranks(2, [&](ddp::ProcessGroup& group) {
    ddp::micro::Lockstep lockstep(group, std::chrono::milliseconds(50));
    try {
      if (group.rank() == 0) {
        lockstep.line_up();  // rank 1 never comes
      }
    } catch (const ddp::TransientError& transient) {
      error = transient.what();
    }
  });
  CHECK(error.find("start line") != std::string::npos);
}

TEST_CASE("documents: what is missing is named, what is not a number is null", "[micro]") {
  const ScratchFolder folder("ddp-micro");
  const std::string path = (fs::path(folder.path()) / "results.json").string();
  const auto error_of = [&](const std::string& text) {
    std::ofstream(path) << text;
    try {
      read_micro_results(path);
    } catch (const ddp::Error& error) {
      CHECK(error.code() == ddp::ExitCode::kTrainingFailed);
      CHECK(std::string(error.what()).starts_with(path + ": "));
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto document = [](const std::string& benchmarks) {
    return R"({"context": {"device": "cpu"}, "benchmarks": [)" + benchmarks + "]}";
  };
  const std::string times =
      R"("run_type": "iteration", "ranks": 2e0, "bytes": 8e0, "time_us_p10": 1.0,
         "time_us_p90": 3.0, "time_us_p95": NaN, "time_us_n": 1.2e1)";
  const std::string sum = R"({"name": "all_reduce/shm/ranks:2/bytes:8", "time_us_median": )";

  CHECK_THROWS_AS(read_micro_results((fs::path(folder.path()) / "missing").string()), ddp::Error);
  for (const auto& [text, named] : std::vector<std::pair<std::string, std::string>>{
           {"", "is no JSON (0 bytes)"},
           {document(sum), "is no JSON"},
           {"[]", "/context"},
           {"3", "/context"},
           {R"({"context": {}})", "/context/device"},
           {R"({"context": {"device": "cpu"}})", "/benchmarks"},
           {document("7"), "/benchmarks/0: expected an object, got 7"},
           {document(R"({"name": "x"})"), "no /benchmarks/0/run_type"},
           {document(R"({"name": "x", )" + times + "}"), "no /benchmarks/0/time_us_median"},
           {document(R"({"name": "x/y", "time_us_median": 2.0, )" + times + "}"),
            "/benchmarks/0/name: expected limits/"},
           {document(R"({"name": "limits/speed/ranks:2", "time_us_median": 2.0, )" + times + "}"),
            "limits/gemm_fp32"},
           {document(R"({"name": "all_reduce/a/b/c", "run_type": "iteration", "ranks": 1.5})"),
            "/benchmarks/0/ranks: expected a whole number, got 1.5"},
           {document(sum + "\"fast\", " + times + "}"),
            "/benchmarks/0/time_us_median: expected a number"}}) {
    CAPTURE(text);
    CHECK(error_of(text).find(named) != std::string::npos);
  }
  CHECK(error_of(document("")) == "no error");

  std::ofstream(path) << document(
      sum + "2.0, " + times + "}, " + sum + "4.0, " + times + "}, " +
      R"({"name": "pieces/a/b", "time_us_median": -nan, )" + times +
      R"(, "bandwidth": inf}, {"name": "all_reduce/gloo/ranks:2/bytes:4",
                                  "run_type": "iteration", "error_occurred": true,
                                  "error_message": "rank 1: wrong"})");
  const MicroResults results = read_micro_results(path);
  REQUIRE(results.all_reduce.size() == 1);
  const AllReduceSample& sample = results.all_reduce[0];
  CHECK(sample.backend == "shm");
  CHECK(sample.time_us.median == 3.0);
  CHECK(sample.time_us.p90 == 3.0);
  CHECK_FALSE(sample.time_us.p95);
  CHECK(sample.time_us.n == 24);
  REQUIRE(results.pieces.size() == 1);
  CHECK(results.pieces[0].name == "a/b");
  CHECK(results.pieces[0].bytes == 8);
  CHECK_FALSE(results.pieces[0].time_us.median);
  CHECK_FALSE(results.pieces[0].bandwidth_gbps);
  REQUIRE(results.errors.size() == 1);
  CHECK(results.errors[0] == "all_reduce/gloo/ranks:2/bytes:4: rank 1: wrong");

  MicroResults both = results;
  both.append(results);
  CHECK(both.all_reduce.size() == 2);
  CHECK(both.errors.size() == 2);
}

TEST_CASE("memory and buckets on paper are those that a training has", "[micro]") {
  for (const std::vector<std::int64_t>& layers :
       {std::vector<std::int64_t>{20, 1}, {64, 128, 128, 10}, {784, 512, 512, 10}}) {
    for (const std::string optimizer : {"sgd", "momentum", "adam", "adamw"}) {
      for (const int ranks : {1, 3}) {
        CAPTURE(layers, optimizer, ranks);
        ddp::Options options;
        options.optimizer = optimizer;
        options.shard_optimizer = true;
        options.bucket_mib = 0.01;
        const Gradients gradients = {.bucket_mib = 0.01, .shard_optimizer = true};
        const ddp::Mlp mlp(layers);
        const ddp::FlatParameters flat = ddp::flatten_parameters(*mlp);
        std::int64_t state_bytes = 0;
        ddp::test::run_ranks(
            ranks,
            [&](ddp::ProcessGroup& process_group) {
              const ddp::Mlp replica(layers);
              const ddp::Optimizer sharded(*replica, options, &process_group);
              if (process_group.rank() == 0) {
                state_bytes = sharded.state_bytes();
              }
            },
            "gloo");
        const StepMemory memory = count_memory(layers, 32, optimizer, gradients, ranks);
        CHECK(memory.weights == static_cast<double>(flat.data.nbytes()));
        CHECK(memory.gradients == static_cast<double>(flat.grad.nbytes()));
        CHECK(memory.optimizer_state == static_cast<double>(state_bytes));
        const std::vector<ddp::BucketRange> ranges =
            ddp::bucket_ranges(flat, ddp::distributed_options(options));
        const std::vector<Bucket> buckets = count_buckets(layers, gradients, ranks);
        REQUIRE(buckets.size() == ranges.size());
        for (size_t i = 0; i < ranges.size(); ++i) {
          CHECK(buckets[i].bytes == 4.0 * static_cast<double>(ranges[i].end - ranges[i].begin));
        }
      }
    }
  }
}

TEST_CASE("activations on paper are what autograd keeps of a forward", "[micro]") {
  static CountingAllocator counting(*c10::GetCPUAllocator());
  c10::Allocator* const before = c10::GetCPUAllocator();
  for (const std::vector<std::int64_t>& layers :
       {std::vector<std::int64_t>{20, 1}, {64, 128, 128, 10}, {784, 512, 512, 10}}) {
    for (const std::int64_t samples : {8, 64}) {
      CAPTURE(layers, samples);
      ddp::Mlp mlp(layers);
      const torch::Tensor target =
          layers.back() == 1 ? torch::zeros({samples, 1})
                             : torch::zeros({samples}, torch::TensorOptions(torch::kInt64));
      c10::SetCPUAllocator(&counting);
      const size_t held_before = counting.held();
      torch::Tensor loss;
      {
        const torch::Tensor input = torch::ones({samples, layers.front()});
        const torch::Tensor output = mlp->forward(input);
        loss = layers.back() == 1 ? at::mse_loss(output, target)
                                  : at::cross_entropy_loss(output, target);
      }
      const auto held = static_cast<double>(counting.held() - held_before);
      loss.reset();
      const size_t held_after = counting.held();
      c10::SetCPUAllocator(before);
      CHECK(held_after == held_before);
      const double predicted =
          count_memory(layers, static_cast<double>(samples), "sgd", {}, 1).activations;
      // The loss itself; that of a regression has room for a value of each sample.
      const double loss_bytes = 64 + (layers.back() == 1 ? 4.0 * static_cast<double>(samples) : 0);
      CHECK(held >= predicted);
      CHECK(held <= predicted + loss_bytes);
    }
  }
}
