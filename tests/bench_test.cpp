// Runs the bench program on stages that are made up: right ones, wrong ones, and broken ones.
#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "bench/report/catalog.hpp"
#include "bench/report/micro_results.hpp"
#include "tests/catch.hpp"
#include "tests/support/fake_bench.hpp"

namespace {

namespace fs = std::filesystem;
using namespace ddp::test;
using nlohmann::json;
using Words = std::vector<std::string>;

TEST_CASE("what is no number in Google Benchmark's JSON becomes null", "[bench]") {
  const json parsed = ddp::bench::parse_benchmark_json(
      R"({"a": NaN, "b": [-Infinity, inf, -nan, 1e-3, -2.5E+7, 3], "c": "NaN \" inf", "d": true,
          "e": null, "f": false})");
  CHECK(parsed.at("a").is_null());
  CHECK(parsed.at("b") == json::parse("[null, null, null, 1e-3, -2.5E+7, 3]"));
  CHECK(parsed.at("c") == "NaN \" inf");
  CHECK(parsed.at("d") == true);
  CHECK(parsed.at("e").is_null());
  CHECK(parsed.at("f") == false);
}

TEST_CASE("bench measures stages that agree", "[bench]") {
  FakeBench bench;
  bench.install("path/torchrun", kFakeTorchrun);
  const Measured report =
      bench.measure({"--models", "T,digits", "--world-sizes", "1,2", "--launchers",
                     "spawn,torchrun", "--steps", "50", "--repetitions", "6"});
  CHECK(report.scaling.at("partial") == false);
  // Stage 01, four programs at two world sizes, two controls, on two workloads.
  CHECK(report.scaling.at("runs").size() == 2 * (1 + 8 + 2));
  CHECK(report.scaling.at("comparisons").size() == 2 * (8 + 2 + 2));  // and by_hand with main

  const json base = report.run("01_single_gpu");
  CHECK(base.at("global_batch") == 32);
  CHECK(base.at("relative_speedup") == 1.0);
  CHECK(base.at("efficiency") == 1.0);
  CHECK(base.at("steps") >= 50);
  CHECK(base.at("step_ms").at("n") >= 6 * 50);
  CHECK(base.at("slow_launches") == json({{"k", 0}, {"n", 6}}));
  CHECK(base.at("repetitions").size() == 6);
  CHECK(base.at("layers") == json({20, 1}));
  CHECK(base.at("flops") == 2 * 2 * 32 * 20);
  CHECK(is_near(base.at("step_ms").at("median"), 0.065, 0.05));
  CHECK(base.at("step_ms").at("p95").get<double>() < 0.1);  // no warm-up step among them
  CHECK(base.at("peak_rss_mib") == 100.5);
  CHECK(base.at("peak_device_mib") == 7.5);
  CHECK(base.at("comm").at("bytes_per_step") == 0);
  CHECK(base.at("comm").at("alone_ms").is_null());

  json two_ranks;
  for (const json& run : report.scaling.at("runs")) {
    if (run.at("stage") == "03_ddp_spawn" && run.at("world_size") == 2 &&
        run.at("kind") == "stage") {
      two_ranks = run;
    }
  }
  CHECK(two_ranks.at("global_batch") == 64);
  for (const json& phase_ms : two_ranks.at("phases_ms")) {
    CHECK(phase_ms.is_number());
  }
  // Rank 1 is twice as slow as rank 0, and the slowest counts.
  CHECK(is_near(two_ranks.at("step_ms").at("median"), 2 * 1.3 * 0.2, 0.05));
  CHECK(is_near(two_ranks.at("phases_ms").at("exposed_comm"), 0.14, 1e-6));
  // Rank 0 waits half of the time for rank 1.
  CHECK(is_near(two_ranks.at("phases_ms").at("imbalance"), 1.3 * 0.2 / 2, 0.05));
  CHECK(is_near(two_ranks.at("no_comm_step_ms"), 2 * 1.3 * 0.07, 0.05));
  CHECK(is_near(two_ranks.at("comm").at("exposed_by_difference_ms"), 2 * 1.3 * 0.13, 0.05));
  CHECK(two_ranks.at("slowest_rank").at("rank") == 1);
  CHECK(two_ranks.at("slowest_rank").at("share_of_steps") == 1.0);
  const double speedup = two_ranks.at("relative_speedup");
  CHECK(is_near(two_ranks.at("efficiency"), speedup / 2, 1e-6));

  for (const json& comparison : report.scaling.at("comparisons")) {
    CHECK(comparison.at("pairs") == 6);
    CHECK(comparison.at("ci95").size() == 2);
  }
  // Google Benchmark's part: six repetitions of each, those without communication of the three
  // programs with two ranks included, under names that stay the same between reports.
  const json& benchmarks = report.document.at("benchmarks");
  CHECK(std::count_if(benchmarks.begin(), benchmarks.end(), [](const json& entry) {
          return entry.at("run_type") == "iteration";
        }) == 6 * 2 * (1 + 8 + 2 + 3));
  CHECK(benchmarks.at(0).at("name") == "T/weak/01_single_gpu/ranks:1/iterations:1/manual_time");
  CHECK(contains(report.err, "What to conclude"));
  CHECK(contains(report.err, "waits for the all-reduce of 84 bytes"));
}

TEST_CASE("the timed steps that were asked for remain beside 50 ms of warm-up", "[bench]") {
  FakeBench bench;
  // Whole runs of it are over in less than 50 ms, which its parity run did not show.
  bench.behave("03_ddp_spawn", "[ $(wc -l < \"$0.calls\") -lt 2 ] || step_ms=0.001 comm=0.0001");
  const Measured report = bench.measure(small_and());
  CHECK(report.run("03_ddp_spawn").at("steps") == 20);
  CHECK(report.run("01_single_gpu").at("steps") >= 20);
}

