// A mistake is answered by one line on stderr, exit code 2, at once, and nothing is written.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

namespace fs = std::filesystem;

struct BadInput {
  std::string program;
  std::vector<std::string> options;
  std::map<std::string, std::optional<std::string>> environment;
  std::vector<std::string> named;  ///< what the line must mention
};

}  // namespace

TEST_CASE("bad input: one line, exit 2, nothing written", "[bad_input]") {
  std::string name = (fs::temp_directory_path() / "ddp-bad-XXXXXX").string();
  const fs::path folder = mkdtemp(name.data());
  const fs::path work = folder / "work";
  fs::create_directory(work);
  fs::create_directory(folder / "truncated");
  fs::copy(fs::path(DDP_SOURCE_DIR) / "data" / "digits.csv.gz", folder / "truncated");
  fs::resize_file(folder / "truncated" / "digits.csv.gz", 20000);

  const std::vector<BadInput> cases = {
      {"01_single_gpu", {"5", "1", "--epocs", "3"}, {}, {"--epocs"}},
      {"01_single_gpu", {"five", "1"}, {}, {"five"}},
      {"01_single_gpu", {"5", "0"}, {}, {"save", "0"}},
      {"01_single_gpu", {"5", "1", "--nprocs", "2"}, {}, {"--nprocs", "2"}},
      {"01_single_gpu", {"5", "1", "--device", "tpu"}, {}, {"--device", "tpu"}},
      {"01_single_gpu", {"5", "1", "--lr", "nan"}, {}, {"--lr", "nan"}},
      {"01_single_gpu",
       {"5", "1", "--speedup", "graph", "--device", "cpu"},
       {},
       {"--speedup graph", "cpu", "fused"}},
      {"02_data_parallel",
       {"5", "1", "--speedup", "graph", "--device", "cpu"},
       {},
       {"--speedup graph", "cpu", "fused"}},
      {"03_ddp_spawn",
       {"5", "1", "--nprocs", "2", "--speedup", "graph", "--device", "cpu"},
       {},
       {"--speedup graph", "cpu", "fused"}},
      {"01_single_gpu", {"5", "1", "--snapshot", "no/such/folder/x"}, {}, {"no/such/folder/x"}},
      {"01_single_gpu",
       {"5", "1"},
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}},
       {"world size 2"}},
      {"02_data_parallel", {"5", "1", "--nprocs", "0"}, {}, {"--nprocs", "0"}},
      {"03_ddp_spawn", {"5", "1", "--nprocs", "0"}, {}, {"--nprocs", "0"}},
      {"03_ddp_spawn", {"5", "1", "--bucket-mib", "0"}, {}, {"--bucket-mib", "\"0\"", "> 0"}},
      {"03_ddp_spawn", {"5", "1", "--bucket-mib", "1e9"}, {}, {"--bucket-mib", "1e9", "1048576"}},
      {"03_ddp_spawn", {"5", "1", "--bucket-mib", "nan"}, {}, {"--bucket-mib", "nan"}},
      {"03_ddp_spawn",
       {"5", "1", "--gradient-compression", "int8"},
       {},
       {"--gradient-compression", "int8", "bf16"}},
      {"03_ddp_spawn", {"5", "1", "--shard-optimizer=2"}, {}, {"--shard-optimizer", "2"}},
      {"03_ddp_spawn_by_hand",
       {"5", "1", "--nprocs", "2", "--gradient-compression", "bf16"},
       {},
       {"--gradient-compression", "bf16", "03_ddp_spawn compresses"}},
      {"03_ddp_spawn",
       {"5", "1", "--nprocs", "2", "--global-batch", "33"},
       {},
       {"--global-batch", "33", "2"}},
      {"03_ddp_spawn",
       {"5", "1", "--device", "cuda"},
       {{"CUDA_VISIBLE_DEVICES", ""}},
       {"--device cuda"}},
      {"03_ddp_spawn", {"5", "1", "--backend", "nccl", "--device", "cpu"}, {}, {"nccl", "cpu"}},
      {"03_ddp_spawn",
       {"5", "1", "--nprocs", "2", "--dataset", "digits", "--data-dir",
        (folder / "missing").string()},
       {},
       {"missing"}},
      {"03_ddp_spawn",
       {"5", "1", "--nprocs", "2", "--dataset", "digits", "--data-dir",
        (folder / "truncated").string()},
       {},
       {"digits.csv.gz"}},
      {"01_single_gpu",
       {"5", "1", "--dataset", "fashion-mnist", "--data-dir", (folder / "missing").string()},
       {},
       {"train-images"}},
      {"04_ddp_launcher",
       {"5", "1"},
       {{"RANK", "5"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}},
       {"RANK", "5"}},
      {"04_ddp_launcher",
       {"5", "1"},
       {{"RANK", "0"}, {"WORLD_SIZE", "0"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}},
       {"WORLD_SIZE", "0"}},
      {"04_ddp_launcher", {"5", "1", "--nprocs", "2"}, {}, {"--nprocs"}},
      {"04_ddp_launcher",
       {"5", "1"},
       {{"RANK", "1"},
        {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "no-such-host.invalid"},
        {"MASTER_PORT", "29500"}},
       {"no-such-host.invalid"}},
  };
  for (const BadInput& bad : cases) {
    ddp::test::RunOptions options;
    options.environment = bad.environment;
    options.cwd = work;
    std::vector<std::string> argv = {std::string(DDP_BIN_DIR) + "/" + bad.program};
    argv.insert(argv.end(), bad.options.begin(), bad.options.end());
    const ddp::test::RunResult result = ddp::test::run_program(argv, options);
    std::string command;
    for (const std::string& argument : argv) {
      command += argument + " ";
    }
    INFO(command << "\nstdout: " << result.out << "\nstderr: " << result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    for (const std::string& word : bad.named) {
      CHECK(result.err.find(word) != std::string::npos);
    }
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    CHECK(fs::is_empty(work));
  }
  fs::remove_all(folder);
}
