#include "tests/support/fake_bench.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/catch.hpp"

namespace ddp::test {

namespace fs = std::filesystem;
using nlohmann::json;

const char* const kFakeStage = R"sh(#!/bin/sh
name=$(basename "$0")
epochs=$1 global=32 ranks=${WORLD_SIZE:-1} size=1437 metrics= warmup=10
printf '%s\n' "$*" >> "$0.calls"
while [ $# -gt 0 ]; do
  case $1 in
    --metrics) metrics=$2; shift ;;
    --global-batch) global=$2; shift ;;
    --nprocs) ranks=$2; shift ;;
    --dataset-size) size=$2; shift ;;
    --no-communication) quiet_step_ms=0.07 ;;
    --dataset) dataset=$2; shift ;;
  esac
  shift
done
case $name in 02_* | tensorflow.py) ranks=1 ;; esac
moved=0.5 step_ms=0.05 comm=0 accuracy=null
[ "$ranks" = 1 ] || { step_ms=0.2; comm=0.14; }
[ -z "$quiet_step_ms" ] || { step_ms=$quiet_step_ms; comm=0; }
first_step=$(date +%s)000
after() { :; }
[ ! -f "$0.behaviour" ] || . "$0.behaviour"
awk -v epochs="$epochs" -v global="$global" -v ranks="$ranks" -v size="$size" -v moved="$moved" \
    -v step_ms="$step_ms" -v comm="$comm" -v warmup="$warmup" -v first_step="$first_step" -v accuracy="$accuracy" 'BEGIN {
  steps = epochs * int((size + global - 1) / global)
  for (s = 0; s < steps; ++s) for (r = 0; r < ranks; ++r) {
    t = step_ms * (1 + 0.1 * (s % 7)) * (s < warmup ? 100 : 1)
    rest = ((r == 1 ? 2 * t : t) - comm) / 4
    if (r == 1 || (comm && ranks > 1)) t *= 2
    end_ms[r] += t
    printf "{\"rank\":%d,\"epoch\":0,\"step\":%d,\"end_ms\":%.9f,\"step_ms\":%.9f,", r, s, 5000 + end_ms[r], t
    printf "\"data_ms\":%.9f,\"forward_ms\":%.9f,\"backward_ms\":%.9f,", rest, rest, rest
    printf "\"exposed_comm_ms\":%.9f,\"optimizer_ms\":%.9f,\"loss\":0.5}\n", t - 4 * rest, rest
  }
  printf "{\"summary\":{\"backend\":\"shm\",\"device\":\"cpu\",\"world_size\":%d,", ranks
  printf "\"global_batch\":%d,\"epochs\":%d,\"steps\":%d,", global, epochs, steps
  printf "\"warmup_steps\":%d,\"moved\":%s,\"all_reduce_bytes\":[84],", warmup, moved
  printf "\"loss\":0.25,\"accuracy\":%s,", accuracy
  printf "\"peak_rss_mib\":[100.5],\"peak_device_mib\":[7,7.5],\"startup_ms\":[300],\"first_step_unix_ms\":%s}}\n", first_step
}' > "$metrics"
after
)sh";

const char* const kFakeTorchrun = R"sh(#!/bin/sh
# torchrun --standalone --nproc_per_node=N --no-python PROGRAM ARGUMENTS: starts it once, for all, and
# leaves a folder behind, as the real one does.
mktemp -d "${TMPDIR:-/tmp}/torchelastic_XXXXXX" > /dev/null
WORLD_SIZE=${2#*=}
export WORLD_SIZE
shift 3
exec "$@"
)sh";

const char* const kFakeMpirun = R"sh(#!/bin/sh
# mpirun ... -np RANKS PROGRAM ARGUMENTS: as above.
[ "$1" != --version ] || { echo "mpirun (Open MPI) 1.2"; exit; }
while [ "$1" != -np ]; do shift; done
WORLD_SIZE=$2
export WORLD_SIZE
shift 2
exec "$@"
)sh";