TEST_CASE("bench waits for other programs to leave the processors, and says so", "[bench]") {
  const FakeBench bench;
  std::vector<std::jthread> others((std::thread::hardware_concurrency() + 1) / 2);
  for (std::jthread& other : others) {
    other = std::jthread([](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
      }
    });
  }
  const Words once = {"--stages", "02", "--repetitions", "1"};
  Words waiting = small_and(once);
  waiting.insert(waiting.end(), {"--quiet-wait", "2"});
  const Measured report = bench.measure(waiting);
  CHECK(contains(report.err, "waiting at most 2 s: other programs use "));
  CHECK(contains(report.err, "Other programs kept "));
  CHECK(report.scaling.at("machine").at("busy_before_share") >= 0.1);
  const Measured hasty = bench.measure(small_and(once));
  CHECK(hasty.scaling.at("machine").at("busy_before_share").is_null());
  CHECK_FALSE(contains(hasty.err, "waiting"));
  CHECK_FALSE(contains(hasty.err, "Other programs kept"));
}

TEST_CASE("strong scaling keeps the batch over all ranks", "[bench]") {
  const Measured report = FakeBench().measure(
      {"--models", "T", "--world-sizes", "1,2,4", "--launchers", "spawn", "--scaling", "strong",
       "--steps", "10", "--stages", "03_ddp_spawn", "--repetitions", "1"});
  CHECK(report.scaling.at("runs").size() == 1 + 3 + 2);
  for (const json& run : report.scaling.at("runs")) {
    CHECK(run.at("scaling") == "strong");
    CHECK(run.at("global_batch") == 128);
  }
  for (const json& comparison : report.scaling.at("comparisons")) {
    CHECK(comparison.at("pairs") == 1);
    CHECK(comparison.at("ci95").is_null());  // one pair is no interval
  }
}

TEST_CASE("the batch over all ranks is one that every world size divides", "[bench]") {
  const auto batches = [](const std::string& world_sizes) {
    std::set<std::string> found;
    for (const std::string& line :
         FakeBench().print({"--models", "T", "--world-sizes", world_sizes, "--launchers", "spawn",
                            "--scaling", "strong", "--stages", "03_ddp_spawn", "--dry-run"})) {
      const std::string option = "--global-batch ";
      const std::size_t place = line.find(option);
      if (place != std::string::npos) {
        found.insert(line.substr(place + option.size(),
                                 line.find(' ', place + option.size()) - place - option.size()));
      }
    }
    return found;
  };
  CHECK(batches("2,4") == std::set<std::string>{"128"});
  CHECK(batches("2,3") == std::set<std::string>{"96"});
  CHECK(batches("2,3,4") == std::set<std::string>{"384"});
}

TEST_CASE("in strong scaling the batch over all ranks can be said", "[bench]") {
  const Measured report = FakeBench().measure(
      {"--models", "T", "--world-sizes", "1,2", "--launchers", "spawn", "--scaling", "weak,strong",
       "--global-batch", "96", "--steps", "10", "--stages", "03_ddp_spawn", "--quick"});
  for (const json& run : report.scaling.at("runs")) {
    const int weak = 32 * run.at("world_size").get<int>();
    CHECK(run.at("global_batch") == (run.at("scaling") == "strong" ? 96 : weak));
  }
}

TEST_CASE("a model can be any widths and batch, and its name says which", "[bench]") {
  const ddp::bench::Workload* const known = ddp::bench::find_workload("64-256-256-10@32");
  REQUIRE(known != nullptr);
  CHECK(known->layers == std::vector<std::int64_t>{64, 256, 256, 10});
  CHECK(known->batch == 32);
  CHECK(ddp::bench::workload_description("20-1@8") == "20-1, synthetic regression, batch 8");
  for (const char* bad :
       {"", "@", "64@32", "64-", "64-10", "64-10@", "64-10@0", "64-0@32", "-64-10@32", "64-10@-1",
        "64-10@32x", "64-10@032", "64-+10@32", "64- 10@32", "64--10@32", "64-10@32@32", "64-10@1e3",
        "64-10000000@32", "64-10@99999999999999999999"}) {
    CAPTURE(bad);
    CHECK(ddp::bench::find_workload(bad) == nullptr);
  }
  FakeBench bench;
  const Measured report = bench.measure({"--models", "16-8-1@4", "--world-sizes", "2",
                                         "--launchers", "spawn", "--steps", "10", "--quick"});
  const json run = report.run("03_ddp_spawn");
  CHECK(run.at("name") == "16-8-1@4/weak/03_ddp_spawn/spawn/shm/ranks:2");
  CHECK(run.at("global_batch") == 8);
  CHECK(contains(report.err, "16-8-1, synthetic regression"));
  CHECK(contains(read_file(bench.bin() / "03_ddp_spawn.calls"), "--layers 16,8,1 "));
}

TEST_CASE("a configuration that fails parity gets an error and no speed", "[bench]") {
  FakeBench bench;
  bench.behave("03_ddp_spawn", "moved=0.5001");
  const Measured report = bench.measure(small_and(), 1);
  const json run = report.run("03_ddp_spawn");
  CHECK(run.at("parity") == json({{"moved", 0.5001}, {"reference_moved", 0.5}, {"ok", false}}));
  CHECK(contains(run.at("error"), "parity"));
  CHECK(run.at("step_ms").at("median").is_null());
  CHECK(run.at("efficiency").is_null());
  // The others are measured all the same.
  CHECK(report.run("03_ddp_spawn", "by_hand").at("error").is_null());
  CHECK(contains(report.err, "FAILED"));
  for (const json& entry : report.document.at("benchmarks")) {
    CHECK(entry.value("error_occurred", false) == contains(entry.at("name"), "/03_ddp_spawn/"));
  }
  for (const json& comparison : report.scaling.at("comparisons")) {
    CHECK_FALSE(contains(comparison.at("a"), "/03_ddp_spawn/"));
  }
}

TEST_CASE("weights that are not numbers never pass parity", "[bench]") {
  FakeBench bench;
  // In the reference: then nothing has a speed.
  const std::string stage = GENERATE("03_ddp_spawn", "01_single_gpu");
  bench.behave(stage, "moved=null");
  const Measured report = bench.measure(small_and(), 1);
  CHECK(report.run(stage).at("parity").at("moved").is_null());
  for (const json& run : report.scaling.at("runs")) {
    const bool is_hit = run.at("stage") == stage && run.at("variant") == "main";
    if (is_hit || stage == "01_single_gpu") {
      CHECK(run.at("parity").at("ok") == false);
      CHECK(run.at("samples_per_second").is_null());
    }
  }
}

