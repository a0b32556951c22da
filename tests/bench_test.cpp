// Runs the bench program on stages that are made up: right ones, wrong ones, and broken ones.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "bench/report/micro_results.hpp"
#include "tests/catch.hpp"
#include "tests/support/fake_bench.hpp"

namespace {

namespace fs = std::filesystem;
using ddp::test::check_report;
using ddp::test::FakeBench;
using ddp::test::is_near;
using ddp::test::read_file;
using ddp::test::run_of;
using ddp::test::small_and;
using ddp::test::write_file;
using ddp::test::write_program;
using nlohmann::json;

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
  bench.install_torchrun();
  const auto result =
      bench.run({"--models", "T,digits", "--world-sizes", "1,2", "--launchers", "spawn,torchrun",
                 "--steps", "50", "--repetitions", "3", "--json"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(bench.is_clean());
  const json document = json::parse(result.out);  // the whole of standard output
  check_report(document);
  CHECK(document.at("ddp_scaling").at("partial") == false);
  // Stage 01, four programs at two world sizes, two controls, on two workloads.
  CHECK(document.at("ddp_scaling").at("runs").size() == 2 * (1 + 8 + 2));
  CHECK(document.at("ddp_scaling").at("comparisons").size() == 2 * (8 + 2));

  const json base = run_of(document, "01_single_gpu");
  CHECK(base.at("global_batch") == 32);
  CHECK(base.at("relative_speedup") == 1.0);
  CHECK(base.at("efficiency") == 1.0);
  CHECK(base.at("steps").get<int>() >= 50);
  CHECK(base.at("step_ms").at("n").get<int>() >= 3 * 50);
  CHECK(is_near(base.at("step_ms").at("median").get<double>(), 0.065, 0.05));
  CHECK(base.at("step_ms").at("p95").get<double>() < 0.1);  // no warm-up step among them
  CHECK(base.at("peak_rss_mib") == 100.5);
  CHECK(base.at("comm").at("bytes_per_step") == 0);
  CHECK(base.at("comm").at("alone_ms").is_null());

  json two_ranks;
  for (const json& run : document.at("ddp_scaling").at("runs")) {
    if (run.at("stage") == "03_ddp_spawn" && run.at("world_size") == 2) {
      two_ranks = run;
    }
  }
  CHECK(two_ranks.at("global_batch") == 64);
  // Rank 1 is twice as slow as rank 0, and the slowest counts.
  CHECK(is_near(two_ranks.at("step_ms").at("median").get<double>(), 2 * 1.3 * 0.2, 0.05));
  const json& phases = two_ranks.at("phases_ms");
  double sum_ms = 0;
  for (const auto& [name, phase_ms] : phases.items()) {
    sum_ms += phase_ms.get<double>();
  }
  CHECK(is_near(sum_ms, two_ranks.at("step_ms").at("median").get<double>(), 0.03));
  CHECK(is_near(phases.at("exposed_comm").get<double>(), 0.14, 1e-6));
  CHECK(is_near(two_ranks.at("no_comm_step_ms").get<double>(), 2 * 1.3 * 0.07, 0.05));
  CHECK(is_near(two_ranks.at("comm").at("exposed_by_difference_ms").get<double>(), 2 * 1.3 * 0.13,
                0.05));
  CHECK(two_ranks.at("slowest_rank").at("rank") == 1);
  CHECK(two_ranks.at("slowest_rank").at("share_of_steps") == 1.0);
  const double speedup = two_ranks.at("relative_speedup").get<double>();
  CHECK(is_near(two_ranks.at("efficiency").get<double>(), speedup / 2, 1e-6));

  for (const json& comparison : document.at("ddp_scaling").at("comparisons")) {
    CHECK(comparison.at("pairs") == 3);
    CHECK(comparison.at("ci95").size() == 2);
  }
  // Google Benchmark's part: three repetitions of each, those without communication of the three
  // programs with two ranks included, under names that stay the same between reports.
  const json& benchmarks = document.at("benchmarks");
  CHECK(std::count_if(benchmarks.begin(), benchmarks.end(), [](const json& entry) {
          return entry.at("run_type") == "iteration";
        }) == 3 * 2 * (1 + 8 + 2 + 3));
  CHECK(std::any_of(benchmarks.begin(), benchmarks.end(), [](const json& entry) {
    return entry.at("name") == "T/weak/01_single_gpu/ranks:1/iterations:1/manual_time";
  }));
  CHECK(result.err.find("What to conclude") != std::string::npos);
  CHECK(result.err.find("waits for the all-reduce of 84 bytes") != std::string::npos);
  CHECK(bench.is_clean());
}

TEST_CASE("strong scaling keeps the batch over all ranks", "[bench]") {
  FakeBench bench;
  const auto result = bench.run({"--models", "T", "--world-sizes", "1,2,4", "--launchers", "spawn",
                                 "--scaling", "strong", "--steps", "10", "--stages", "03_ddp_spawn",
                                 "--repetitions", "1", "--json"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const json document = json::parse(result.out);
  check_report(document);
  CHECK(document.at("ddp_scaling").at("runs").size() == 1 + 3 + 2);
  for (const json& run : document.at("ddp_scaling").at("runs")) {
    CHECK(run.at("scaling") == "strong");
    CHECK(run.at("global_batch") == 128);
  }
  for (const json& comparison : document.at("ddp_scaling").at("comparisons")) {
    CHECK(comparison.at("pairs") == 1);
    CHECK(comparison.at("ci95").is_null());  // one pair is no interval
  }
}

TEST_CASE("a configuration that fails parity gets an error and no speed", "[bench]") {
  FakeBench bench;
  bench.behave("03_ddp_spawn", "moved=0.5001");
  const auto result = bench.run(small_and({"--json"}));
  INFO(result.err);
  CHECK(result.exit_code == 1);
  const json document = json::parse(result.out);
  check_report(document);
  const json run = run_of(document, "03_ddp_spawn");
  CHECK(run.at("parity").at("ok") == false);
  CHECK(run.at("parity").at("moved") == 0.5001);
  CHECK(run.at("parity").at("reference_moved") == 0.5);
  CHECK(run.at("error").get<std::string>().find("parity") != std::string::npos);
  CHECK(run.at("step_ms").at("median").is_null());
  CHECK(run.at("efficiency").is_null());
  // The others are measured all the same.
  CHECK(run_of(document, "03_ddp_spawn", "by_hand").at("error").is_null());
  CHECK(result.err.find("FAILED") != std::string::npos);
  for (const json& entry : document.at("benchmarks")) {
    const bool is_failed =
        entry.at("name").get<std::string>().find("/03_ddp_spawn/") != std::string::npos;
    CHECK(entry.value("error_occurred", false) == is_failed);
  }
  for (const json& comparison : document.at("ddp_scaling").at("comparisons")) {
    CHECK(comparison.at("a").get<std::string>().find("/03_ddp_spawn/") == std::string::npos);
  }
}

TEST_CASE("weights that are not numbers never pass parity", "[bench]") {
  FakeBench bench;
  SECTION("in one stage") {
    bench.behave("03_ddp_spawn", "moved=null");
    const auto result = bench.run(small_and({"--json"}));
    CHECK(result.exit_code == 1);
    const json run = run_of(json::parse(result.out), "03_ddp_spawn");
    CHECK(run.at("parity").at("ok") == false);
    CHECK(run.at("parity").at("moved").is_null());
    CHECK(run.at("samples_per_second").is_null());
  }
  SECTION("in the reference: then nothing has a speed") {
    bench.behave("01_single_gpu", "moved=null");
    const auto result = bench.run(small_and({"--json"}));
    CHECK(result.exit_code == 1);
    const json document = json::parse(result.out);
    check_report(document);
    for (const json& run : document.at("ddp_scaling").at("runs")) {
      CHECK(run.at("parity").at("ok") == false);
      CHECK(run.at("samples_per_second").is_null());
    }
  }
}

TEST_CASE("a stage that breaks is an error of its configuration only", "[bench]") {
  FakeBench bench;
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
  bench.behave("03_ddp_spawn", broken.behaviour);
  const auto result =
      bench.run(small_and({"--repetitions", "1", "--timeout", "1", "--json", "report.json"}));
  INFO(result.err);
  CHECK(result.exit_code == 1);
  const json document = json::parse(read_file(bench.root() / "report.json"));
  check_report(document);
  const json run = run_of(document, "03_ddp_spawn");
  CHECK(run.at("error").get<std::string>().find(broken.error) != std::string::npos);
  CHECK(run_of(document, "01_single_gpu").at("error").is_null());
  CHECK(result.out.find("What to conclude") != std::string::npos);  // the table, with --json FILE
  CHECK(result.seconds < 20);
  CHECK(bench.is_clean());
}

TEST_CASE("a stage that breaks while it is timed loses its speed", "[bench]") {
  FakeBench bench;
  // The first call is the parity run.
  const std::string first_bad_call = GENERATE("2", "3", "4");
  CAPTURE(first_bad_call);
  bench.behave("03_ddp_spawn", "[ $(wc -l < \"$0.calls\") -lt " + first_bad_call + " ] || exit 1");
  const auto result = bench.run(small_and({"--json"}));
  CHECK(result.exit_code == 1);
  const json document = json::parse(result.out);
  check_report(document);
  const json run = run_of(document, "03_ddp_spawn");
  CHECK(run.at("parity").at("ok") == true);
  CHECK(run.at("error") == "exit code 1");
}

TEST_CASE("a stage that asks to be tried again is", "[bench]") {
  FakeBench bench;
  bench.behave("03_ddp_spawn", "[ $(wc -l < \"$0.calls\") -gt 2 ] || exit 75");
  const auto result = bench.run(small_and({"--json"}));
  CHECK(result.exit_code == 0);
  CHECK(run_of(json::parse(result.out), "03_ddp_spawn").at("error").is_null());
}

TEST_CASE("an interrupt still leaves one valid document", "[bench]") {
  FakeBench bench;
  // bench is this script's parent.
  bench.behave("03_ddp_spawn",
               "[ $(wc -l < \"$0.calls\") -lt 2 ] || { kill -INT $PPID; sleep 30; }");
  const auto result = bench.run(small_and({"--json"}));
  INFO(result.err);
  CHECK(result.exit_code == 1);
  CHECK(result.seconds < 20);
  const json document = json::parse(result.out);
  check_report(document);
  CHECK(document.at("ddp_scaling").at("partial") == true);
  CHECK(bench.is_clean());
}

TEST_CASE("bench tells the stages who they are by nothing but their options", "[bench]") {
  FakeBench bench;
  bench.behave("03_ddp_spawn", "[ -z \"$RANK$OMPI_COMM_WORLD_RANK$SLURM_STEP_ID\" ] || exit 1");
  setenv("RANK", "1", 1);
  setenv("OMPI_COMM_WORLD_RANK", "1", 1);
  setenv("SLURM_STEP_ID", "0", 1);
  const auto result = bench.run(small_and({"--repetitions", "1", "--json"}));
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_ID"}) {
    unsetenv(name);
  }
  INFO(result.err);
  CHECK(result.exit_code == 0);
}

TEST_CASE("launchers and programs that are missing are named", "[bench]") {
  FakeBench bench;
  fs::remove(bench.bin() / "03_ddp_spawn_by_hand");
  const auto result = bench.run({"--models", "T", "--world-sizes", "1", "--steps", "10",
                                 "--repetitions", "1", "--stages", "01,03", "--json"});
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.err.find("Not run: torchrun") != std::string::npos);
  CHECK(result.err.find("Not run: 03_ddp_spawn_by_hand") != std::string::npos);
  const json document = json::parse(result.out);
  CHECK(document.at("ddp_scaling").at("not_run").size() >= 2);
  CHECK(document.at("ddp_scaling").at("software").at("launchers").at("torchrun").is_null());
}

TEST_CASE("--dry-run prints the commands and runs nothing", "[bench]") {
  FakeBench bench;
  bench.install_torchrun();
  const auto result = bench.run(
      {"--models", "T", "--world_sizes", "1,2", "--launchers", "spawn,torchrun", "--dry_run"});
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK(result.out.find("/03_ddp_spawn 2 2 --global-batch 64 --layers 20,1") != std::string::npos);
  CHECK(result.out.find("/torchrun --standalone --nproc_per_node=2 --no-python ") !=
        std::string::npos);
  CHECK_FALSE(fs::exists(bench.bin() / "01_single_gpu.calls"));
}

TEST_CASE("buckets, compression and sharding are configurations of what communicates", "[bench]") {
  FakeBench bench;
  const auto result =
      bench.run({"--models", "T", "--world-sizes", "1,2", "--launchers", "spawn", "--stages", "03",
                 "--bucket-mib", "0.25,25", "--gradient-compression", "none,bf16",
                 "--shard_optimizer", "no,yes", "--dry-run", "--quick"});
  INFO(result.out << result.err);
  CHECK(result.exit_code == 0);
  const std::string parity = result.out.substr(0, result.out.find("# timed"));
  const auto runs = [&](const std::string& program, const std::string& options) {
    size_t count = 0;
    std::istringstream lines(parity);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("/" + program + " ") != std::string::npos &&
          line.find(options) != std::string::npos) {
        ++count;
      }
    }
    return count;
  };
  CHECK(runs("03_ddp_spawn", "") == 8);
  CHECK(runs("03_ddp_spawn", "--bucket-mib 0.25 ") == 4);
  CHECK(runs("03_ddp_spawn", "--bucket-mib") == 4);
  CHECK(runs("03_ddp_spawn", "--gradient-compression bf16 ") == 4);
  CHECK(runs("03_ddp_spawn", "--shard-optimizer ") == 4);
  CHECK(runs("03_ddp_spawn", "--bucket-mib 0.25 --gradient-compression bf16 --shard-optimizer ") ==
        1);
  CHECK(runs("03_ddp_spawn_by_hand", "") == 1);  // it sends gradients as they are
  CHECK(runs("01_single_gpu", "--bucket-mib") == 0);
}