const char* const kFakeSrun = R"sh(#!/bin/sh
# srun --nodes=N --ntasks=RANKS ... PROGRAM ARGUMENTS: as above.
[ "$1" != --version ] || { echo slurm 1.2; exit; }
printf '%s\n' "$*" >> "$0.calls"
printf '%s' "$SLURM_GPU_BIND$SLURM_GPUS_PER_TASK$SLURM_NTASKS_PER_GPU" >> "$0.bound"
while :; do
  case $1 in
    --ntasks=*) WORLD_SIZE=${1#*=} ;;
    --*) ;;
    *) break ;;
  esac
  shift
done
export WORLD_SIZE
exec "$@"
)sh";

const char* const kFakeMicro = R"py(#!/usr/bin/python3
import argparse, json, os, sys

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--suite")
parser.add_argument("--nprocs", type=int, default=1)
parser.add_argument("--step", action="append", default=[])
parser.add_argument("--passes", type=int, default=1)
parser.add_argument("--benchmark_out")
options, _ = parser.parse_known_args()
ranks = options.nprocs
with open(__file__ + ".calls", "a") as calls:
    print(" ".join(sys.argv[1:]), file=calls)

def entry(name, time_us, **counters):
    return {"name": name, "run_name": name, "run_type": "iteration", "ranks": ranks,
            "time_us_median": time_us, "time_us_p10": time_us, "time_us_p90": time_us,
            "time_us_p95": time_us, "time_us_n": 100, **counters}

def ring_us(size):
    return 2 * (ranks - 1) * 100 + 2 * (ranks - 1) / ranks * size / 2**20 * 300

entries = []
if options.suite == "limits":
    entries.append(entry(f"limits/gemm_fp32/ranks:{ranks}", 1, flops_per_second=100e9))
    for size in 2**17, 2**23, 2**28:
        entries.append(entry(f"limits/memory/ranks:{ranks}/bytes:{size}", 1, working_set=size,
                             memory_bandwidth=10e9 * 2**28 / size))
elif options.suite == "all_reduce":
    for size in [4 ** k for k in range(1, 12)]:
        entries.append(entry(f"all_reduce/shm/ranks:{ranks}/bytes:{size}", ring_us(size), bytes=size))
    slow = os.path.exists(__file__ + ".slow")  # the steps are replayed faster than the sweep was
    for step in options.step:
        name, sizes = step.split("=")
        sizes = [int(size) for size in sizes.split("+")]
        entries.append(entry(f"all_reduce_step/shm/ranks:{ranks}/{name}",
                             sum(map(ring_us, sizes)) / (20 if slow else 1), bytes=sum(sizes)))
else:
    entries.append(entry("pieces/optimizer/sgd/flat/S", 7.5, bytes=1000, bandwidth=2e9))
with open(options.benchmark_out, "w") as out:
    json.dump({"context": {"device": "cpu"}, "benchmarks": entries * options.passes}, out)
)py";

const char* const kFakeInstall = R"sh(#!/bin/sh
[ "$1" != --only-look ] || { shift; [ -f "$0.there" ] || exit 1; }
[ -f "${0%/*}/$1.py" ] || { echo "error: no such peer" >&2; exit 2; }
[ ! -f "$0.broken" ] || { echo "error: no network" >&2; exit 1; }
echo "installing" >&2
echo /bin/sh
)sh";

namespace {

/// Each under a name of its own, for the test that validates all of them.
void keep(const json& document) {
  const char* const folder = std::getenv("DDP_TEST_DOCUMENTS");
  if (folder == nullptr) {
    return;
  }
  static std::atomic<int> number = 0;
  fs::create_directories(folder);
  write_file(fs::path(folder) /
                 ("report-" + std::to_string(getpid()) + "-" + std::to_string(++number) + ".json"),
             document.dump());
}

/// The phases of a run that knows all of them add up to its step.
void check_phases(const json& run) {
  double sum_ms = 0;
  for (const auto& [name, phase_ms] : run.at("phases_ms").items()) {
    if (phase_ms.is_null()) {
      return;
    }
    sum_ms += phase_ms.get<double>();
  }
  CHECK(is_near(run.at("step_ms").at("median"), sum_ms, 0.03));
}

}  // namespace

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

FakeBench::FakeBench() {
  fs::create_directory(root() / "tmp");
  for (const std::string name : {"01_single_gpu", "02_data_parallel", "03_ddp_spawn",
                                 "03_ddp_spawn_by_hand", "04_ddp_launcher"}) {
    install("bin/" + name, kFakeStage);
  }
}