TEST_CASE("a stage that breaks is an error of its configuration only", "[bench]") {
  struct Case {
    const char* behaviour;
    const char* error;
  };
  const Case broken = GENERATE(values<Case>({
      {"echo '[rank 1] error: out of batches, \"quoted\"' >&2; exit 1", "out of batches"},
      {"kill -SEGV $$", "signal 11"},
      {"sleep 30 & sleep 30", "still running after 1 s"},
      {"exit 0", "metrics"},
      {"after() { sed -i '$d' \"$metrics\"; }", "cut off"},
      {"after() { head -c 1000 \"$metrics\" > x; mv x \"$metrics\"; }", "no JSON object"},
      {"after() { sed -i '5d' \"$metrics\"; }", "written by 1 ranks, expected 2"},
      {"after() { sed -i '6s/\"rank\":1/\"rank\":0/' \"$metrics\"; }",
       "step 2 of rank 0 was written twice"},
      {"after() { sed -i '5s/\"step_ms\":[0-9.]*/\"step_ms\":null/' \"$metrics\"; }",
       "no step time"},
      {"global=16", "global batch of 16, expected 64"},
  }));
  CAPTURE(broken.behaviour);
  FakeBench bench;
  bench.behave("03_ddp_spawn", broken.behaviour);
  const Measured report = bench.measure(small_and({"--repetitions", "1", "--timeout", "1"}), 1);
  CHECK(contains(report.run("03_ddp_spawn").at("error"), broken.error));
  CHECK(report.run("01_single_gpu").at("error").is_null());
  CHECK(report.seconds < 20);
}

TEST_CASE("a stage that breaks while it is timed loses its speed", "[bench]") {
  FakeBench bench;
  // The first call is the parity run.
  const std::string first_bad_call = GENERATE("2", "3", "4");
  CAPTURE(first_bad_call);
  bench.behave("03_ddp_spawn", "[ $(wc -l < \"$0.calls\") -lt " + first_bad_call + " ] || exit 1");
  const json run = bench.measure(small_and(), 1).run("03_ddp_spawn");
  CHECK(run.at("parity").at("ok") == true);
  CHECK(run.at("error") == "exit code 1");
}

TEST_CASE("a stage that asks to be tried again is", "[bench]") {
  FakeBench bench;
  bench.behave("03_ddp_spawn", "[ $(wc -l < \"$0.calls\") -gt 2 ] || exit 75");
  CHECK(bench.measure(small_and()).run("03_ddp_spawn").at("error").is_null());
}

TEST_CASE("an interrupt still leaves one valid document", "[bench]") {
  FakeBench bench;
  // bench is this script's parent.
  bench.behave("03_ddp_spawn",
               "[ $(wc -l < \"$0.calls\") -lt 2 ] || { kill -INT $PPID; sleep 30; }");
  const Measured report = bench.measure(small_and(), 1);
  CHECK(report.seconds < 20);
  CHECK(report.scaling.at("partial") == true);
}

TEST_CASE("bench tells the stages who they are by nothing but their options", "[bench]") {
  FakeBench bench;
  const Words names = {"RANK",           "OMPI_COMM_WORLD_RANK", "SLURM_STEP_ID",
                       "FLUX_TASK_RANK", "MPI_LOCALRANKID",      "JSM_NAMESPACE_RANK",
                       "PALS_RANKID"};
  bench.behave("03_ddp_spawn",
               "[ -z \"$RANK$OMPI_COMM_WORLD_RANK$SLURM_STEP_ID$FLUX_TASK_RANK$MPI_LOCALRANKID"
               "$JSM_NAMESPACE_RANK$PALS_RANKID\" ] || exit 1");
  for (const std::string& name : names) {
    setenv(name.c_str(), "1", 1);
  }
  const int exit_code = bench.run(small_and({"--repetitions", "1"})).exit_code;
  for (const std::string& name : names) {
    unsetenv(name.c_str());
  }
  CHECK(exit_code == 0);
}

TEST_CASE("launchers and programs that are missing are named", "[bench]") {
  FakeBench bench;
  fs::remove(bench.bin() / "03_ddp_spawn_by_hand");
  const Measured report = bench.measure({"--models", "T", "--world-sizes", "1", "--steps", "10",
                                         "--repetitions", "1", "--stages", "01,03"});
  CHECK(contains(report.err, "Not run: torchrun"));
  CHECK(contains(report.err, "Not run: 03_ddp_spawn_by_hand"));
  CHECK(report.scaling.at("not_run").size() >= 2);
  CHECK(report.scaling.at("software").at("launchers").at("torchrun").is_null());
}

/// How many of `lines` have all `parts`.
long count(const Words& lines, const Words& parts) {
  return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
    return std::all_of(parts.begin(), parts.end(),
                       [&](const std::string& part) { return contains(line, part); });
  });
}

TEST_CASE("commands and names are printed without running anything", "[bench]") {
  FakeBench bench;
  bench.install("path/torchrun", kFakeTorchrun);
  const Words commands = bench.print(
      {"--models", "T", "--world_sizes", "1,2", "--launchers", "spawn,torchrun", "--dry_run"});
  CHECK(count(commands, {"/03_ddp_spawn 2 2 --global-batch 64 --layers 20,1"}) > 0);
  CHECK(count(commands, {"/torchrun --standalone --nproc_per_node=2 --no-python "}) > 0);
  CHECK(count(bench.print(small_and({"--benchmark_list_tests=true"})),
              {"T/weak/03_ddp_spawn/spawn/shm/ranks:2/iterations:1/manual_time"}) == 1);
}

TEST_CASE("mirrored replicas are measured beside the other stages, with autograd", "[bench]") {
  FakeBench bench;
  bench.install("bin/02_data_parallel_mirrored", kFakeStage);
  Words options = {"--models",  "T",           "--world-sizes",
                   "1,2",       "--launchers", "spawn",
                   "--speedup", "none,fused",  "--benchmark_list_tests=true"};
  Words names = bench.print(options);
  CHECK(count(names, {"T/weak/02_data_parallel_mirrored/ranks:2"}) == 1);
  CHECK(count(names, {"02_data_parallel_mirrored"}) == 1);  // neither fused nor alone
  CHECK(count(names, {"T/weak/02_data_parallel/fused/ranks:"}) == 2);
  options.insert(options.end(), {"--stages", "02_data_parallel_mirrored"});
  CHECK(count(bench.print(options), {"T/weak/02_data_parallel_mirrored/ranks:"}) == 2);
}

