// Runs the bench program on stages that are made up: right ones, wrong ones, and broken ones.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/benchmark_json.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

#ifndef DDP_BIN_DIR
#error "expected DDP_BIN_DIR, the folder with the programs"
#endif

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// What a stage does with the options that bench gives it, with made-up step times. What
// NAME.behaviour next to it says is done last, so a test can change any of it.
constexpr const char* kFakeStage = R"sh(#!/bin/sh
name=$(basename "$0")
epochs=$1 global=32 ranks=${WORLD_SIZE:-1} size=1437 metrics= warmup=10
printf '%s\n' "$*" >> "$0.calls"
while [ $# -gt 0 ]; do
  case $1 in
    --metrics) metrics=$2; shift ;;
    --global-batch) global=$2; shift ;;
    --nprocs) ranks=$2; shift ;;
    --dataset-size) size=$2; shift ;;
  esac
  shift
done
case $name in 02_*) ranks=1 ;; esac
moved=0.5 step_ms=0.05 comm=0
[ "$ranks" = 1 ] || { step_ms=0.2; comm=0.14; }
first_step=$(date +%s)000
after() { :; }
[ ! -f "$0.behaviour" ] || . "$0.behaviour"
awk -v epochs="$epochs" -v global="$global" -v ranks="$ranks" -v size="$size" -v moved="$moved" \
    -v step_ms="$step_ms" -v comm="$comm" -v warmup="$warmup" -v first_step="$first_step" 'BEGIN {
  steps = epochs * int((size + global - 1) / global)
  for (s = 0; s < steps; ++s) for (r = 0; r < ranks; ++r) {
    t = step_ms * (1 + 0.1 * (s % 7)) * (r == 1 ? 2 : 1)
    if (s < warmup) t *= 100
    rest = (t - comm) / 4
    printf "{\"rank\":%d,\"epoch\":0,\"step\":%d,\"step_ms\":%.6f,\"data_ms\":%.6f,", r, s, t, rest
    printf "\"forward_ms\":%.6f,\"backward_ms\":%.6f,\"exposed_comm_ms\":%.6f,", rest, rest, comm
    printf "\"optimizer_ms\":%.6f,\"loss\":0.5}\n", rest
  }
  printf "{\"summary\":{\"backend\":\"gloo\",\"device\":\"cpu\",\"world_size\":%d,", ranks
  printf "\"global_batch\":%d,\"epochs\":%d,\"steps\":%d,", global, epochs, steps
  printf "\"warmup_steps\":%d,\"moved\":%s,\"bytes_per_step\":84,", warmup, moved
  printf "\"peak_rss_mib\":[100.5],\"startup_ms\":[300],\"first_step_unix_ms\":%s}}\n", first_step
}' > "$metrics"
after
)sh";

constexpr const char* kFakeTorchrun = R"sh(#!/bin/sh
# torchrun --standalone --nproc_per_node=N --no-python PROGRAM ARGUMENTS: starts it once, for all.
WORLD_SIZE=${2#*=}
export WORLD_SIZE
shift 3
exec "$@"
)sh";

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

