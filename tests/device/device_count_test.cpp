// Number of GPUs of a process, with a fake driver. HTCondor and Slurm give GPUs by
// CUDA_VISIBLE_DEVICES, as indices or UUIDs; only the driver may read that.

#include "tests/support/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

using ddp::test::contains;
using ddp::test::RunResult;

RunResult run(const std::string& command, const std::string& variables) {
  return ddp::test::run_program(
      ddp::test::words(command),
      {.environment = ddp::test::variables(variables + " LD_LIBRARY_PATH=" DDP_FAKE_DRIVER)});
}

/// Number and UUIDs of the devices. @param variables "A=1 B": A is set, B is not
std::string devices(const std::string& variables) {
  return run(DDP_DEVICE_COUNT_HELPER, variables).out;
}

RunResult stage(const std::string& line, const std::string& variables) {
  return run(DDP_BIN_DIR "/" + line + " --timeout 1",
             "MASTER_ADDR=127.0.0.1 MASTER_PORT=1 " + variables);
}

}  // namespace

TEST_CASE("what CUDA_VISIBLE_DEVICES names, the driver counts") {
  const std::string third = "03030303-0303-0303-0303-030303030303\n";
  CHECK(devices("CUDA_VISIBLE_DEVICES=3") == "1\n" + third);
  CHECK(devices("CUDA_VISIBLE_DEVICES=1,3") == "2\n01010101-0101-0101-0101-010101010101\n" + third);
  CHECK(devices("CUDA_VISIBLE_DEVICES=GPU-8932f937").starts_with("1\n8932f937-"));
  // A broken driver counts as no GPU; without variables, tests run as on a machine without GPUs.
  for (const char* const none : {"CUDA_VISIBLE_DEVICES=", "CUDA_VISIBLE_DEVICES=NoDevFiles",
                                 "CUDA_VISIBLE_DEVICES=0 FAKE_DRIVER_FAILS=803", ""}) {
    CHECK(devices(none) == "0\n");
  }
}

TEST_CASE("on a second node a rank takes the device of its local rank", "[stage]") {
  // Two nodes with 8 GPUs each, and the first rank of the second node.
  const RunResult run = stage("05_multinode 2 1",
                              "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 RANK=8 WORLD_SIZE=16 "
                              "LOCAL_RANK=0 LOCAL_WORLD_SIZE=8");
  // It fails later, because the device is fake.
  CHECK(run.exit_code != 0);
  CHECK(contains(run.err, "[rank 8] "));
  CHECK_FALSE(contains(run.err, "no device of its own"));
}

TEST_CASE("a process to which its launcher shows one device uses that", "[stage]") {
  const std::string variables =
      "CUDA_VISIBLE_DEVICES=3 RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2";
  const RunResult launched = stage("05_multinode 2 1", variables);
  CHECK(launched.exit_code != 0);
  CHECK_FALSE(contains(launched.err, "no device of its own"));
  const std::string no_device = "local rank 1 has no device of its own";
  CHECK(contains(stage("05_multinode 2 1 --devices 0", variables).err, no_device));
  // All ranks that stage 03 starts see the same device.
  const std::string spawned = variables + " DDP_LAUNCHER=spawn DDP_STORE_FILE=/nowhere";
  CHECK(contains(stage("03_ddp_spawn 2 1 --nprocs 2", spawned).err, no_device));
}
