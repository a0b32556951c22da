// A run on the CPU loads no library of CUDA, NCCL or MPI, even if they are installed. The dynamic
// linker lists the libraries of every process of a run.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "common/base/files.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

namespace fs = std::filesystem;
using Argv = std::vector<std::string>;

struct Loaded {
  std::set<std::string> names;  ///< file names, without folders
  int processes = 0;
};

/// Runs a program with a fake CUDA driver.
/// @param argv the program's name, and options
Loaded libraries_of(const Argv& argv, bool must_succeed = true) {
  const ddp::ScratchFolder folder("ddp-libraries");
  ddp::test::RunOptions options;
  options.cwd = folder.path();
  options.timeout_seconds = 120;
  options.environment = {{"LD_DEBUG", "files"},
                         {"LD_DEBUG_OUTPUT", folder.path() + "/loaded"},
                         {"LD_LIBRARY_PATH", DDP_FAKE_DRIVER},
                         {"CUDA_VISIBLE_DEVICES", "0"}};
  Argv whole = argv;
  whole.front() = std::string(DDP_BIN_DIR) + "/" + argv.front();
  const ddp::test::RunResult result = ddp::test::run_program(whole, options);
  INFO(result.err);
  CHECK((result.exit_code == 0) == must_succeed);
  Loaded loaded;
  const std::regex initialised(R"(calling init: (\S+))");
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (!entry.path().filename().string().starts_with("loaded.")) {
      continue;
    }
    ++loaded.processes;
    std::ifstream lines(entry.path());
    for (std::string line; std::getline(lines, line);) {
      if (std::smatch match; std::regex_search(line, match, initialised)) {
        loaded.names.insert(fs::path(match[1].str()).filename());
      }
    }
  }
  return loaded;
}

/// Libraries that a run on the CPU must not load. libcudart is allowed, because PyTorch's
/// libtorch_cpu.so itself is linked to it.
Argv unwanted_in(const Loaded& loaded) {
  static const std::regex unwanted(
      "lib(ddp_cuda|ddp_mpi|torch_cuda|c10_cuda|cuda|nvidia|nccl|cudnn|cublas|mpi|open-rte|"
      "open-pal|pmix)[^a-z].*");
  Argv found;
  std::ranges::copy_if(loaded.names, std::back_inserter(found),
                       [](const std::string& name) { return std::regex_match(name, unwanted); });
  return found;
}

bool has(const Loaded& loaded, const std::string& part) {
  return std::ranges::any_of(
      loaded.names, [&](const std::string& name) { return ddp::test::contains(name, part); });
}

}  // namespace

TEST_CASE("a run on the CPU loads nothing of CUDA, NCCL or MPI", "[cpu]") {
  for (const std::string line :
       {"01_single_gpu 1 1 --device cpu", "02_data_parallel 1 1 --device cpu --nprocs 2",
        "03_ddp_spawn 1 1 --device cpu --nprocs 2",
        "03_ddp_spawn_fused 1 1 --device cpu --nprocs 2 --backend gloo",
        "04_ddp_launcher 1 1 --device cpu",
        // Not with mpirun, which bench would ask for its version.
        "bench --dry-run --device cpu --stages 01_single_gpu --launchers spawn --models T",
        "ddp-env"}) {
    const Argv argv = ddp::test::words(line);
    const Loaded loaded = libraries_of(argv);
    INFO(line);
    CHECK(unwanted_in(loaded) == Argv{});
    // The run was seen, with all its processes.
    const bool uses_torch = argv.front() != "bench" && argv.front() != "ddp-env";
    CHECK(has(loaded, "libtorch_cpu.so") == uses_torch);
    const bool spawns = line.starts_with("03_");
    CHECK(loaded.processes >= (spawns ? 3 : 1));
  }
}

TEST_CASE("another LibTorch in LD_LIBRARY_PATH is not taken", "[cpu]") {
  const ddp::ScratchFolder folder("ddp-libraries");
  ddp::test::RunOptions options;
  options.environment = {{"LD_LIBRARY_PATH", folder.path()}};
  for (const char* const name : {"libtorch_cpu.so", "libc10.so", "libtorch_cuda.so"}) {
    ddp::replace_file("library", folder.path() + "/" + name, "of another version");
  }
  for (const std::string program : {"01_single_gpu", "03_ddp_spawn", "05_multinode", "bench_micro",
                                    "collectives", "peer_c10d"}) {
    const auto result = ddp::test::run_program({DDP_BIN_DIR "/" + program, "--version"}, options);
    INFO(program << result.err);
    CHECK(result.exit_code == 0);
  }
}

// The reverse, so that the test is known to see these libraries.

TEST_CASE("--backend mpi loads MPI", "[mpi]") {
  const Loaded loaded =
      libraries_of({"04_ddp_launcher", "1", "1", "--device", "cpu", "--backend", "mpi"});
  CHECK(has(loaded, "libddp_mpi.so"));
  CHECK(unwanted_in(loaded).size() > 1);
}

TEST_CASE("--device cuda loads CUDA", "[cuda]") {
  // It fails later, because the device is fake.
  const Loaded loaded = libraries_of({"01_single_gpu", "1", "1", "--device", "cuda"}, false);
  CHECK(has(loaded, "libddp_cuda.so"));
  CHECK(has(loaded, "libtorch_cuda.so"));
  CHECK(unwanted_in(loaded).size() > 2);
}