TEST_CASE("how gradients travelled is in the name and in the fields", "[bench]") {
  FakeBench bench;
  const auto result = bench.run(
      small_and({"--stages", "03_ddp_spawn", "--bucket-mib", "0.25", "--gradient-compression",
                 "fp16", "--shard-optimizer", "no,yes", "--quick", "--json"}));
  INFO(result.err);
  CHECK(result.exit_code == 0);
  const json document = json::parse(result.out);
  check_report(document);
  size_t sharded = 0;
  for (const json& run : document.at("ddp_scaling").at("runs")) {
    const bool travels = run.at("world_size") == 2;
    const bool is_sharded = run.at("shard_optimizer").get<bool>();
    const std::string name = run.at("name");
    CHECK(run.at("bucket_mib") == (travels ? 0.25 : 25.0));
    CHECK(run.at("gradient_compression") == (travels ? "fp16" : "none"));
    CHECK((name.find("/bucket:0.25/fp16" + std::string(is_sharded ? "/sharded" : "") +
                     "/ranks:2") != std::string::npos) == travels);
    sharded += is_sharded ? 1 : 0;
  }
  CHECK(sharded == 1);
}

TEST_CASE("the filter decides what is timed, stage 01 stays the reference", "[bench]") {
  FakeBench bench;
  const auto result = bench.run(small_and({"--benchmark_filter=by_hand", "--json"}));
  INFO(result.err);
  CHECK(result.exit_code == 0);
  const json document = json::parse(result.out);
  check_report(document);
  CHECK(document.at("ddp_scaling").at("runs").size() == 2);  // and its control
  CHECK(document.at("ddp_scaling").at("runs").at(0).at("relative_speedup").is_null());
  CHECK(document.at("ddp_scaling").at("runs").at(0).at("parity").at("reference_moved") == 0.5);
}

