// How many GPUs a process may use, with a driver that only pretends. HTCondor and Slurm say which
// in CUDA_VISIBLE_DEVICES, by index, by UUID or by MIG instance; only the driver may read that.
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/scratch_folder.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

using ddp::test::contains;

std::string devices(const std::string& visible, const std::string& variable = "X",
                    const std::string& value = "1", const std::string& ask = "") {
  ddp::test::RunOptions options;
  options.environment = {
      {"CUDA_VISIBLE_DEVICES", visible}, {"LD_LIBRARY_PATH", DDP_FAKE_DRIVER}, {variable, value}};
  std::vector<std::string> argv{DDP_DEVICE_COUNT_HELPER};
  if (!ask.empty()) {
    argv.push_back(ask);
  }
  const ddp::test::RunResult result = ddp::test::run_program(argv, options);
  INFO(result.err);
  CHECK(result.exit_code == 0);
  return result.out;
}

std::string uuids(const std::string& visible) {
  return devices(visible, "X", "1", "uuids");
}

}  // namespace

TEST_CASE("device count: what CUDA_VISIBLE_DEVICES names, the driver counts", "[device]") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"0,1,2", "3\n"},
      {"3", "1\n"},
      {"GPU-8932f937,GPU-3e74a9c1-1111-2222-3333-444455556666", "2\n"},
      {"MIG-3e74a9c1-1111-2222-3333-444455556666", "1\n"},
      {"MIG-GPU-3e74a9c1/1/0", "1\n"},
      {"", "0\n"},
      {"NoDevFiles", "0\n"},
  };
  for (const auto& [visible, expected] : cases) {
    INFO(visible);
    CHECK(devices(visible) == expected);
  }
  // A driver that is there and does not work is no GPU.
  CHECK(devices("GPU-8932f937", "FAKE_DRIVER_FAILS", "100") == "0\n");
  CHECK(devices("GPU-8932f937", "FAKE_DRIVER_FAILS", "803") == "0\n");
}

TEST_CASE("a device's UUID is that of the device, whatever number it has here", "[device]") {
  const std::string third = "\"03030303-0303-0303-0303-030303030303\"\n";
  CHECK(uuids("3") == third + "\"\"\n");
  CHECK(uuids("1,3") == "\"01010101-0101-0101-0101-010101010101\"\n" + third + "\"\"\n");
  CHECK(uuids("MIG-3e74a9c1-1111-2222-3333-444455556666") ==
        "\"3e74a9c1-1111-2222-3333-444455556666\"\n\"\"\n");
  CHECK(uuids("") == "\"\"\n");
}

TEST_CASE("bench counts as the stages do, and measures all of them", "[device]") {
  ddp::test::RunOptions options;
  options.environment = {{"CUDA_VISIBLE_DEVICES", "GPU-0a,GPU-0b,GPU-0c,GPU-0d,GPU-0e,GPU-0f"},
                         {"LD_LIBRARY_PATH", DDP_FAKE_DRIVER}};
  const ddp::test::RunResult result = ddp::test::run_program(
      {std::string(DDP_BIN_DIR) + "/bench", "--device", "cuda", "--models", "T", "--stages", "03",
       "--launchers", "spawn", "--benchmark_list_tests"},
      options);
  INFO(result.out << result.err);
  CHECK(result.exit_code == 0);
  for (const int ranks : {1, 2, 4, 6}) {
    CHECK(contains(result.out,
                   "T/weak/03_ddp_spawn/spawn/nccl/ranks:" + std::to_string(ranks) + "/"));
  }
  CHECK_FALSE(contains(result.out, "ranks:8"));
}

TEST_CASE("tests but those of GPUs run as on a machine without one", "[device]") {
  ddp::test::RunOptions options;
  options.environment["LD_LIBRARY_PATH"] = DDP_FAKE_DRIVER;
  const ddp::test::RunResult result = ddp::test::run_program({DDP_DEVICE_COUNT_HELPER}, options);
  CHECK(result.out == "0\n");
}

TEST_CASE("a driver that is older than the CUDA of the build is no GPU, and is told",
          "[device][stage]") {
  CHECK(devices("0,1", "FAKE_DRIVER_VERSION", std::to_string(DDP_CUDA_VERSION_MAJOR) + "000") ==
        "2\n");
  CHECK(devices("0,1", "FAKE_DRIVER_VERSION", "11040") == "0\n");
  ddp::test::RunOptions options;
  options.environment = {{"CUDA_VISIBLE_DEVICES", "0,1"},
                         {"LD_LIBRARY_PATH", DDP_FAKE_DRIVER},
                         {"FAKE_DRIVER_VERSION", "11040"}};
  const ddp::ScratchFolder folder("ddp-device-count");
  options.cwd = folder.path();
  const std::string too_old = "the CUDA driver is for CUDA 11.4, expected one for CUDA " +
                              std::to_string(DDP_CUDA_VERSION_MAJOR) +
                              " or newer, as LibTorch was built for";
  for (const auto& [program, note] :
       std::vector<std::pair<std::string, std::string>>{{"01_single_gpu", ""},
                                                        {"02_data_parallel", ""},
                                                        {"03_ddp_spawn", "; use --device cpu"}}) {
    INFO(program);
    const std::string path = std::string(DDP_BIN_DIR) + "/" + program;
    const ddp::test::RunResult automatic = ddp::test::run_program({path, "1", "1"}, options);
    CHECK(automatic.exit_code == 0);
    CHECK(automatic.err == program + ": note: --device auto uses the CPU: " + too_old + "\n");
    const ddp::test::RunResult asked =
        ddp::test::run_program({path, "1", "1", "--device", "cuda"}, options);
    CHECK(asked.exit_code == 2);
    CHECK(asked.err == program + ": error: --device cuda: " + too_old + note + "\n");
  }
  options.environment["FAKE_DRIVER_FAILS"] = "803";
  const ddp::test::RunResult broken =
      ddp::test::run_program({std::string(DDP_BIN_DIR) + "/01_single_gpu", "1", "1"}, options);
  CHECK(broken.err ==
        "01_single_gpu: note: --device auto uses the CPU: the CUDA driver cannot be used (cuInit "
        "gives 803), expected 0\n");
  const ddp::test::RunResult bench = ddp::test::run_program(
      {std::string(DDP_BIN_DIR) + "/bench", "--device", "cuda", "--dry-run"}, options);
  CHECK(bench.exit_code == 2);
  CHECK(contains(bench.err, "--device cuda: the CUDA driver cannot be used"));
}

