// Number of GPUs of a process, with a fake driver. HTCondor and Slurm give GPUs by
// CUDA_VISIBLE_DEVICES, as indices or UUIDs; only the driver may read that.

#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

using ddp::test::contains;
using ddp::test::RunResult;
using Variables = std::map<std::string, std::optional<std::string>>;

RunResult run(const std::vector<std::string>& argv, Variables variables) {
  variables["LD_LIBRARY_PATH"] = DDP_FAKE_DRIVER;
  ddp::test::RunOptions options;
  options.environment = std::move(variables);
  return ddp::test::run_program(argv, options);
}

std::string devices(Variables variables) {
  return run({DDP_DEVICE_COUNT_HELPER}, std::move(variables)).out;
}

RunResult stage(const std::string& program, const Variables& variables,
                const std::string& more = "") {
  std::vector<std::string> argv = ddp::test::words("x 2 1 --timeout 1 " + more);
  argv[0] = std::string(DDP_BIN_DIR) + "/" + program;
  return run(argv, variables);
}

}  // namespace

TEST_CASE("what CUDA_VISIBLE_DEVICES names, the driver counts") {
  const std::string third = "03030303-0303-0303-0303-030303030303\n";
  CHECK(devices({{"CUDA_VISIBLE_DEVICES", "3"}}) == "1\n" + third);
  CHECK(devices({{"CUDA_VISIBLE_DEVICES", "1,3"}}) ==
        "2\n01010101-0101-0101-0101-010101010101\n" + third);
  CHECK(devices({{"CUDA_VISIBLE_DEVICES", "GPU-8932f937"}}).starts_with("1\n8932f937-"));
  for (const char* const none : {"", "NoDevFiles"}) {
    CHECK(devices({{"CUDA_VISIBLE_DEVICES", none}}) == "0\n");
  }
  // A broken driver counts as no GPU.
  CHECK(devices({{"CUDA_VISIBLE_DEVICES", "0"}, {"FAKE_DRIVER_FAILS", "803"}}) == "0\n");
  // All tests but the GPU tests run as on a machine without GPUs.
  CHECK(devices({}) == "0\n");
}

TEST_CASE("on a second node a rank takes the device of its local rank", "[stage]") {
  // Two nodes with 8 GPUs each, and the first rank of the second node.
  const RunResult run = stage("05_multinode", {{"CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7"},
                                               {"RANK", "8"},
                                               {"WORLD_SIZE", "16"},
                                               {"LOCAL_RANK", "0"},
                                               {"LOCAL_WORLD_SIZE", "8"},
                                               {"MASTER_ADDR", "127.0.0.1"},
                                               {"MASTER_PORT", "1"}});
  // It fails later, because the device is fake.
  CHECK(run.exit_code != 0);
  CHECK(contains(run.err, "[rank 8] "));
  CHECK_FALSE(contains(run.err, "no device of its own"));
}

TEST_CASE("a process to which its launcher shows one device uses that", "[stage]") {
  Variables variables = {{"CUDA_VISIBLE_DEVICES", "3"}, {"RANK", "1"},
                         {"WORLD_SIZE", "2"},           {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},     {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", "1"}};
  const RunResult launched = stage("05_multinode", variables);
  CHECK(launched.exit_code != 0);
  CHECK_FALSE(contains(launched.err, "no device of its own"));
  const std::string no_device = "local rank 1 has no device of its own";
  CHECK(contains(stage("05_multinode", variables, "--devices 0").err, no_device));
  // All ranks that stage 03 starts see the same device.
  variables["DDP_LAUNCHER"] = "spawn";
  variables["DDP_STORE_FILE"] = "/nowhere";
  CHECK(contains(stage("03_ddp_spawn", variables, "--nprocs 2").err, no_device));
}
