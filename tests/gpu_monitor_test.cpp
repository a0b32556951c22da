// NVML as bench uses it, with a library of that name whose answers are known.
#include "bench/run/gpu_monitor.hpp"

#include <cmath>

#include "tests/catch.hpp"

TEST_CASE("GPU usage is the mean over samples and GPUs", "[gpu_monitor]") {
  ddp::bench::GpuMonitor monitor;
  CHECK(!monitor.take());
  monitor.sample();
  monitor.sample();
  const auto usage = monitor.take();
  REQUIRE(usage);
  // Two GPUs: 40 and 60 % at the first look, 50 and 70 % at the second; 100 and 300 W.
  CHECK(std::abs(usage->utilisation_percent - 55) < 1e-9);
  CHECK(std::abs(usage->power_w - 200) < 1e-9);
  CHECK(std::abs(usage->memory_mib - 3072) < 1e-9);
  CHECK(!monitor.take());
}