TEST_CASE("the names are listed without running anything", "[bench]") {
  FakeBench bench;
  const auto result = bench.run(small_and({"--benchmark_list_tests=true"}));
  CHECK(result.exit_code == 0);
  CHECK(result.out.find("T/weak/03_ddp_spawn/spawn/shm/ranks:2/iterations:1/manual_time\n") !=
        std::string::npos);
  CHECK_FALSE(fs::exists(bench.bin() / "01_single_gpu.calls"));
}

TEST_CASE("the page and the document say the same", "[bench]") {
  FakeBench bench;
  const auto both = bench.run(small_and({"--json", "--html", "page.html"}));
  INFO(both.err);
  REQUIRE(both.exit_code == 0);
  const std::string page = read_file(bench.root() / "page.html");
  const std::string begin = "<script type=\"application/json\" id=\"document\">";
  const std::size_t from = page.find(begin) + begin.size();
  CHECK(json::parse(page.substr(from, page.find("</script>", from) - from)) ==
        json::parse(both.out));

  const auto page_alone = bench.run(small_and({"--html", "alone.html"}));
  CHECK(page_alone.exit_code == 0);
  CHECK(page_alone.out.find("What to conclude") != std::string::npos);
  CHECK(read_file(bench.root() / "alone.html").find("</html>") != std::string::npos);
}