TEST_CASE("buckets, compression and sharding are configurations of what communicates", "[bench]") {
  Words parity =
      FakeBench().print({"--models", "T", "--world-sizes", "1,2", "--launchers", "spawn",
                         "--stages", "03", "--bucket-mib", "0.25,25", "--gradient-compression",
                         "none,bf16", "--shard_optimizer", "no,yes", "--dry-run", "--quick"});
  parity.erase(std::find_if(parity.begin(), parity.end(),
                            [](const std::string& line) { return line.starts_with("# timed"); }),
               parity.end());
  const std::string main = "/03_ddp_spawn ";
  const std::string small = "--bucket-mib 0.25 ";
  const std::string rounded = "--gradient-compression bf16 ";
  const std::string sharded = "--shard-optimizer ";
  CHECK(count(parity, {main}) == 8);
  CHECK(count(parity, {main, small}) == 4);
  CHECK(count(parity, {main, "--bucket-mib"}) == 4);
  CHECK(count(parity, {main, rounded}) == 4);
  CHECK(count(parity, {main, sharded}) == 4);
  CHECK(count(parity, {main, small + rounded + sharded}) == 1);
  CHECK(count(parity, {"/03_ddp_spawn_by_hand "}) == 1);  // it sends gradients as they are
  CHECK(count(parity, {"/01_single_gpu ", "--bucket-mib"}) == 0);
}

TEST_CASE("how gradients travelled is in the name and in the fields", "[bench]") {
  const Measured report = FakeBench().measure(
      small_and({"--stages", "03_ddp_spawn", "--bucket-mib", "0.25", "--gradient-compression",
                 "fp16", "--shard-optimizer", "no,yes", "--quick"}));
  size_t sharded = 0;
  for (const json& run : report.scaling.at("runs")) {
    const bool travels = run.at("world_size") == 2;
    const bool is_sharded = run.at("shard_optimizer");
    CHECK(run.at("bucket_mib") == (travels ? 0.25 : 25.0));
    CHECK(run.at("gradient_compression") == (travels ? "fp16" : "none"));
    CHECK(contains(run.at("name"), std::string("/bucket:0.25/fp16") +
                                       (is_sharded ? "/sharded" : "") + "/ranks:2") == travels);
    sharded += is_sharded ? 1 : 0;
  }
  CHECK(sharded == 1);
}

TEST_CASE("the filter decides what is timed, stage 01 stays the reference", "[bench]") {
  const json runs =
      FakeBench().measure(small_and({"--benchmark_filter=by_hand"})).scaling.at("runs");
  REQUIRE(runs.size() == 2);  // and its control
  CHECK(runs.at(0).at("relative_speedup").is_null());
  CHECK(runs.at(0).at("parity").at("reference_moved") == 0.5);
}

TEST_CASE("the page, the files and standard output hold one document", "[bench]") {
  FakeBench bench;
  const auto result = bench.run(small_and({"--benchmark_format=json", "--json", "report.json",
                                           "--benchmark_out=google.json", "--html", "page.html"}));
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const json document = json::parse(result.out);
  check_report(document);
  CHECK(document == json::parse(read_file(bench.root() / "report.json")));
  CHECK(document.at("benchmarks") ==
        json::parse(read_file(bench.root() / "google.json")).at("benchmarks"));
  const std::string page = read_file(bench.root() / "page.html");
  const std::string begin = "<script type=\"application/json\" id=\"document\">";
  const std::size_t from = page.find(begin) + begin.size();
  CHECK(json::parse(page.substr(from, page.find("</script>", from) - from)) == document);
  CHECK(contains(page, "</html>"));
}

TEST_CASE("with files alone standard output has the table", "[bench]") {
  FakeBench bench;
  const auto result =
      bench.run(small_and({"--repetitions", "1", "--html", "page.html", "--json", "report.json"}));
  CHECK(result.exit_code == 0);
  CHECK(contains(result.out, "What to conclude"));

  bench.behave("03_ddp_spawn", "exit 1");
  const auto failing = bench.run(small_and({"--repetitions", "1", "--json", "failing.json"}));
  CHECK(failing.exit_code == 1);
  CHECK(contains(failing.out, "What to conclude"));
  check_report(json::parse(read_file(bench.root() / "failing.json")));
}

