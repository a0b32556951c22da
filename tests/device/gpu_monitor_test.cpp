// The GPU monitor, with fake libraries of NVML and of the driver.
#include "common/device/gpu_monitor.hpp"

#include <cstdlib>

#include "tests/support/catch.hpp"

TEST_CASE("GPU usage is that of the GPUs that a run uses, the mean over samples and GPUs") {
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