TEST_CASE("bench refuses what it does not understand", "[bench]") {
  FakeBench bench;
  struct Case {
    std::vector<std::string> arguments;
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
      {{"--launchers", "srun"}, "--launchers srun"},
      {{"--backends", "mpi", "--launchers", "spawn"},
       "--backends mpi: no stage is started by mpirun"},
      {{"--backends", "carrier-pigeon"}, "carrier-pigeon"},
      {{"--world-sizes", "0"}, "--world-sizes"},
      {{"--world-sizes", "two"}, "two"},
      {{"--models", "Q"}, "\"Q\""},
      {{"--stages", "06"}, "\"06\""},
      {{"--stages", "05_multinode"}, "05_multinode"},
      {{"--launchers", "torchrun"}, "torchrun"},
      {{"--scaling", "sideways"}, "sideways"},
      {{"--steps", "0"}, "--steps"},
      {{"--repetitions", "-1"}, "--repetitions"},
      {{"--repetitions", "010x"}, "--repetitions: got \"010x\""},
      {{"--budget", "nan"}, "--budget: got \"nan\", expected a finite number > 0"},
      {{"--budget", "inf"}, "--budget: got \"inf\", expected a finite number > 0"},
      {{"--budget", "0"}, "--budget: got \"0\""},
      {{"--timeout", "nan"}, "--timeout: got \"nan\""},
      {{"--bucket-mib", "4,nan"}, "--bucket-mib: got \"nan\""},
      {{"--bucket-mib", "inf"}, "--bucket-mib: got \"inf\""},
      {{"--seed", "-1"}, "--seed: got \"-1\""},
      {{"--seed", "18446744073709551616"}, "--seed: got \"18446744073709551616\""},
      {{"--steps", "1e3"}, "--steps: got \"1e3\""},
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
      {{"--benchmark_min_time=abc"}, "--benchmark_min_time: got \"abc\""},
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
    CHECK(result.err.find(bad.error) != std::string::npos);
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    CHECK(result.seconds < 5);
  }
  CHECK_FALSE(fs::exists(bench.bin() / "01_single_gpu.calls"));
}