void write_program(const fs::path& path, const std::string& text) {
  write_file(path, text);
  fs::permissions(path, fs::perms::owner_all);
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// A folder with made-up stages, and what a test needs to run bench on them.
class Bench {
 public:
  Bench() {
    std::string pattern = (fs::temp_directory_path() / "ddp-bench-test-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    root_ = pattern;
    for (const char* folder : {"bin", "path", "tmp"}) {
      fs::create_directory(root_ / folder);
    }
    for (const char* name : {"01_single_gpu", "02_data_parallel", "03_ddp_spawn",
                             "03_ddp_spawn_by_hand", "04_ddp_launcher"}) {
      write_program(bin() / name, kFakeStage);
    }
  }
  ~Bench() {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  fs::path bin() const { return root_ / "bin"; }
  fs::path root() const { return root_; }

  void behave(const std::string& stage, const std::string& script) {
    write_file(bin() / (stage + ".behaviour"), script + "\n");
  }
  void install_torchrun() { write_program(root_ / "path" / "torchrun", kFakeTorchrun); }

  std::vector<std::string> command(const std::vector<std::string>& arguments) const {
    std::vector<std::string> argv = {std::string(DDP_BIN_DIR) + "/bench"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    argv.insert(argv.end(), {"--stage-dir", bin().string()});
    return argv;
  }

  /// Only /usr/bin and /bin besides the test's own launchers: what is installed elsewhere does not
  /// matter.
  auto run(const std::vector<std::string>& arguments, double timeout_seconds = 60) const {
    ddp::test::RunOptions options;
    options.environment["PATH"] = (root_ / "path").string() + ":/usr/bin:/bin";
    options.environment["TMPDIR"] = (root_ / "tmp").string();
    options.cwd = root_.string();
    options.timeout_seconds = timeout_seconds;
    return ddp::test::run_program(command(arguments), options);
  }

  /// Bench leaves nothing in the temporary folder.
  bool is_clean() const { return fs::is_empty(root_ / "tmp"); }

 private:
  fs::path root_;
};

/// One workload, one world size, no launcher that needs more than the stages themselves.
std::vector<std::string> small_and(const std::vector<std::string>& more) {
  std::vector<std::string> all = {"--models",    "T",     "--world-sizes", "2",
                                  "--launchers", "spawn", "--steps",       "20"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

json run_of(const json& document, const std::string& stage, const std::string& variant = "main") {
  for (const json& run : document.at("ddp_scaling").at("runs")) {
    if (run.at("stage") == stage && run.at("variant") == variant) {
      return run;
    }
  }
  FAIL("no run of " << stage << ", " << variant);
  return {};
}

std::vector<std::string> keys(const json& object) {
  std::vector<std::string> names;
  for (const auto& [key, value] : object.items()) {
    names.push_back(key);
  }
  return names;
}

void check_has_keys(const json& object, const std::vector<std::string>& expected) {
  for (const std::string& key : expected) {
    CAPTURE(key, keys(object));
    CHECK(object.contains(key));
  }
}

bool is_number_or_null(const json& value) {
  return value.is_number() || value.is_null();
}

bool is_near(double value, double expected, double relative) {
  return std::abs(value - expected) <= relative * std::abs(expected);
}

/// Every field of the schema, of the right type, whatever has happened.
void check_schema(const json& document) {
  check_has_keys(document, {"context", "benchmarks", "ddp_scaling"});
  const json& scaling = document.at("ddp_scaling");
  check_has_keys(scaling,
                 {"schema_version", "machine", "software", "runs", "comparisons", "partial"});
  CHECK(scaling.at("schema_version") == 1);
  CHECK(scaling.at("partial").is_boolean());
  for (const json& run : scaling.at("runs")) {
    check_has_keys(run, {"stage",
                         "variant",
                         "launcher",
                         "backend",
                         "speedup",
                         "device",
                         "model",
                         "scaling",
                         "nodes",
                         "world_size",
                         "global_batch",
                         "steps",
                         "samples_ms",
                         "step_ms",
                         "samples_per_second",
                         "relative_speedup",
                         "efficiency",
                         "phases_ms",
                         "comm",
                         "predicted_step_ms",
                         "floor_ms",
                         "peak_rss_mib",
                         "startup_ms",
                         "parity",
                         "error"});
    check_has_keys(run.at("step_ms"), {"median", "p10", "p90", "p95", "n"});
    check_has_keys(run.at("phases_ms"),
                   {"data", "forward", "backward", "exposed_comm", "optimizer"});
    check_has_keys(run.at("comm"),
                   {"alone_ms", "hidden_share", "bytes_per_step", "bus_bandwidth_gbps"});
    check_has_keys(run.at("parity"), {"moved", "reference_moved", "ok"});
    CHECK(run.at("samples_ms").is_array());
    CHECK(run.at("step_ms").at("n") == run.at("samples_ms").size());
    for (const char* key : {"samples_per_second", "relative_speedup", "efficiency", "steps",
                            "predicted_step_ms", "floor_ms", "peak_rss_mib", "startup_ms"}) {
      CAPTURE(key);
      CHECK(is_number_or_null(run.at(key)));
    }
    CHECK((run.at("error").is_null() || run.at("error").is_string()));
    // Either a speed or an error.
    CHECK(run.at("error").is_null() == run.at("samples_per_second").is_number());
    CHECK(run.at("error").is_null() == !run.at("samples_ms").empty());
  }
  for (const json& comparison : scaling.at("comparisons")) {
    check_has_keys(comparison, {"a", "b", "ratio_median", "ci95", "pairs"});
    CHECK((comparison.at("ci95").is_null() || comparison.at("ci95").size() == 2));
  }
}

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
  Bench bench;
  bench.install_torchrun();
  const auto result = bench.run({"--models", "T,digits", "--world-sizes", "1,2", "--launchers",
                                 "spawn,torchrun", "--steps", "50", "--json"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const json document = json::parse(result.out);  // the whole of standard output
  check_schema(document);
  CHECK(document.at("ddp_scaling").at("partial") == false);
  // Stage 01, and four programs at two world sizes, on two workloads.
  CHECK(document.at("ddp_scaling").at("runs").size() == 18);
  CHECK(document.at("ddp_scaling").at("comparisons").size() == 16);

  const json base = run_of(document, "01_single_gpu");
  CHECK(base.at("global_batch") == 32);
  CHECK(base.at("relative_speedup") == 1.0);
  CHECK(base.at("efficiency") == 1.0);
  CHECK(base.at("steps").get<int>() >= 50);
  CHECK(base.at("step_ms").at("n").get<int>() >= 3 * 50);
  CHECK(is_near(base.at("step_ms").at("median").get<double>(), 0.065, 0.05));
  CHECK(base.at("step_ms").at("p95").get<double>() < 0.1);  // no warm-up step among them
  CHECK(base.at("peak_rss_mib") == 100.5);
  CHECK(base.at("comm").at("bytes_per_step") == 84);
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
  const double speedup = two_ranks.at("relative_speedup").get<double>();
  CHECK(is_near(two_ranks.at("efficiency").get<double>(), speedup / 2, 1e-6));

  for (const json& comparison : document.at("ddp_scaling").at("comparisons")) {
    CHECK(comparison.at("pairs") == 3);
    CHECK(comparison.at("ci95").size() == 2);
  }
  // Google Benchmark's part: three repetitions of each, under names that stay the same between
  // reports.
  const json& benchmarks = document.at("benchmarks");
  CHECK(std::count_if(benchmarks.begin(), benchmarks.end(),
                      [](const json& entry) { return entry.at("run_type") == "iteration"; }) == 54);
  CHECK(std::any_of(benchmarks.begin(), benchmarks.end(), [](const json& entry) {
    return entry.at("name") == "T/weak/01_single_gpu/ranks:1/iterations:1/manual_time";
  }));
  CHECK(result.err.find("What to conclude") != std::string::npos);
  CHECK(result.err.find("waits for the all-reduce of 84 bytes") != std::string::npos);
  CHECK(bench.is_clean());
}

TEST_CASE("strong scaling keeps the batch over all ranks", "[bench]") {
  Bench bench;
  const auto result = bench.run({"--models", "T", "--world-sizes", "1,2,4", "--launchers", "spawn",
                                 "--scaling", "strong", "--steps", "10", "--stages", "03_ddp_spawn",
                                 "--repetitions", "1", "--json"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const json document = json::parse(result.out);
  check_schema(document);
  CHECK(document.at("ddp_scaling").at("runs").size() == 1 + 3);
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
  Bench bench;
  bench.behave("03_ddp_spawn", "moved=0.5001");
  const auto result = bench.run(small_and({"--json"}));
  INFO(result.err);
  CHECK(result.exit_code == 1);
  const json document = json::parse(result.out);
  check_schema(document);
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
  Bench bench;
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
    check_schema(document);
    for (const json& run : document.at("ddp_scaling").at("runs")) {
      CHECK(run.at("parity").at("ok") == false);
      CHECK(run.at("samples_per_second").is_null());
    }
  }
}

TEST_CASE("a stage that breaks is an error of its configuration only", "[bench]") {
  Bench bench;
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
  check_schema(document);
  const json run = run_of(document, "03_ddp_spawn");
  CHECK(run.at("error").get<std::string>().find(broken.error) != std::string::npos);
  CHECK(run_of(document, "01_single_gpu").at("error").is_null());
  CHECK(result.out.find("What to conclude") != std::string::npos);  // the table, with --json FILE
  CHECK(result.seconds < 20);
  CHECK(bench.is_clean());
}

TEST_CASE("a stage that breaks while it is timed loses its speed", "[bench]") {
  Bench bench;
  // The first call is the parity run.
  const std::string first_bad_call = GENERATE("2", "3", "4");
  CAPTURE(first_bad_call);
  bench.behave("03_ddp_spawn", "[ $(wc -l < \"$0.calls\") -lt " + first_bad_call + " ] || exit 1");
  const auto result = bench.run(small_and({"--json"}));
  CHECK(result.exit_code == 1);
  const json document = json::parse(result.out);
  check_schema(document);
  const json run = run_of(document, "03_ddp_spawn");
  CHECK(run.at("parity").at("ok") == true);
  CHECK(run.at("error") == "exit code 1");
}

TEST_CASE("a stage that asks to be tried again is", "[bench]") {
  Bench bench;
  bench.behave("03_ddp_spawn", "[ $(wc -l < \"$0.calls\") -gt 2 ] || exit 75");
  const auto result = bench.run(small_and({"--json"}));
  CHECK(result.exit_code == 0);
  CHECK(run_of(json::parse(result.out), "03_ddp_spawn").at("error").is_null());
}

TEST_CASE("an interrupt still leaves one valid document", "[bench]") {
  Bench bench;
  // bench is this script's parent.
  bench.behave("03_ddp_spawn",
               "[ $(wc -l < \"$0.calls\") -lt 2 ] || { kill -INT $PPID; sleep 30; }");
  const auto result = bench.run(small_and({"--json"}));
  INFO(result.err);
  CHECK(result.exit_code == 1);
  CHECK(result.seconds < 20);
  const json document = json::parse(result.out);
  check_schema(document);
  CHECK(document.at("ddp_scaling").at("partial") == true);
  CHECK(bench.is_clean());
}

TEST_CASE("bench tells the stages who they are by nothing but their options", "[bench]") {
  Bench bench;
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
  Bench bench;
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
  Bench bench;
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

TEST_CASE("the filter decides what is timed, stage 01 stays the reference", "[bench]") {
  Bench bench;
  const auto result = bench.run(small_and({"--benchmark_filter=by_hand", "--json"}));
  INFO(result.err);
  CHECK(result.exit_code == 0);
  const json document = json::parse(result.out);
  check_schema(document);
  CHECK(document.at("ddp_scaling").at("runs").size() == 1);
  CHECK(document.at("ddp_scaling").at("runs").at(0).at("relative_speedup").is_null());
  CHECK(document.at("ddp_scaling").at("runs").at(0).at("parity").at("reference_moved") == 0.5);
}

TEST_CASE("the names are listed without running anything", "[bench]") {
  Bench bench;
  const auto result = bench.run(small_and({"--benchmark_list_tests=true"}));
  CHECK(result.exit_code == 0);
  CHECK(result.out.find("T/weak/03_ddp_spawn/spawn/gloo/ranks:2/iterations:1/manual_time\n") !=
        std::string::npos);
  CHECK_FALSE(fs::exists(bench.bin() / "01_single_gpu.calls"));
}

TEST_CASE("bench refuses what it does not understand", "[bench]") {
  Bench bench;
  struct Case {
    std::vector<std::string> arguments;
    const char* error;
  };
  const std::vector<Case> cases = {
      {{"--foo"}, "--foo"},
      {{"extra"}, "extra"},
      {{"compare", "a.json", "b.json"}, "compare: not available yet"},
      {{"--html", "report.html"}, "--html: not available yet"},
      {{"--peers", "pytorch"}, "--peers: not available yet"},
      {{"--micro"}, "--micro: not available yet"},
      {{"--backends", "shm"}, "--backends shm: not available yet"},
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
      {{"--json", "/nonexistent/report.json"}, "/nonexistent"},
      {{"--json", "--dry-run"}, "--dry-run"},
      {{"--benchmark_foo=1"}, "--benchmark_foo"},
      {{"--benchmark_filter=("}, "--benchmark_filter"},
      {{"--benchmark_format=csv"}, "--benchmark_format"},
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

TEST_CASE("an option that stage 01 refuses is the user's mistake", "[bench]") {
  Bench bench;
  bench.behave("01_single_gpu", "echo 'error: --speedup graph: not available yet' >&2; exit 2");
  const auto result = bench.run(small_and({"--speedup", "graph"}));
  CHECK(result.exit_code == 2);
  CHECK(result.err.find("--speedup graph: not available yet") != std::string::npos);
}

}  // namespace
