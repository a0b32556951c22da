// What bench runs beside the stages: limits of the machine, peers, and ranks that srun starts.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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

TEST_CASE("steps are held against measured limits and a fitted model", "[bench]") {
  FakeBench bench;
  bench.install_micro();
  const auto result = bench.run(small_and({"--micro", "--json"}));
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const json document = json::parse(result.out);
  check_report(document);
  const json& scaling = document.at("ddp_scaling");
  CHECK(scaling.at("limits").size() == 2);  // world sizes 1 and 2
  CHECK(scaling.at("limits")[0].at("fp32_gflops") == 100.0);
  CHECK(scaling.at("all_reduce").size() == 11);
  CHECK(scaling.at("micro").size() == 1);
  REQUIRE(scaling.at("communication_models").size() == 2);
  const json& ring = scaling.at("communication_models")[0];
  CHECK(ring.at("algorithm") == "ring");
  CHECK(is_near(ring.at("regimes")[0].at("alpha_us").get<double>(), 100, 0.01));
  CHECK(is_near(ring.at("regimes")[0].at("beta_us_per_mib").get<double>(), 300, 0.01));

  const json two_ranks = run_of(document, "03_ddp_spawn");
  CHECK(is_near(two_ranks.at("comm").at("alone_ms").get<double>(), 0.2, 0.01));
  const double compute_ms = two_ranks.at("no_comm_step_ms").get<double>();
  const double predicted_ms = two_ranks.at("predicted_step_ms").get<double>();
  CHECK(is_near(predicted_ms, compute_ms + 0.2, 0.01));
  const double measured_ms = two_ranks.at("step_ms").at("median").get<double>();
  CHECK(is_near(two_ranks.at("prediction").at("residual").get<double>(),
                measured_ms / predicted_ms - 1, 1e-6));
  CHECK(two_ranks.at("floor_ms").get<double>() > 0);
  CHECK(two_ranks.at("floor_ms").get<double>() < measured_ms);
  CHECK(run_of(document, "01_single_gpu").at("predicted_step_ms").is_null());
  CHECK(!scaling.at("extrapolations").empty());
  CHECK(!scaling.at("assumptions").empty());
  CHECK(bench.is_clean());
}

TEST_CASE("limits that cannot be measured are named, and nothing is predicted", "[bench]") {
  FakeBench bench;
  write_program(bench.bin() / "bench_micro",
                GENERATE("#!/bin/sh\necho 'error: no memory' >&2\nexit 1\n", "#!/bin/sh\nexit 0\n",
                         "#!/bin/sh\nkill -SEGV $$\n"));
  const auto result = bench.run(small_and({"--repetitions", "1", "--json"}));
  INFO(result.err);
  CHECK(result.exit_code == 0);
  const json document = json::parse(result.out);
  check_report(document);
  CHECK(document.at("ddp_scaling").at("limits").empty());
  CHECK(document.at("ddp_scaling").at("communication_models").empty());
  CHECK(document.at("ddp_scaling").at("not_run").size() >= 2);
  CHECK(run_of(document, "03_ddp_spawn").at("floor_ms").is_null());
  CHECK(run_of(document, "03_ddp_spawn").at("error").is_null());
}

TEST_CASE("peers are checked and timed as stages are", "[bench]") {
  FakeBench bench;
  bench.install_peer();
  const std::vector<std::string> with_peers =
      small_and({"--peers", "pytorch", "--peers-dir", (bench.root() / "peers").string(), "--json"});
  SECTION("one that agrees") {
    const auto result = bench.run(with_peers);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    const json document = json::parse(result.out);
    check_report(document);
    const json peer = run_of(document, "pytorch", "tuned");
    CHECK(peer.at("kind") == "peer");
    CHECK(peer.at("step_ms").at("median").is_number());
    CHECK(peer.at("no_comm_step_ms").is_null());
    CHECK(std::any_of(document.at("ddp_scaling").at("comparisons").begin(),
                      document.at("ddp_scaling").at("comparisons").end(), [](const json& entry) {
                        return entry.at("kind") == "peer" &&
                               entry.at("b") == "T/weak/pytorch_tuned/spawn/gloo/ranks:2" &&
                               entry.at("a") == "T/weak/03_ddp_spawn/spawn/shm/ranks:2";
                      }));
    CHECK(result.err.find("of pytorch at its best") != std::string::npos);
  }
  SECTION("one that trains something else has no speed") {
    write_file(bench.root() / "peers" / "pytorch.py.behaviour", "moved=0.6\n");
    const auto result = bench.run(with_peers);
    CHECK(result.exit_code == 1);
    const json peer = run_of(json::parse(result.out), "pytorch", "tuned");
    CHECK(peer.at("error").get<std::string>().find("parity") != std::string::npos);
    CHECK(peer.at("step_ms").at("median").is_null());
  }
  SECTION("one that cannot be installed stops everything before anything is run") {
    write_file(bench.root() / "peers" / "install.sh.broken", "");
    const auto result = bench.run(with_peers);
    CHECK(result.exit_code == 2);
    CHECK(result.err.find("--peers pytorch cannot be installed: error: no network") !=
          std::string::npos);
    CHECK(result.out.empty());
    CHECK_FALSE(fs::exists(bench.bin() / "01_single_gpu.calls"));
  }
}