TEST_CASE("bench refuses what it does not understand", "[bench]") {
  FakeBench bench;
  struct Case {
    Words arguments;
    const char* error;
  };
  const std::vector<Case> cases = {
      {{"--foo"}, "--foo"},
      {{"extra"}, "extra"},
      {{"--html"}, "--html: expected a FILE"},
      {{"--html="}, "--html"},
      {{"--html", "/nonexistent/report.html"}, "--html: expected a file in an existing folder"},
      {{"--html", "/"}, "--html: expected a file"},
      {{"--html", "report.html", "--dry-run"}, "--html: nothing is measured"},
      {{"--json", "report.x", "--html", "./report.x"}, "--html: expected another file"},
      {{"--peers", "keras"}, "--peers"},
      {{"--nodes", "2"}, "--nodes 2: only srun starts ranks on several nodes"},
      {{"--nodes", "2,1"}, "--nodes 1,2: only srun starts ranks on several nodes"},
      {{"--models", "64-256@"}, "--models: expected T, S, M, L, digits, or widths and batch"},
      {{"--quick", "--full"}, "--quick"},
      {{"--global-batch", "64"}, "--global-batch 64: in weak scaling it follows from the ranks"},
      {{"--global-batch", "65", "--scaling", "strong", "--world-sizes", "1,2"},
       "--global-batch 65: expected a multiple of each world size, 2 is one of them"},
      {{"--launchers", "srun"}, "--launchers srun"},
      {{"--backends", "mpi", "--launchers", "spawn"},
       "--backends mpi: no stage is started by mpirun"},
      {{"--backends", "carrier-pigeon"}, "carrier-pigeon"},
      {{"--world-sizes", "two"}, "two"},
      {{"--world-sizes", "0"}, "--world-sizes"},
      {{"--repetitions", "0"}, "--repetitions"},
      {{"--models", "Q"}, "\"Q\""},
      {{"--stages", "06"}, "\"06\""},
      {{"--stages", "05_multinode"}, "05_multinode"},
      {{"--launchers", "torchrun"}, "torchrun"},
      {{"--scaling", "sideways"}, "sideways"},
      {{"--steps", "0"}, "--steps"},
      {{"--repetitions", "010x"}, "--repetitions: got \"010x\""},
      {{"--budget", "nan"}, "--budget: got \"nan\", expected a finite number > 0"},
      {{"--timeout", "nan"}, "--timeout: got \"nan\""},
      {{"--bucket-mib", "4,nan"}, "--bucket-mib: got \"nan\""},
      {{"--seed", "-1"}, "--seed: got \"-1\""},
      {{"--network", "5"}, "--network: expected ALPHA_US,GBPS, as in 2.5,25, got \"5\""},
      {{"--network", "-1,25"}, "--network: got \"-1\", expected a finite number > 0"},
      {{"--network", "2,nan"}, "--network: got \"nan\", expected a finite number > 0"},
      {{"--network", "2,5,7"}, "--network: got \"5,7\", expected a finite number > 0"},
      {{"--nodes", "0x2"}, "--nodes: got \"0x2\""},
      {{"--json", "/nonexistent/report.json"}, "/nonexistent"},
      {{"--bucket-mib", "0"}, "--bucket-mib"},
      {{"--gradient-compression", "int8"}, "--gradient-compression"},
      {{"--shard-optimizer", "maybe"}, "--shard-optimizer"},
      {{"--json", "--dry-run"}, "--dry-run"},
      {{"--benchmark_foo=1"}, "--benchmark_foo"},
      {{"--benchmark_filter=("}, "--benchmark_filter"},
      {{"--benchmark_format=csv"}, "--benchmark_format"},
      {{"--benchmark_min_time=3"}, "--benchmark_min_time: got \"3\", expected --steps or --budget"},
      {{"--benchmark_min_warmup_time=1"}, "--benchmark_min_warmup_time"},
      {{"--benchmark_enable_random_interleaving=true"}, "expected --seed"},
      {{"--benchmark_perf_counters=CYCLES"}, "--benchmark_perf_counters"},
      {{"--benchmark_repetitions=1001"}, "--benchmark_repetitions: got \"1001\""},
      {{"--benchmark_context=host"}, "--benchmark_context: got \"host\", expected KEY=VALUE"},
      {{"--benchmark_list_tests", "--json", "l.json"}, "--json: nothing is measured with"},
      {{"--benchmark_list_tests", "--html", "l.html"}, "--html: nothing is measured with"},
      {{"--benchmark_format=json", "--dry-run"}, "--json: nothing is measured with --dry-run"},
      {{"--benchmark_out="}, "--benchmark_out: expected a file"},
      {{"--benchmark_out=/nonexistent/b.json"}, "--benchmark_out: expected a file in an existing"},
      {{"--benchmark_out=/proc/b.json"}, "--benchmark_out: expected a file that can be written"},
      {{"--json", "/proc/r.json"}, "--json: expected a file that can be written"},
  };
  for (const Case& bad : cases) {
    CAPTURE(bad.arguments);
    const auto result = bench.run(bad.arguments);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(contains(result.err, bad.error));
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    CHECK(result.seconds < 5);
  }
  CHECK_FALSE(bench.has_run());
}

TEST_CASE("a name that is given twice is one", "[bench]") {
  struct Case {
    std::string option;
    std::string value;
    std::string again = value;
  };
  const std::vector<Case> cases = {
      {"--stages", "03"},          {"--launchers", "spawn"},     {"--backends", "shm"},
      {"--models", "S", "s"},      {"--world-sizes", "2"},       {"--scaling", "weak"},
      {"--speedup", "none"},       {"--bucket-mib", "4", "4.0"}, {"--gradient-compression", "bf16"},
      {"--shard-optimizer", "yes"}};
  Words once = {"--benchmark_list_tests"};
  Words twice = once;
  for (const Case& c : cases) {
    once.insert(once.end(), {c.option, c.value});
    twice.insert(twice.end(), {c.option, c.value + "," + c.again});
  }
  const Words names = FakeBench().print(twice);
  CHECK(names == FakeBench().print(once));
  CHECK(names.size() >= 3);
  CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
}

TEST_CASE(
    "where launchers are named stage 05 is there once, on two ranks of the one that starts in the "
    "least time",
    "[bench]") {
  FakeBench bench;
  bench.install("bin/05_multinode", kFakeStage);
  const auto listed = [&](Words more) {
    more.insert(more.end(), {"--models", "T", "--world-sizes", "1,2,4", "--benchmark_list_tests"});
    Words names = bench.print(more);
    std::erase_if(names, [](const std::string& name) { return !contains(name, "05_multinode"); });
    return names;
  };
  const auto only = [](const std::string& launcher_and_ranks) {
    return Words{"T/weak/05_multinode/" + launcher_and_ranks + "/iterations:1/manual_time"};
  };
  bench.install("path/torchrun", kFakeTorchrun);
  CHECK(listed({"--launchers", "torchrun", "--quick"}) == only("torchrun/shm/ranks:4"));
  bench.install("path/mpirun", "#!/bin/sh\n");
  const std::string both = "spawn,torchrun,mpirun";
  CHECK(listed({"--launchers", both}) == only("mpirun/shm/ranks:2"));
  CHECK(listed({"--launchers", both, "--quick"}) == only("mpirun/shm/ranks:4"));
  CHECK(listed({"--launchers", "spawn"}).empty());
  CHECK(listed({"--stages", "01,03"}).empty());
  // Asked for by name: three world sizes, two launchers, a control, and without communication.
  CHECK(listed({"--stages", "05", "--launchers", "torchrun,mpirun"}).size() == 6 + 1 + 2);
  const Measured report = bench.measure(
      {"--models", "T", "--world-sizes", "1,2", "--launchers", "spawn,torchrun", "--steps", "10"});
  CHECK(report.run("05_multinode").at("no_comm_step_ms").is_null());
  CHECK(contains(report.err, "Not run: 05_multinode at other world sizes"));
}

