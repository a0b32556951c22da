// NVML as it is used, with a library of that name whose answers are known.
#include "common/launch/gpu_monitor.hpp"

#include <cmath>
#include <cstdlib>

#include "tests/catch.hpp"

TEST_CASE("GPU usage is the mean over samples and GPUs", "[gpu_monitor]") {
  ddp::GpuMonitor monitor;
  CHECK(!monitor.take());
  const auto first = monitor.sample();
  monitor.sample();
  const auto usage = monitor.take();
  REQUIRE(usage);
  // Two GPUs: 40 and 60 % at the first look, 50 and 70 % at the second; 100 and 300 W.
  CHECK(std::abs(usage->utilisation_percent - 55) < 1e-9);
  CHECK(std::abs(usage->power_w - 200) < 1e-9);
  CHECK(std::abs(usage->memory_mib - 3072) < 1e-9);
  CHECK(usage->gpus == 2);
  CHECK(!monitor.take());
  REQUIRE(first);
  CHECK(std::abs(first->utilisation_percent - 50) < 1e-9);
  CHECK(std::abs(first->power_w * first->gpus - 400) < 1e-9);
}

TEST_CASE("GPU usage is that of the GPUs that a run uses", "[used]") {
  setenv("CUDA_VISIBLE_DEVICES", "0,5", /*overwrite=*/1);  // NVML has them the other way round
  ddp::GpuMonitor monitor;
  monitor.watch_first(1);
  monitor.sample();
  const auto one = monitor.take();
  REQUIRE(one);
  CHECK(std::abs(one->utilisation_percent - 60) < 1e-9);
  CHECK(std::abs(one->power_w - 300) < 1e-9);
  CHECK(std::abs(one->memory_mib - 1024) < 1e-9);
  monitor.watch_first(8);
  monitor.sample();
  const auto all = monitor.take();
  REQUIRE(all);
  CHECK(std::abs(all->power_w - 200) < 1e-9);
  monitor.watch_one(1);
  monitor.sample();
  const auto second = monitor.take();
  REQUIRE(second);
  CHECK(std::abs(second->power_w - 100) < 1e-9);
  monitor.watch_one(2);  // there is none
  monitor.sample();
  CHECK(!monitor.take());
  monitor.watch_first(0);
  monitor.sample();
  CHECK(!monitor.take());
}

TEST_CASE("a GPU that NVML does not know leaves the others their numbers", "[used]") {
  setenv("CUDA_VISIBLE_DEVICES", "2,5", /*overwrite=*/1);
  ddp::GpuMonitor monitor;
  monitor.watch_one(0);
  monitor.sample();
  CHECK(!monitor.take());
  monitor.watch_one(1);
  monitor.sample();
  const auto fifth = monitor.take();
  REQUIRE(fifth);
  CHECK(std::abs(fifth->power_w - 100) < 1e-9);
}
