// Number of GPUs of a process, with a fake driver. HTCondor and Slurm give GPUs by
// CUDA_VISIBLE_DEVICES, as indices or UUIDs; only the driver may read that.
#include <cstdlib>
#include <iostream>

#include "common/device/gpu_monitor.hpp"
#include "common/device/hardware.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/ranks_by_hand.hpp"

namespace {

RunResult run(const std::string& command, const std::string& variables) {
  return run_program(
      words(command),
      {.environment = ddp::test::variables(variables + " LD_LIBRARY_PATH=" DDP_FAKE_DRIVER)});
}

/// What the test case below prints in a process of its own. @param seen its CUDA_VISIBLE_DEVICES
std::string devices(const std::string& seen) {
  return run(own_cases("[.devices]"), "SEEN=" + seen).out;
}

RunResult stage(const std::string& line, const std::string& variables) {
  return run(DDP_BIN_DIR "/" + line + " --timeout 1",
             "MASTER_ADDR=127.0.0.1 MASTER_PORT=1 " + variables);
}

}  // namespace

TEST_CASE("number and UUIDs of this process's devices", "[.devices]") {
  setenv("CUDA_VISIBLE_DEVICES", std::getenv("SEEN"), /*overwrite=*/1);
  const int count = ddp::count_cuda_devices();
  std::cout << "devices: " << count << ';';
  for (int index = 0; index < count; ++index) {
    std::cout << ddp::cuda_device_uuid(index) << ';';
  }
  SUCCEED();
}

TEST_CASE("what CUDA_VISIBLE_DEVICES names, the driver counts") {
  const std::string third = "03030303-0303-0303-0303-030303030303;";
  for (const auto& [seen, found] : std::map<std::string, std::string>{
           {"3", "1;" + third},
           {"1,3", "2;01010101-0101-0101-0101-010101010101;" + third},
           {"GPU-8932f937", "1;8932f937-"},
           // A broken driver counts as no GPU.
           {"0 FAKE_DRIVER_FAILS=803", "0;"},
           {"NoDevFiles", "0;"},
           {"", "0;"}}) {
    CHECK_THAT(devices(seen), ContainsSubstring("devices: " + found));
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

TEST_CASE("GPU usage is that of the GPUs that a run uses, the mean over samples and GPUs",
          "[monitor]") {
  setenv("CUDA_VISIBLE_DEVICES", "3,0,5", /*overwrite=*/1);  // NVML has 5, 0
  ddp::GpuMonitor monitor;
  monitor.watch(1, 9);
  CHECK(!monitor.take());
  monitor.sample();
  monitor.sample();
  const auto all = monitor.take();
  REQUIRE(all);
  // 60 and 40 % in the first sample, 70 and 50 % in the second.
  CHECK(all->utilisation_percent == Approx(55));
  CHECK(all->memory_mib == Approx(3072));  // then half
  CHECK(!monitor.take());
  monitor.watch(1, 1);
  monitor.sample();
  const auto first = monitor.take();
  REQUIRE(first);
  CHECK(first->memory_mib == Approx(512));
  // No GPU, beyond the last one, and one that NVML does not know.
  for (const auto& [begin, devices] : {std::pair(0, 0), {3, 1}, {0, 9}}) {
    monitor.watch(begin, devices);
    monitor.sample();
    CHECK(!monitor.take());
  }
}
