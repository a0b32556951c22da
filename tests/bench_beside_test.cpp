// What bench runs beside the stages: limits of the machine, peers, and ranks that srun starts.
#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "bench/run/time_to_accuracy.hpp"
#include "tests/catch.hpp"
#include "tests/support/fake_bench.hpp"

namespace {

using namespace ddp::test;
using nlohmann::json;
using Words = std::vector<std::string>;

bool any_contains(const Words& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return contains(line, part); });
}

TEST_CASE("steps are held against measured limits and a fitted model", "[bench]") {
  FakeBench bench;
  bench.install("bin/bench_micro", kFakeMicro);
  const Measured report = bench.measure(small_and({"--micro"}));
  const json& scaling = report.scaling;
  REQUIRE(scaling.at("limits").size() == 2);  // world sizes 1 and 2
  CHECK(scaling.at("limits")[0].at("fp32_gflops") == 100.0);
  CHECK(scaling.at("limits")[0].at("memory_bandwidth_gbps") == 10.0);
  CHECK(scaling.at("limits")[0].at("memory").size() == 3);
  REQUIRE(scaling.at("all_reduce").size() == 11);
  CHECK(scaling.at("all_reduce")[0].at("pass_spread") == 1.0);
  CHECK(scaling.at("micro").size() == 1);
  // Of one world size, so it is no ring although it is one.
  REQUIRE(scaling.at("communication_models").size() == 1);
  const json& model = scaling.at("communication_models")[0];
  CHECK(model.at("algorithm").is_null());
  CHECK(is_near(model.at("regimes")[0].at("alpha_us"), 200, 0.01));
  CHECK(is_near(model.at("regimes")[0].at("beta_us_per_mib"), 300, 0.01));
  CHECK(model.at("worst_relative_error") < 0.01);
  CHECK(model.at("leave_one_out_error").is_null());

  const json two_ranks = report.run("03_ddp_spawn");
  CHECK(is_near(two_ranks.at("comm").at("alone_ms"), 0.2, 0.01));
  const double compute_ms = two_ranks.at("no_comm_step_ms");
  const double predicted_ms = two_ranks.at("predicted_step_ms");
  const double measured_ms = two_ranks.at("step_ms").at("median");
  CHECK(is_near(predicted_ms, compute_ms + 0.2, 0.01));
  CHECK(is_near(two_ranks.at("prediction").at("residual"), measured_ms / predicted_ms - 1, 1e-6));
  CHECK(two_ranks.at("floor_ms") > 0);
  CHECK(two_ranks.at("floor_ms") < measured_ms);
  // 0.4 ms against 26 ns of arithmetic.
  CHECK(two_ranks.at("bound") == "overhead");
  CHECK(contains(report.err, "overhead-bound"));
  CHECK(report.run("01_single_gpu").at("predicted_step_ms").is_null());
  CHECK(scaling.at("extrapolations").empty());
  CHECK(contains(report.err, "Not run: predictions for more ranks (the ranks share a host"));
  CHECK(!scaling.at("assumptions").empty());
  const std::string calls = read_file(bench.bin() / "bench_micro.calls");
  CHECK(contains(calls, "--passes 5"));
}

TEST_CASE("a model that the replay refutes gives no prediction; a stated network still gives some",
          "[bench]") {
  FakeBench bench;
  bench.install("bin/bench_micro", kFakeMicro);
  write_file(bench.bin() / "bench_micro.slow", "");
  const Measured report = bench.measure(small_and({"--network", "2.5,25"}));
  const json two_ranks = report.run("03_ddp_spawn");
  CHECK(two_ranks.at("predicted_step_ms").is_null());
  CHECK(two_ranks.at("prediction").at("reason") ==
        "its all-reduce takes 200 us by the model, 10.0 us when replayed");
  CHECK(contains(report.err, "No prediction of T/weak/03_ddp_spawn/spawn/shm/ranks:2"));
  CHECK(two_ranks.at("floor").at("comm_ms") <= two_ranks.at("comm").at("alone_ms"));
  const json& extrapolations = report.scaling.at("extrapolations");
  // 84 bytes over 8 ranks, by ring and by tree.
  REQUIRE(extrapolations.size() == 2 * 2 * 4);
  const double compute_ms = two_ranks.at("no_comm_step_ms");
  CHECK(is_near(extrapolations[0].at("predicted_step_ms"), compute_ms + 2 * 7 * 0.0025, 0.001));
  CHECK(is_near(extrapolations[4].at("predicted_step_ms"), compute_ms + 2 * 3 * 0.0025, 0.001));
  CHECK(contains(report.scaling.at("assumptions").dump(), "alpha 2.5 us and 25 GB/s"));
}