TEST_CASE("the peer c10d runs on each of the stages' backends", "[bench]") {
  FakeBench bench;
  write_program(bench.bin() / "peer_c10d", ddp::test::kFakeStage);
  // It tells how much it sends, but not in how many pieces.
  bench.behave(
      "peer_c10d",
      "after() { sed -i 's/\"all_reduce_bytes\":.84./\"bytes_per_step\":84/' \"$metrics\"; }");
  SECTION("on what they choose by themselves") {
    const auto result = bench.run(small_and({"--peers", "c10d", "--json"}));
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    const json document = json::parse(result.out);
    check_report(document);
    const json peer = run_of(document, "c10d", "reducer");
    CHECK(peer.at("name") == "T/weak/c10d_reducer/spawn/shm/ranks:2");
    CHECK(peer.at("backend") == "shm");
    CHECK(peer.at("comm").at("bytes_per_step") == 84);
    CHECK(peer.at("comm").at("bucket_bytes").empty());
    CHECK(read_file(bench.bin() / "peer_c10d.calls").find("--backend shm ") != std::string::npos);
  }
  SECTION("on those that are named and can be started") {
    write_program(bench.root() / "path" / "mpirun", "#!/bin/sh\n");
    const auto result =
        bench.run({"--models", "T", "--world-sizes", "2", "--launchers", "spawn,mpirun",
                   "--backends", "shm,gloo,mpi", "--peers", "c10d", "--benchmark_list_tests"});
    INFO(result.err);
    CHECK(result.exit_code == 0);
    for (const char* backend : {"shm", "gloo"}) {
      CHECK(result.out.find("/c10d_reducer/spawn/" + std::string(backend) + "/ranks:2") !=
            std::string::npos);
    }
    CHECK(result.out.find("/c10d_reducer/spawn/mpi") == std::string::npos);
    CHECK(result.out.find("/04_ddp_launcher/mpirun/mpi") != std::string::npos);
  }
}

TEST_CASE("inside an allocation srun starts ranks, on several nodes too", "[bench]") {
  FakeBench bench;
  bench.install_srun();
  write_program(bench.bin() / "05_multinode", ddp::test::kFakeStage);
  SECTION("outside of one it is not asked") {
    const auto result = bench.run({"--models", "T", "--dry-run"});
    CHECK(result.exit_code == 0);
    CHECK(result.out.find("srun") == std::string::npos);
    CHECK(bench.run({"--launchers", "srun", "--dry-run"}).exit_code == 2);
  }
  SECTION("one node: beside the other launchers") {
    bench.enter_allocation();
    const auto result = bench.run({"--models", "T", "--world-sizes", "2", "--dry-run"});
    CHECK(result.exit_code == 0);
    CHECK(result.out.find("srun --relative=0 --nodes=1 --ntasks=2 --ntasks-per-node=2") !=
          std::string::npos);
  }
  SECTION("ranks share the CPUs that the job has") {
    struct Case {
      std::string per_task;
      std::string on_node;
      std::string options;
    };
    for (const Case& c :
         {Case{"12", "96", "--cpus-per-task=12 "}, Case{"2", "6", "--cpus-per-task=1 "},
          Case{"1", "2", "--cpus-per-task=1 --overcommit "}}) {
      bench.enter_allocation(
          {{"SLURM_CPUS_PER_TASK", c.per_task}, {"SLURM_CPUS_ON_NODE", c.on_node}});
      const auto result =
          bench.run({"--models", "T", "--world-sizes", "4", "--launchers", "srun", "--dry-run"});
      INFO(result.out);
      CHECK(result.out.find(c.options + bench.bin().string()) != std::string::npos);
    }
  }
  SECTION("two nodes: stage 05") {
    bench.enter_allocation();
    const auto result =
        bench.run({"--models", "T", "--world-sizes", "4", "--launchers", "srun", "--nodes", "2",
                   "--steps", "20", "--repetitions", "1", "--json"});
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    const json document = json::parse(result.out);
    check_report(document);
    const json run = run_of(document, "05_multinode");
    CHECK(run.at("name") == "T/weak/05_multinode/srun/hierarchical/nodes:2/ranks:4");
    CHECK(run.at("nodes") == 2);
    CHECK(run.at("world_size") == 4);
    CHECK(run.at("launcher") == "srun");
    CHECK(read_file(bench.root() / "path" / "srun.calls").find("--nodes=2 --ntasks=4") !=
          std::string::npos);
    CHECK(run_of(document, "01_single_gpu").at("nodes") == 1);
  }
}

}  // namespace