TEST_CASE("a name that is given twice is one", "[bench]") {
  FakeBench bench;
  const std::vector<std::pair<std::string, std::string>> options = {
      {"--stages", "03,03"},
      {"--launchers", "spawn,spawn"},
      {"--backends", "shm,shm"},
      {"--models", "S,s"},
      {"--world-sizes", "2,2"},
      {"--scaling", "weak,weak"},
      {"--speedup", "none,none"},
      {"--bucket-mib", "4,4.0"},
      {"--gradient-compression", "bf16,bf16"},
      {"--shard-optimizer", "yes,yes"},
  };
  for (const auto& [option, twice] : options) {
    CAPTURE(option);
    const auto planned = [&](const std::string& value) {
      return bench.run({"--stages=03", "--launchers=spawn", "--world-sizes=2", "--models=T",
                        "--benchmark_list_tests", option, value});
    };
    // Options that take lists add up, so the one that is tested is there twice or thrice.
    const auto once = planned(twice.substr(0, twice.find(',')));
    INFO(once.err);
    CHECK(once.exit_code == 0);
    CHECK(once.out == planned(twice).out);
    std::istringstream lines(once.out);
    std::set<std::string> names;
    size_t count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
      names.insert(line);
    }
    CHECK(count >= 3);
    CHECK(names.size() == count);
  }
}