TEST_CASE("limits that cannot be measured are named, and nothing is predicted", "[bench]") {
  FakeBench bench;
  bench.install("bin/bench_micro", GENERATE("#!/bin/sh\necho 'error: no memory' >&2\nexit 1\n",
                                            "#!/bin/sh\nexit 0\n", "#!/bin/sh\nkill -SEGV $$\n"));
  const Measured report = bench.measure(small_and({"--repetitions", "1"}));
  CHECK(report.scaling.at("limits").empty());
  CHECK(report.scaling.at("communication_models").empty());
  CHECK(report.scaling.at("not_run").size() >= 2);
  CHECK(report.run("03_ddp_spawn").at("floor_ms").is_null());
  CHECK(report.run("03_ddp_spawn").at("error").is_null());
}

TEST_CASE("peers are checked and timed as stages are", "[bench]") {
  FakeBench bench;
  bench.install("peers/install.sh", kFakeInstall);
  bench.install("peers/pytorch.py", kFakeStage);
  const Words with_peers =
      small_and({"--peers", "pytorch", "--peers-dir", (bench.root() / "peers").string()});
  SECTION("one that agrees") {
    const Measured report = bench.measure(with_peers);
    const json peer = report.run("pytorch", "tuned");
    CHECK(peer.at("kind") == "peer");
    CHECK(peer.at("step_ms").at("median").is_number());
    CHECK(peer.at("no_comm_step_ms").is_null());
    const json& comparisons = report.scaling.at("comparisons");
    CHECK(std::any_of(comparisons.begin(), comparisons.end(), [](const json& entry) {
      return entry.at("kind") == "peer" &&
             entry.at("b") == "T/weak/pytorch_tuned/spawn/gloo/ranks:2" &&
             entry.at("a") == "T/weak/03_ddp_spawn/spawn/shm/ranks:2";
    }));
    const json& conclusions = report.scaling.at("conclusions");
    CHECK(std::any_of(conclusions.begin(), conclusions.end(), [](const json& conclusion) {
      return conclusion.at("code") == "peer" &&
             contains(conclusion.at("runs").at(0), "T/weak/03_ddp_spawn") &&
             contains(conclusion.at("runs").at(1), "T/weak/pytorch_");
    }));
  }
  SECTION("one that trains something else has no speed") {
    write_file(bench.root() / "peers" / "pytorch.py.behaviour", "moved=0.6\n");
    const json peer = bench.measure(with_peers, 1).run("pytorch", "tuned");
    CHECK(contains(peer.at("error"), "parity"));
    CHECK(peer.at("step_ms").at("median").is_null());
  }
  SECTION("one that cannot be installed stops everything before anything is run") {
    write_file(bench.root() / "peers" / "install.sh.broken", "");
    const auto result = bench.run(with_peers);
    CHECK(result.exit_code == 2);
    CHECK(contains(result.err, "--peers pytorch cannot be installed: error: no network"));
    CHECK(result.out.empty());
    CHECK_FALSE(bench.has_run());
  }
}