void FakeBench::install(const std::string& path, const std::string& script) const {
  fs::create_directories((root() / path).parent_path());
  write_file(root() / path, script);
  fs::permissions(root() / path, fs::perms::owner_all);
}

void FakeBench::behave(const std::string& stage, const std::string& script) const {
  write_file(bin() / (stage + ".behaviour"), script + "\n");
}

RunResult FakeBench::run(const std::vector<std::string>& arguments,
                         const std::string& redirections) const {
  RunOptions options;
  options.environment["PATH"] = (root() / "path").string() + ":/usr/bin:/bin";
  options.environment["TMPDIR"] = (root() / "tmp").string();
  for (const char* const name :
       {"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"}) {
    options.environment[name] = std::nullopt;
  }
  for (const auto& [name, value] : allocation_) {
    options.environment[name] = value;
  }
  options.cwd = root().string();
  std::vector<std::string> argv = {std::string(DDP_BIN_DIR) + "/bench"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  argv.insert(argv.end(), {"--stage-dir", bin().string()});
  if (std::ranges::find(arguments, "--quiet-wait") == arguments.end()) {
    argv.insert(argv.end(), {"--quiet-wait", "0"});
  }
  if (std::find(argv.begin(), argv.end(), "--peers-dir") == argv.end()) {
    argv.insert(argv.end(), {"--peers-dir", (root() / "peers").string()});
  }
  if (!redirections.empty()) {
    const std::vector<std::string> shell = {"/bin/sh", "-c", "exec \"$@\" " + redirections, "sh"};
    argv.insert(argv.begin(), shell.begin(), shell.end());
  }
  return run_program(argv, options);
}

Measured FakeBench::measure(const std::vector<std::string>& arguments, int exit_code) const {
  std::vector<std::string> with_json = arguments;
  with_json.push_back("--json");
  const RunResult result = run(with_json);
  INFO(result.err);
  REQUIRE(result.exit_code == exit_code);
  CHECK(fs::is_empty(root() / "tmp"));
  const json document = json::parse(result.out);  // the whole of standard output
  check_report(document);
  return {document, document.at("ddp_scaling"), result.err, result.seconds};
}

std::vector<std::string> FakeBench::print(const std::vector<std::string>& arguments) const {
  const RunResult result = run(arguments);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK_FALSE(has_run());
  std::vector<std::string> lines;
  std::istringstream out(result.out);
  for (std::string line; std::getline(out, line);) {
    lines.push_back(line);
  }
  return lines;
}

json Measured::run(const std::string& stage, const std::string& variant) const {
  for (const json& run : scaling.at("runs")) {
    if (run.at("stage") == stage && run.at("variant") == variant) {
      return run;
    }
  }
  FAIL("no run of " << stage << ", " << variant);
  return {};
}

std::vector<std::string> small_and(const std::vector<std::string>& more) {
  std::vector<std::string> all = {"--models",    "T",     "--world-sizes", "2",
                                  "--launchers", "spawn", "--steps",       "20"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

bool is_near(const json& value, double expected, double relative) {
  return value.is_number() &&
         std::abs(value.get<double>() - expected) <= relative * std::abs(expected);
}

void check_report(const json& document) {
  keep(document);
  for (const char* key : {"context", "benchmarks", "ddp_scaling"}) {
    CHECK(document.contains(key));
  }
  const json& scaling = document.at("ddp_scaling");
  CHECK(scaling.at("schema_version") == 2);
  for (const json& run : scaling.at("runs")) {
    CAPTURE(run.at("name"));
    std::size_t samples = 0;
    for (const json& repetition : run.at("repetitions")) {
      samples += repetition.is_null() ? 0 : repetition.at("samples_ms").size();
    }
    CHECK(run.at("step_ms").at("n") == samples);
    // Either a speed or an error.
    CHECK(run.at("error").is_null() == run.at("samples_per_second").is_number());
    CHECK(run.at("error").is_null() == (samples > 0));
    if (run.at("error").is_null()) {
      check_phases(run);
    }
  }
  for (const json& comparison : scaling.at("comparisons")) {
    CHECK((comparison.at("ci95").is_null() || comparison.at("ci95").size() == 2));
    CHECK((comparison.at("verdict").is_null() || comparison.at("ci95").size() == 2));
  }
}

}  // namespace ddp::test