TEST_CASE("where launchers are named the accelerator is there once, compared with main.cpp",
          "[bench]") {
  FakeBench bench;
  bench.install("bin/04_ddp_launcher_accelerated", kFakeStage);
  bench.install("path/torchrun", kFakeTorchrun);
  const Measured report = bench.measure({"--models", "T", "--world-sizes", "1,2", "--launchers",
                                         "spawn,torchrun", "--repetitions", "3", "--steps", "10"});
  CHECK(report.run("04_ddp_launcher", "accelerated").at("world_size") == 2);
  CHECK(contains(report.err, "Not run: 04_ddp_launcher_accelerated at other world sizes"));
  std::map<std::string, std::string> main_of;
  for (const json& comparison : report.scaling.at("comparisons")) {
    if (comparison.at("kind") == "variant") {
      main_of[comparison.at("a")] = comparison.at("b");
      CHECK(comparison.at("pairs") == 3);
    }
  }
  CHECK(main_of == std::map<std::string, std::string>{
                       {"T/weak/04_ddp_launcher_accelerated/torchrun/shm/ranks:2",
                        "T/weak/04_ddp_launcher/torchrun/shm/ranks:2"},
                       {"T/weak/03_ddp_spawn_by_hand/spawn/shm/ranks:1",
                        "T/weak/03_ddp_spawn/spawn/shm/ranks:1"},
                       {"T/weak/03_ddp_spawn_by_hand/spawn/shm/ranks:2",
                        "T/weak/03_ddp_spawn/spawn/shm/ranks:2"}});
}

/// All programs that a default run looks for, and launchers.
void install_all(const FakeBench& bench) {
  for (const std::string name :
       {"02_data_parallel_mirrored", "04_ddp_launcher_accelerated", "05_multinode"}) {
    bench.install("bin/" + name, kFakeStage);
  }
  bench.install("path/torchrun", kFakeTorchrun);
  bench.install("path/mpirun", kFakeMpirun);
}

TEST_CASE("by default what answers a question is timed, and the rest only checked", "[bench]") {
  FakeBench bench;
  install_all(bench);
  bench.install("peers/install.sh", kFakeInstall);
  Words arguments = {"--world-sizes", "1,2"};
  SECTION("names") {
    arguments.push_back("--benchmark_list_tests");
    Words names = bench.print(arguments);
    CHECK(count(names, {"T/"}) + count(names, {"digits/"}) + count(names, {"M/"}) ==
          std::ssize(names));
    CHECK(count(names, {"M/weak/pytorch_tuned/spawn/gloo/ranks:2/"}) == 1);
    CHECK(count(names, {"pytorch"}) == 1);
    CHECK(count(names, {"M/weak/01_single_gpu/threads:2/ranks:1/"}) == 1);
    CHECK(count(names, {"/threads:"}) == 1);
    CHECK(count(names, {"M/weak/02_data_parallel/ranks:2/"}) == 1);
    std::erase_if(names, [](const std::string& name) { return !name.starts_with("T/"); });
    std::sort(names.begin(), names.end());
    Words expected;
    for (const std::string name :
         {"01_single_gpu/ranks:1", "01_single_gpu/ranks:1/control",
          "03_ddp_spawn/spawn/shm/ranks:1", "03_ddp_spawn/spawn/shm/ranks:2",
          "03_ddp_spawn/spawn/shm/ranks:2/control",
          "03_ddp_spawn/spawn/shm/ranks:2/no_communication"}) {
      expected.push_back("T/weak/" + name + "/iterations:1/manual_time");
    }
    std::sort(expected.begin(), expected.end());
    CHECK(names == expected);
  }
  SECTION("commands") {
    arguments.push_back("--dry-run");
    const Words commands = bench.print(arguments);
    const auto section = [&](const std::string& title) {
      const auto starts = [](const std::string& text) {
        return [text](const std::string& line) { return line.starts_with(text); };
      };
      const auto begin = std::find_if(commands.begin(), commands.end(), starts(title));
      return Words(begin, std::find_if(begin + 1, commands.end(), starts("#")));
    };
    const Words parity = section("# parity");
    const std::map<std::string, int> only_checked = {{"/02_data_parallel_mirrored ", 3},
                                                     {"/03_ddp_spawn_by_hand ", 3},
                                                     {"/04_ddp_launcher ", 2},  // mpirun, torchrun
                                                     {"/04_ddp_launcher_accelerated ", 1},
                                                     {"/05_multinode ", 1}};
    for (const auto& [program, times] : only_checked) {
      CAPTURE(program);
      CHECK(count(parity, {program}) == times);
      CHECK(count(commands, {program}) == times);
    }
    CHECK(count(parity, {"/torchrun "}) == 1);  // its start takes seconds
    const Words often = section("# timed, 9 times");
    CHECK(count(often, {"/01_single_gpu "}) == 3 * 2);
    CHECK(count(often, {"/03_ddp_spawn "}) == 3 * 4);
    const Words seldom = section("# timed, 6 times");
    CHECK(count(seldom, {"/02_data_parallel "}) == 1);  // of the largest model
    CHECK(count(seldom, {"/01_single_gpu ", " --threads 2 "}) == 1);
    CHECK(count(seldom, {"/pytorch.py "}) == 1);
    CHECK(count(commands, {"bench --full measures them"}) == 1);
  }
  SECTION("--quick: once each, without what only explains") {
    arguments.insert(arguments.end(), {"--quick", "--dry-run", "--models", "T"});
    const Words commands = bench.print(arguments);
    CHECK(count(commands, {"# timed, 1 times"}) == 1);
    for (const char* absent : {"--threads", "pytorch", "--no-communication", "--nprocs 1"}) {
      CHECK(count(commands, {absent}) == 0);
    }
  }
  SECTION("--full: launchers are timed too, and models of many widths and batches") {
    arguments.insert(arguments.end(), {"--full", "--dry-run"});
    const Words commands = bench.print(arguments);
    CHECK(count(commands, {"# timed, 15 times"}) == 1);
    for (const char* launcher : {"/mpirun ", "/torchrun "}) {
      CHECK(count(commands, {launcher, "/04_ddp_launcher ", "1024,1024,1024,1024"}) ==
            2);  // parity, and timed
      CHECK(count(commands, {launcher, "/04_ddp_launcher "}) == 2);
    }
    CHECK(count(commands, {"/03_ddp_spawn_by_hand "}) == 4 + 1);
    CHECK(count(commands, {"/02_data_parallel "}) == 2 * 4);
    CHECK(count(commands, {"/pytorch.py "}) == 2 * 4);
    // Parity, and timed; never a control or without communication.
    CHECK(count(commands, {"/03_ddp_spawn ", " --layers 64,1024,1024,10 "}) == 2);
    CHECK(count(commands, {"/01_single_gpu ", " --global-batch 512 --layers 64,128,128,10 "}) == 1);
    CHECK(count(commands, {"bench --full measures them"}) == 0);
  }
}