TEST_CASE("one process has imported a peer's framework for all timed runs", "[bench]") {
  FakeBench bench;
  bench.install("peers/install.sh", kFakeInstall);
  bench.install("peers/pytorch.py", std::string(R"sh(#!/bin/sh
if [ "$1" = --serve ]; then
  echo $$ >> "$0.server"
  [ -f "$0.broken" ] || { touch "$2"; exec sleep 1000; }
  exit 1
fi
echo "${DDP_PEER_SERVER:-none}" >> "$0.used"
sleep 0.1  # several ticks of the clock by which the kernel counts processors' time
)sh") + kFakeStage);
  const bool is_broken = GENERATE(false, true);
  if (is_broken) {
    write_file(bench.root() / "peers" / "pytorch.py.broken", "");
  }
  const json peer = bench
                        .measure(small_and({"--peers", "pytorch", "--repetitions", "2",
                                            "--peers-dir", (bench.root() / "peers").string()}))
                        .run("pytorch", "tuned");
  std::istringstream used(read_file(bench.root() / "peers" / "pytorch.py.used"));
  int without = 0;
  int with = 0;
  for (std::string line; std::getline(used, line);) {
    ++(line == "none" ? without : with);
  }
  REQUIRE(without > 0);
  CHECK(with == (is_broken ? 0 : 2 * without));  // compared once, timed twice
  // A start is what the run that imported took.
  CHECK(peer.at("startup_ms").is_number());
  CHECK(peer.at("repetitions").at(0).at("startup_ms").is_null() == !is_broken);
  CHECK(peer.at("repetitions").at(0).at("others_busy_share").is_null() == !is_broken);
  const int server = std::stoi(read_file(bench.root() / "peers" / "pytorch.py.server"));
  CHECK(kill(server, 0) != 0);
}

TEST_CASE("PyTorch takes part by itself if it is installed already", "[bench]") {
  FakeBench bench;
  bench.install("path/mpirun", kFakeMpirun);
  bench.install("peers/install.sh", kFakeInstall);
  bench.install("peers/pytorch.py", kFakeStage);
  const bool is_there = GENERATE(true, false);
  if (is_there) {
    write_file(bench.root() / "peers" / "install.sh.there", "");
  }
  const Measured report = bench.measure({"--models", "T", "--world-sizes", "2", "--steps", "10"});
  const auto has_peer = [](const json& entry) { return entry.at("kind") == "peer"; };
  const json& runs = report.scaling.at("runs");
  CHECK(std::count_if(runs.begin(), runs.end(), has_peer) == (is_there ? 1 : 0));
  for (const json& comparison : report.scaling.at("comparisons")) {
    CHECK((!has_peer(comparison) || comparison.at("pairs") == 6));
  }
  CHECK(contains(report.scaling.at("not_run").dump(), "--peers pytorch installs it") == !is_there);
}

TEST_CASE("the smallest number that is enough is found with few questions", "[bench]") {
  for (const std::int64_t most : {1, 2, 16, 20}) {
    for (std::int64_t threshold = 1; threshold <= most + 1; ++threshold) {
      int questions = 0;
      const auto found = ddp::bench::find_smallest(most, [&](std::int64_t number) {
        CHECK(number <= most);
        ++questions;
        return number >= threshold;
      });
      CHECK(found == (threshold <= most ? std::optional(threshold) : std::nullopt));
      CHECK(questions <= 9);
    }
  }
}

TEST_CASE("--full tells how long a training to an accuracy takes", "[bench]") {
  FakeBench bench;
  bench.install("path/mpirun", kFakeMpirun);
  const Words arguments = {"--full", "--models",      "T", "--world-sizes", "2",      "--steps",
                           "10",     "--repetitions", "1", "--data-dir",    "/folder"};
  // Digits reach 95 % after five epochs, the others never.
  const std::string learns =
      "case $dataset in digits) [ $epochs -lt 5 ] && accuracy=0.5 || accuracy=0.96 ;; esac\n";
  SECTION("where it is reached, and where it is not") {
    for (const char* stage : {"01_single_gpu", "03_ddp_spawn"}) {
      bench.behave(stage, learns + "[ \"$dataset\" != fashion-mnist ] || accuracy=0.8751");
    }
    const json list = bench.measure(arguments).scaling.at("time_to_accuracy");
    REQUIRE(list.size() == 8);
    for (const json& entry : list) {
      CAPTURE(entry);
      const bool digits = entry.at("dataset") == "digits";
      CHECK(entry.at("target") == (digits ? 0.95 : 0.88));
      CHECK(entry.at("epochs") == (digits ? json(5) : json()));
      CHECK(entry.at("accuracy") == (digits ? json(0.96) : json()));
      CHECK(entry.at("error").is_null() == digits);
      CHECK(entry.at("seconds").at("n") == (digits ? 1 : 0));
      CHECK(entry.at("scale_lr") == (entry.at("global_batch") == 64));
      if (digits) {
        // 5 epochs of 1,437 samples, the first 10 steps a hundred times as long.
        const bool alone = entry.at("world_size") == 1;
        const double steps = 5.0 * (entry.at("global_batch") == 64 ? 23 : 45);
        const double expected_s = (steps + 10 * 99) * (alone ? 0.05 : 0.4) * 1.3 / 1e3;
        CHECK(is_near(entry.at("seconds").at("median"), expected_s, 0.05));
        CHECK(entry.at("seconds_with_start").at("median") > 0);
      } else {
        CHECK(entry.at("error") == "after at most 16 epochs the accuracy was 0.8751");
      }
    }
    const std::string calls = read_file(bench.bin() / "03_ddp_spawn.calls");
    CHECK(contains(calls, "5 5 --global-batch 64 --dataset digits --hidden 128,128 --nprocs 2"));
    CHECK(contains(calls, " --lr 0.2 "));
    CHECK(contains(calls, " --data-dir /folder "));
  }
  SECTION("a dataset that is not there is named") {
    for (const char* stage : {"01_single_gpu", "03_ddp_spawn"}) {
      bench.behave(stage,
                   learns +
                       "[ \"$dataset\" != fashion-mnist ] || { echo 'error: no clothes' >&2; "
                       "exit 2; }");
    }
    const Measured report = bench.measure(arguments);
    CHECK(report.scaling.at("time_to_accuracy").size() == 4);
    CHECK(contains(report.scaling.at("not_run").dump(), "time to accuracy on fashion-mnist"));
    CHECK(contains(report.scaling.at("not_run").dump(), "no clothes"));
  }
}

TEST_CASE("a peer with replicas in one process is one, and each program's lines are counted",
          "[bench]") {
  FakeBench bench;
  bench.install("bench/peers/install.sh", kFakeInstall);
  bench.install("bench/peers/tensorflow.py", kFakeStage);
  bench.install(
      "bench/peers/tensorflow_training.py",
      "\"\"\"Says what it is.\n\nx = 1\n\"\"\"\n\n# x = 2\nx = 3\n  \"\"\"One.\"\"\"\n  y = 4\n");
  bench.install("03_ddp_spawn/main.cpp",
                "// not\n#include <a>\n\n  // not\nint main() {}  // yes\n");
  const Measured report = bench.measure(small_and(
      {"--peers", "tensorflow", "--peers-dir", (bench.root() / "bench" / "peers").string()}));
  const json peer = report.run("tensorflow", "mirrored");
  CHECK(peer.at("name") == "T/weak/tensorflow_mirrored/ranks:2");
  CHECK(peer.at("launcher") == "none");
  CHECK(peer.at("world_size") == 2);
  CHECK(peer.at("lines_of_code") == 2);
  CHECK(report.run("03_ddp_spawn").at("lines_of_code") == 2);
  CHECK(report.run("01_single_gpu").at("lines_of_code").is_null());
  CHECK(contains(report.err, "lines of code"));
}

TEST_CASE("the peer c10d runs on each of the stages' backends", "[bench]") {
  FakeBench bench;
  bench.install("bin/peer_c10d", kFakeStage);
  // It tells how much it sends, but not in how many pieces.
  bench.behave(
      "peer_c10d",
      "after() { sed -i 's/\"all_reduce_bytes\":.84./\"bytes_per_step\":84/' \"$metrics\"; }");
  SECTION("on what they choose by themselves") {
    const json peer = bench.measure(small_and({"--peers", "c10d"})).run("c10d", "reducer");
    CHECK(peer.at("name") == "T/weak/c10d_reducer/spawn/shm/ranks:2");
    CHECK(peer.at("backend") == "shm");
    CHECK(peer.at("comm").at("bytes_per_step") == 84);
    CHECK(peer.at("comm").at("bucket_bytes").empty());
    CHECK(contains(read_file(bench.bin() / "peer_c10d.calls"), "--backend shm "));
  }
  SECTION("on those that are named and can be started") {
    bench.install("path/mpirun", "#!/bin/sh\n");
    const Words names =
        bench.print({"--models", "T", "--world-sizes", "2", "--launchers", "spawn,mpirun",
                     "--backends", "shm,gloo,mpi", "--peers", "c10d", "--benchmark_list_tests"});
    CHECK(any_contains(names, "/c10d_reducer/spawn/shm/ranks:2"));
    CHECK(any_contains(names, "/c10d_reducer/spawn/gloo/ranks:2"));
    CHECK_FALSE(any_contains(names, "/c10d_reducer/spawn/mpi"));
    CHECK(any_contains(names, "/04_ddp_launcher/mpirun/mpi"));
  }
}

TEST_CASE("a peer that has no CPU is left out there, with a word", "[bench]") {
  FakeBench bench;
  CHECK(any_contains(
      bench.print({"--models", "T", "--device", "cpu", "--peers", "libtorch", "--dry-run"}),
      "# not run: libtorch data_parallel (it computes on a GPU only)"));
}

TEST_CASE("inside an allocation srun starts ranks, on several nodes too", "[bench]") {
  FakeBench bench;
  bench.install("path/srun", kFakeSrun);
  bench.install("bin/05_multinode", kFakeStage);
  SECTION("outside of one it is not asked") {
    CHECK_FALSE(any_contains(bench.print({"--models", "T", "--dry-run"}), "srun"));
    CHECK(bench.run({"--launchers", "srun", "--dry-run"}).exit_code == 2);
  }
  SECTION("one node: beside the other launchers") {
    bench.enter_allocation();
    CHECK(any_contains(bench.print({"--models", "T", "--world-sizes", "2", "--dry-run"}),
                       "srun --nodelist=n7 --nodes=1 --ntasks=2 --ntasks-per-node=2"));
  }
  SECTION("ranks share the CPUs that the job has") {
    struct Case {
      std::string per_task;
      std::string on_node;
      std::string options;
    };
    const Case job =
        GENERATE(Case{"12", "96", "--cpus-per-task=12 "}, Case{"2", "6", "--cpus-per-task=1 "},
                 Case{"1", "2", "--cpus-per-task=1 --overcommit "});
    bench.enter_allocation(
        {{"SLURM_CPUS_PER_TASK", job.per_task}, {"SLURM_CPUS_ON_NODE", job.on_node}});
    CHECK(any_contains(
        bench.print({"--models", "T", "--world-sizes", "4", "--launchers", "srun", "--dry-run"}),
        job.options + bench.bin().string()));
  }
  SECTION("several numbers of nodes: full ones beyond the smallest") {
    bench.enter_allocation();
    const Measured report =
        bench.measure({"--models", "T", "--world-sizes", "1,2", "--launchers", "srun", "--nodes",
                       "3,1", "--steps", "20", "--repetitions", "1"});
    std::vector<std::pair<int, int>> measured;
    for (const json& run : report.scaling.at("runs")) {
      if (run.at("stage") == "05_multinode" && run.at("kind") == "stage") {
        measured.emplace_back(run.at("nodes"), run.at("world_size"));
      }
    }
    CHECK(measured == std::vector<std::pair<int, int>>{{1, 1}, {1, 2}, {3, 6}});
    CHECK(contains(read_file(bench.root() / "path" / "srun.calls"),
                   "--nodelist=n7,n8,n9 --nodes=3 --ntasks=6"));
  }
  SECTION("two nodes: stage 05") {
    bench.install("bin/bench_micro", kFakeMicro);
    bench.enter_allocation({{"SLURM_GPU_BIND", "single:1"},
                            {"SLURM_GPUS_PER_TASK", "1"},
                            {"SLURM_NTASKS_PER_GPU", "1"}});
    const Measured report =
        bench.measure({"--models", "T", "--world-sizes", "4", "--launchers", "srun", "--nodes", "2",
                       "--steps", "20", "--repetitions", "1"});
    const json run = report.run("05_multinode");
    CHECK(run.at("name") == "T/weak/05_multinode/srun/hierarchical/nodes:2/ranks:4");
    CHECK(run.at("nodes") == 2);
    CHECK(run.at("world_size") == 4);
    CHECK(run.at("launcher") == "srun");
    const std::string calls = read_file(bench.root() / "path" / "srun.calls");
    CHECK(contains(calls, "--nodelist=n7,n8 --nodes=2 --ntasks=4"));
    // What the machine can do is measured on both, too.
    CHECK(contains(calls, "bench_micro --suite all_reduce --nprocs 4"));
    CHECK(contains(calls, "bench_micro --suite limits --nprocs 4"));
    CHECK_FALSE(contains(calls, "bench_micro --suite limits --nprocs 1"));
    CHECK_FALSE(report.scaling.at("all_reduce").empty());
    // Each task is to see all GPUs of its node.
    CHECK(read_file(bench.root() / "path" / "srun.bound").empty());
    CHECK(report.run("01_single_gpu").at("nodes") == 1);
  }
}

}  // namespace