TEST_CASE("on a second node stage 04 has no device for its rank, stage 05 has", "[device][stage]") {
  // Two nodes with 8 GPUs each, and the first rank of the second.
  ddp::test::RunOptions options;
  options.environment = {{"CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7"},
                         {"LD_LIBRARY_PATH", DDP_FAKE_DRIVER},
                         {"RANK", "8"},
                         {"WORLD_SIZE", "16"},
                         {"LOCAL_RANK", "0"},
                         {"LOCAL_WORLD_SIZE", "8"},
                         {"GROUP_RANK", "1"},
                         {"GROUP_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", "1"}};
  const auto run = [&](const std::string& program) {
    return ddp::test::run_program(
        {std::string(DDP_BIN_DIR) + "/" + program, "2", "1", "--timeout", "1"}, options);
  };
  const ddp::test::RunResult fourth = run("04_ddp_launcher");
  CHECK(fourth.exit_code == 2);
  CHECK(fourth.err ==
        "04_ddp_launcher: error: [rank 8] local rank 8 has no device of its own: got 8 CUDA "
        "devices, expected one per process on this node\n");
  // It goes on to a device that the driver only pretends to have.
  const ddp::test::RunResult fifth = run("05_multinode");
  INFO(fifth.err);
  CHECK(fifth.exit_code != 0);
  CHECK(contains(fifth.err, "[rank 8] "));
  CHECK_FALSE(contains(fifth.err, "no device of its own"));
}

TEST_CASE("a process to which its launcher shows one device uses that", "[device][stage]") {
  ddp::test::RunOptions options;
  options.environment = {{"CUDA_VISIBLE_DEVICES", "3"}, {"LD_LIBRARY_PATH", DDP_FAKE_DRIVER}};
  const std::string no_device =
      "local rank 1 has no device of its own: got 1 CUDA devices, expected one per process";
  const auto run = [&](const std::string& program, const std::vector<std::string>& more) {
    std::vector<std::string> argv{std::string(DDP_BIN_DIR) + "/" + program, "2", "1", "--timeout",
                                  "1"};
    argv.insert(argv.end(), more.begin(), more.end());
    return ddp::test::run_program(argv, options);
  };
  for (const auto& [name, value] : std::map<std::string, std::string>{{"RANK", "1"},
                                                                      {"WORLD_SIZE", "2"},
                                                                      {"LOCAL_RANK", "1"},
                                                                      {"LOCAL_WORLD_SIZE", "2"},
                                                                      {"MASTER_ADDR", "127.0.0.1"},
                                                                      {"MASTER_PORT", "1"}}) {
    options.environment[name] = value;
  }
  // Those that stage 03 starts see the same one. (Started as its second rank, without the first,
  // which would go on to a device that the driver only pretends to have.)
  options.environment["DDP_LAUNCHER"] = "spawn";
  options.environment["DDP_STORE_FD"] = "3";
  const ddp::test::RunResult third = run("03_ddp_spawn", {"--nprocs", "2"});
  CHECK(third.exit_code == 2);
  CHECK(contains(third.err, no_device));
  options.environment.erase("DDP_LAUNCHER");
  options.environment.erase("DDP_STORE_FD");
  for (const std::string program : {"04_ddp_launcher", "05_multinode"}) {
    // It goes on to a device that the driver only pretends to have.
    const ddp::test::RunResult launched = run(program, {});
    INFO(launched.err);
    CHECK(launched.exit_code != 0);
    CHECK(contains(launched.err, "[rank 1] "));
    CHECK_FALSE(contains(launched.err, "no device of its own"));
    const ddp::test::RunResult chosen = run(program, {"--devices", "0"});
    CHECK(contains(chosen.err, no_device));
  }
}

TEST_CASE("who asks for TF32 in the environment is told what that does", "[device][stage]") {
  for (const std::string program : {"01_single_gpu", "02_data_parallel"}) {
    for (const auto& [name, value, noted] : std::vector<std::tuple<std::string, std::string, bool>>{
             {"NVIDIA_TF32_OVERRIDE", "1", true},
             {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1", true},
             {"NVIDIA_TF32_OVERRIDE", "0", false}}) {
      ddp::test::RunOptions options;
      options.environment = {
          {"CUDA_VISIBLE_DEVICES", "0"}, {"LD_LIBRARY_PATH", DDP_FAKE_DRIVER}, {name, value}};
      const ddp::test::RunResult result =
          ddp::test::run_program({std::string(DDP_BIN_DIR) + "/" + program, "1", "1"}, options);
      INFO(program << ' ' << name << ' ' << result.err);
      CHECK(contains(result.err, program + ": note: " + name + "=1: products may be rounded") ==
            noted);
    }
  }
}