TEST_CASE("what is seldom repeated has its pairs all the same", "[bench]") {
  const FakeBench bench;
  install_all(bench);
  const Measured report = bench.measure({"--models", "T", "--world-sizes", "1,2", "--steps", "10"});
  CHECK(report.scaling.at("settings").at("repetitions") == 9);
  std::map<std::string, int> pairs;
  for (const json& comparison : report.scaling.at("comparisons")) {
    if (comparison.at("kind") == "baseline") {
      pairs[comparison.at("a")] = comparison.at("pairs");
    }
  }
  CHECK(pairs == std::map<std::string, int>{{"T/weak/01_single_gpu/threads:2/ranks:1", 6},
                                            {"T/weak/02_data_parallel/ranks:2", 6},
                                            {"T/weak/03_ddp_spawn/spawn/shm/ranks:1", 9},
                                            {"T/weak/03_ddp_spawn/spawn/shm/ranks:2", 9}});
  const json& benchmarks = report.document.at("benchmarks");
  std::map<std::string, int> repetitions;
  for (const json& entry : benchmarks) {
    CHECK_FALSE(entry.contains("error_occurred"));
    if (entry.at("run_type") == "iteration") {
      CHECK(entry.at("repetition_index") == repetitions[entry.at("name")]++);
    }
  }
  CHECK(repetitions.at("T/weak/02_data_parallel/ranks:2/iterations:1/manual_time") == 6);
  CHECK(repetitions.at("T/weak/01_single_gpu/ranks:1/iterations:1/manual_time") == 9);

  // All begin with the first block.
  Words blocks;
  const json replicas = report.run("02_data_parallel");
  for (const json& launch : replicas.at("repetitions")) {
    blocks.push_back(launch.is_null() ? "-" : "x");
  }
  CHECK(blocks == Words{"x", "x", "x", "x", "x", "x", "-", "-", "-"});

  // As many samples a step as the ranks have together.
  const json& runs = report.scaling.at("runs");
  const auto threads = std::find_if(runs.begin(), runs.end(), [](const json& run) {
    return contains(run.at("name"), "/threads:2/");
  });
  REQUIRE(threads != runs.end());
  CHECK(threads->at("global_batch") == 64);
  CHECK(threads->at("world_size") == 1);
  CHECK(threads->at("threads") == 2);
  CHECK(
      is_near(threads->at("efficiency"), threads->at("relative_speedup").get<double>() / 2, 1e-6));
}

TEST_CASE("weights that are only compared are in the report, and can fail it", "[bench]") {
  const FakeBench bench;
  install_all(bench);
  const bool fails = GENERATE(false, true);
  if (fails) {
    bench.behave("05_multinode", "moved=0.6");
  }
  const Measured report = bench.measure(
      {"--models", "T", "--world-sizes", "1,2", "--steps", "10", "--quick"}, fails ? 1 : 0);
  std::map<std::string, json> same_step_as;
  for (const json& check : report.scaling.at("parity_only")) {
    const bool is_bad = fails && contains(check.at("name"), "05_multinode");
    CHECK(check.at("ok") == !is_bad);
    CHECK(check.at("moved") == (is_bad ? 0.6 : 0.5));
    CHECK(check.at("reference_moved") == 0.5);
    CHECK(check.at("error").is_null() == !is_bad);
    same_step_as[check.at("name")] = check.at("same_step_as");
  }
  const std::string spawn = "T/weak/03_ddp_spawn/spawn/shm/ranks:2";
  CHECK(same_step_as == std::map<std::string, json>{
                            {"T/weak/02_data_parallel_mirrored/ranks:2", nullptr},
                            {"T/weak/03_ddp_spawn_by_hand/spawn/shm/ranks:2", nullptr},
                            {"T/weak/04_ddp_launcher/torchrun/shm/ranks:2", spawn},
                            {"T/weak/04_ddp_launcher/mpirun/shm/ranks:2", spawn},
                            {"T/weak/04_ddp_launcher_accelerated/mpirun/shm/ranks:2", spawn},
                            {"T/weak/05_multinode/mpirun/shm/ranks:2", spawn}});
  CHECK(contains(report.err, "05_multinode/mpirun/shm/ranks:2: parity: moved 0.6") == fails);
}

TEST_CASE("repetitions keep to the budget, but never below what an interval needs", "[bench]") {
  const FakeBench bench;
  const auto measured = [&](const std::string& budget, const Words& more) {
    Words arguments = small_and({"--stages", "03_ddp_spawn", "--budget", budget});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Measured report = bench.measure(arguments);
    return std::pair(report.scaling.at("settings").at("repetitions").get<int>(),
                     contains(report.err, "more than the 0.001 s of --budget"));
  };
  CHECK(measured("1000", {}) == std::pair(9, false));
  CHECK(measured("0.001", {}) == std::pair(6, true));
  CHECK(measured("0.001", {"--repetitions", "7"}) == std::pair(7, true));
}