TEST_CASE("by default stage 05 is there once, on two ranks of the first launcher", "[bench]") {
  FakeBench bench;
  write_program(bench.bin() / "05_multinode", ddp::test::kFakeStage);
  write_program(bench.root() / "path" / "mpirun", "#!/bin/sh\n");
  const auto listed = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--models", "T", "--world-sizes", "1,2,4", "--benchmark_list_tests"});
    const auto result = bench.run(more);
    INFO(result.err);
    CHECK(result.exit_code == 0);
    std::vector<std::string> names;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("05_multinode") != std::string::npos) {
        names.push_back(line.substr(0, line.find("/iterations")));
      }
    }
    return names;
  };
  using Names = std::vector<std::string>;
  CHECK(listed({}) == Names{"T/weak/05_multinode/mpirun/shm/ranks:2"});
  bench.install_torchrun();
  CHECK(listed({}) == Names{"T/weak/05_multinode/torchrun/shm/ranks:2"});
  CHECK(listed({"--quick"}) == Names{"T/weak/05_multinode/torchrun/shm/ranks:4"});
  CHECK(listed({"--launchers", "spawn"}).empty());
  CHECK(listed({"--stages", "01,03"}).empty());
  // Asked for by name: three world sizes, two launchers, a control, and without communication.
  CHECK(listed({"--stages", "05", "--launchers", "torchrun,mpirun"}).size() == 6 + 1 + 2);
  const auto result = bench.run({"--models", "T", "--world-sizes", "1,2", "--launchers",
                                 "spawn,torchrun", "--steps", "10", "--json"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const json document = json::parse(result.out);
  check_report(document);
  CHECK(run_of(document, "05_multinode").at("no_comm_step_ms").is_null());
  CHECK(result.err.find("Not run: 05_multinode at other world sizes") != std::string::npos);
}

/// Whether any ratio got a verdict, controls aside.
bool has_verdict(const json& document) {
  const json& comparisons = document.at("ddp_scaling").at("comparisons");
  CHECK(!comparisons.empty());
  return std::any_of(comparisons.begin(), comparisons.end(), [](const json& comparison) {
    return comparison.at("kind") != "control" && !comparison.at("verdict").is_null();
  });
}

TEST_CASE("whatever is measured has controls of its kind, or no verdict", "[bench]") {
  FakeBench bench;
  bench.install_torchrun();
  struct Case {
    std::vector<std::string> arguments;
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
  std::vector<std::string> arguments = {"--models",      "T", "--world-sizes", "2", "--steps", "20",
                                        "--repetitions", "3", "--json"};
  arguments.insert(arguments.end(), chosen.arguments.begin(), chosen.arguments.end());
  const auto result = bench.run(arguments);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const json document = json::parse(result.out);
  check_report(document);
  std::vector<std::string> controls;
  for (const json& run : document.at("ddp_scaling").at("runs")) {
    if (run.at("kind") == "control" && run.at("world_size") == 2) {
      controls.push_back(run.at("name"));
    }
  }
  if (chosen.control.empty()) {
    CHECK(controls.empty());
  } else {
    CHECK(controls == std::vector<std::string>{chosen.control});
  }
  // The made-up times are exact, so every control holds.
  CHECK(has_verdict(document) == !chosen.control.empty());
  CHECK((result.err.find("so the verdicts stand") != std::string::npos) == !chosen.control.empty());
  CHECK((result.err.find("No verdict without an A/A control") != std::string::npos) ==
        chosen.control.empty());
}

TEST_CASE("with --benchmark_format=json standard output is one document", "[bench]") {
  FakeBench bench;
  const auto result = bench.run(small_and(
      {"--benchmark_format=json", "--json", "report.json", "--benchmark_out=google.json"}));
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const json document = json::parse(result.out);
  check_report(document);
  CHECK(document == json::parse(read_file(bench.root() / "report.json")));
  CHECK(json::parse(read_file(bench.root() / "google.json")).at("benchmarks").size() ==
        document.at("benchmarks").size());
}

TEST_CASE("what cannot be printed is an error", "[bench]") {
  FakeBench bench;
  const std::vector<std::vector<std::string>> commands = {
      small_and({"--repetitions", "1"}),
      small_and({"--repetitions", "1", "--json"}),
      small_and({"--dry-run"}),
      small_and({"--benchmark_list_tests"}),
      {"--help"},
      {"--version"},
  };
  for (const char* where : {">/dev/full", ">&-"}) {
    for (const std::vector<std::string>& arguments : commands) {
      CAPTURE(where, arguments);
      const auto result = bench.run(arguments, where);
      CHECK(result.exit_code == 1);
      CHECK(result.err.find("error: cannot write to standard output\n") != std::string::npos);
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
  CHECK(fds.find(" 0 -> /dev/null") != std::string::npos);
  CHECK(fds.find("/stdout\n") != std::string::npos);
  CHECK(fds.find("/stderr\n") != std::string::npos);
}

TEST_CASE("a launcher that was interrupted is not judged by its silence", "[bench]") {
  FakeBench bench;
  write_program(bench.root() / "path" / "mpirun", "#!/bin/sh\nkill -INT $PPID\nsleep 30\n");
  const auto result =
      bench.run({"--models", "T", "--world-sizes", "2", "--launchers", "spawn,mpirun", "--json"});
  INFO(result.err);
  CHECK(result.exit_code == 1);
  const json document = json::parse(result.out);
  check_report(document);
  CHECK(document.at("ddp_scaling").at("partial") == true);
  CHECK(result.out.find("Open MPI") == std::string::npos);
  const json& mpirun = document.at("ddp_scaling").at("software").at("launchers").at("mpirun");
  CHECK(mpirun.at("path") == (bench.root() / "path" / "mpirun").string());
  CHECK(mpirun.at("version").is_null());
}

TEST_CASE("run.sh adds its files to measurements only", "[bench]") {
  FakeBench bench;
  for (const char* folder : {"bench", "tools", "build", "build/bin"}) {
    fs::create_directory(bench.root() / folder);
  }
  write_program(bench.root() / "bench" / "run.sh",
                read_file(std::string(DDP_SOURCE_DIR) + "/bench/run.sh"));
  write_program(bench.root() / "tools" / "setup.sh", "#!/bin/sh\necho setting up\n");
  write_program(bench.root() / "build" / "bin" / "bench", "#!/bin/sh\necho \"$*\"\n");
  const auto added = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), (bench.root() / "bench" / "run.sh").string());
    const auto result = ddp::test::run_program(arguments);
    CHECK(result.exit_code == 0);
    CHECK(result.err == "setting up\n");
    return result.out.find("--json report.json --html report.html\n") != std::string::npos;
  };
  CHECK(added({}));
  CHECK(added({"--quick"}));
  CHECK(added({"--benchmark_format=json"}));  // that is about standard output
  for (const char* command : {"compare", "merge", "html"}) {
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
  CHECK(result.err.find("--speedup graph: not available yet") != std::string::npos);
}

}  // namespace