TEST_CASE("whatever is measured has controls of its kind, or no verdict", "[bench]") {
  FakeBench bench;
  bench.install("path/torchrun", kFakeTorchrun);
  struct Case {
    Words arguments;
    std::string control;  // of several processes
  };
  const Case chosen = GENERATE(values<Case>({
      {{"--stages", "03_ddp_spawn_by_hand", "--launchers", "spawn"},
       "T/weak/03_ddp_spawn_by_hand/spawn/shm/ranks:2/control"},
      {{"--stages", "04_ddp_launcher", "--launchers", "torchrun"},
       "T/weak/04_ddp_launcher/torchrun/shm/ranks:2/control"},
      {{"--stages", "03,04", "--launchers", "spawn,torchrun"},
       "T/weak/03_ddp_spawn/spawn/shm/ranks:2/control"},
      {{"--quick", "--launchers", "spawn"}, ""},
  }));
  CAPTURE(chosen.arguments);
  Words arguments = {"--models", "T", "--world-sizes", "2", "--steps", "20", "--repetitions", "6"};
  arguments.insert(arguments.end(), chosen.arguments.begin(), chosen.arguments.end());
  const Measured report = bench.measure(arguments);
  Words controls;
  for (const json& run : report.scaling.at("runs")) {
    if (run.at("kind") == "control" && run.at("world_size") == 2) {
      controls.push_back(run.at("name"));
    }
  }
  const bool controlled = !chosen.control.empty();
  CHECK(controls == (controlled ? Words{chosen.control} : Words()));
  // The made-up times are exact, so every control holds.
  const json& comparisons = report.scaling.at("comparisons");
  CHECK(!comparisons.empty());
  CHECK(std::any_of(comparisons.begin(), comparisons.end(), [](const json& comparison) {
          return comparison.at("kind") != "control" && !comparison.at("verdict").is_null();
        }) == controlled);
  CHECK(contains(report.err, "so the verdicts stand") == controlled);
  CHECK(contains(report.err, "No verdict without an A/A control") == !controlled);
}

TEST_CASE("what cannot be printed is an error", "[bench]") {
  FakeBench bench;
  for (const char* where : {">/dev/full", ">&-"}) {
    for (const Words& arguments :
         {small_and({"--repetitions", "1"}), small_and({"--repetitions", "1", "--json"}),
          small_and({"--dry-run"}), small_and({"--benchmark_list_tests"}), Words{"--help"},
          Words{"--version"}}) {
      CAPTURE(where, arguments);
      const auto result = bench.run(arguments, where);
      CHECK(result.exit_code == 1);
      CHECK(contains(result.err, "error: cannot write to standard output\n"));
    }
  }
}

TEST_CASE("streams that are closed stay closed for the stages too", "[bench]") {
  FakeBench bench;
  // Nothing of bench's is open in a stage but the streams that it gave it; sh opens the script.
  bench.behave("03_ddp_spawn", "ls -l /proc/$$/fd > \"$0.fds\"");
  const auto result =
      bench.run(small_and({"--repetitions", "1", "--json", "report.json"}), "<&- >&- 2>&-");
  CHECK(result.exit_code == 1);
  check_report(json::parse(read_file(bench.root() / "report.json")));
  const std::string fds = read_file(bench.bin() / "03_ddp_spawn.fds");
  INFO(fds);
  CHECK(contains(fds, " 0 -> /dev/null"));
  CHECK(contains(fds, "/stdout\n"));
  CHECK(contains(fds, "/stderr\n"));
}

TEST_CASE("another MPI's mpirun is left out, and stage 05 runs under torchrun", "[bench]") {
  FakeBench bench;
  bench.install("bin/05_multinode", kFakeStage);
  bench.install("path/torchrun", kFakeTorchrun);
  bench.install("path/mpirun", "#!/bin/sh\necho HYDRA build details\n");
  const Measured report = bench.measure({"--models", "T", "--world-sizes", "1,2", "--repetitions",
                                         "1", "--launchers", "spawn,torchrun,mpirun"});
  CHECK(report.run("05_multinode").at("launcher") == "torchrun");
  CHECK(contains(report.scaling.at("not_run").dump(), "mpirun is not Open MPI's (it says "));
}

TEST_CASE("a launcher that was interrupted is not judged by its silence", "[bench]") {
  FakeBench bench;
  bench.install("path/mpirun", "#!/bin/sh\nkill -INT $PPID\nsleep 30\n");
  const Measured report =
      bench.measure({"--models", "T", "--world-sizes", "2", "--launchers", "spawn,mpirun"}, 1);
  CHECK(report.scaling.at("partial") == true);
  CHECK_FALSE(contains(report.document.dump(), "Open MPI"));
  const json& mpirun = report.scaling.at("software").at("launchers").at("mpirun");
  CHECK(mpirun.at("path") == (bench.root() / "path" / "mpirun").string());
  CHECK(mpirun.at("version").is_null());
}

TEST_CASE("run.sh adds its files to measurements only", "[bench]") {
  FakeBench bench;
  bench.install("bench/run.sh", read_file(std::string(DDP_SOURCE_DIR) + "/bench/run.sh"));
  bench.install("tools/setup.sh", "#!/bin/sh\necho setting up\n");
  bench.install("build/bin/bench", "#!/bin/sh\necho \"$*\"\n");
  const auto added = [&](Words arguments) {
    arguments.insert(arguments.begin(), (bench.root() / "bench" / "run.sh").string());
    const auto result = run_program(arguments);
    CHECK(result.exit_code == 0);
    CHECK(result.err == "setting up\n");
    return contains(result.out, "--json report.json --html report.html\n");
  };
  CHECK(added({}));
  CHECK(added({"--quick"}));
  CHECK(added({"--benchmark_format=json"}));  // that is about standard output
  for (const char* command : {"compare", "html", "predict"}) {
    CHECK_FALSE(added({command, "a.json", "b.json"}));
  }
  for (const char* option :
       {"--json", "--html=x", "--dry-run", "--dry_run", "--help", "-h", "--version",
        "--benchmark_list_tests", "--benchmark_list_tests=true"}) {
    CHECK_FALSE(added({"--quick", option}));
  }
}

TEST_CASE("an option that stage 01 refuses is the user's mistake", "[bench]") {
  FakeBench bench;
  bench.behave("01_single_gpu", "echo 'error: --speedup graph: not available yet' >&2; exit 2");
  const auto result = bench.run(small_and({"--speedup", "graph"}));
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "--speedup graph: not available yet"));
}

}  // namespace
