// A mistake is answered by one line on stderr, exit code 2, at once, and nothing is written.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/base/scratch_folder.hpp"
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
  const ddp::ScratchFolder scratch("ddp-bad");
  const fs::path folder = scratch.path();
  const fs::path work = folder / "work";
  fs::create_directory(work);
  fs::create_directory(folder / "truncated");
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
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
      {"03_ddp_spawn",
       {"5", "1", "--nprocs", "2", "--snapshot", "no/such/folder/x"},
       {},
       {"--snapshot", "no/such/folder/x"}},
      {"01_single_gpu", {"5", "1", "--snapshot", (folder / "pipe").string()}, {}, {"pipe"}},
      {"01_single_gpu",
       {"5", "1", "--resume", "auto", "--snapshot", (folder / "pipe").string()},
       {},
       {"pipe"}},
      {"01_single_gpu", {"5", "1", "--snapshot", "/dev/null"}, {}, {"--snapshot", "/dev/null"}},
      {"01_single_gpu", {"5", "1", "--snapshot", "a\nb/x"}, {}, {"a\\x0ab/x", "folder"}},
      {"01_single_gpu", {"5", "1", "--data-dir", "a\nb", "--dataset", "digits"}, {}, {"\\x0ab"}},
      {"01_single_gpu", {"5", "1", "--metrics", "no/such/m"}, {}, {"--metrics", "no/such/m"}},
      {"03_ddp_spawn",
       {"5", "1", "--nprocs", "2", "--metrics", work.string()},
       {},
       {"--metrics", "work"}},
      {"01_single_gpu", {"5", "1", "--lr", "1e308"}, {}, {"--lr", "1e308"}},
      {"01_single_gpu",
       {"5", "1", "--dataset-size", "9223372036854775807"},
       {},
       {"--dataset-size", "9223372036854775807"}},
      {"01_single_gpu",
       {"5", "1", "--batch-size", "9223372036854775807"},
       {},
       {"--batch-size", "9223372036854775807"}},
      {"01_single_gpu",
       {"5", "1", "--devices", "0"},
       {{"CUDA_VISIBLE_DEVICES", ""}},
       {"--devices"}},
      {"02_data_parallel",
       {"5", "1", "--devices", "0", "1"},
       {{"CUDA_VISIBLE_DEVICES", ""}},
       {"--devices"}},
      {"03_ddp_spawn",
       {"5", "1", "--devices", "0", "1"},
       {{"CUDA_VISIBLE_DEVICES", ""}},
       {"--devices"}},
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
}

namespace {

/// A shell command on a program's command line, in a folder that is gone afterwards.
ddp::test::RunResult shell(const std::string& script) {
  const ddp::ScratchFolder folder("ddp-bad");
  ddp::test::RunOptions options;
  options.cwd = folder.path();
  options.environment = {{"BIN", DDP_BIN_DIR}};
  return ddp::test::run_program({"sh", "-c", script}, options);
}

size_t lines(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TEST_CASE("what stdout does not take is an error", "[bad_input]") {
  // /dev/full takes nothing, as a full disk.
  for (const char* const command :
       {"01_single_gpu 2 1 > /dev/full", "01_single_gpu --help > /dev/full",
        "01_single_gpu --version > /dev/full", "02_data_parallel 2 1 > /dev/full",
        "03_ddp_spawn 2 1 --nprocs 2 > /dev/full", "01_single_gpu 2 1 >&-"}) {
    const ddp::test::RunResult result = shell(std::string("$BIN/") + command);
    INFO(command << "\n" << result.err);
    CHECK(result.exit_code == 1);
    CHECK(result.err.find("cannot write to stdout") != std::string::npos);
    CHECK(lines(result.err) == 1);
  }
}

TEST_CASE("a closed stdin or stderr disturbs nothing", "[bad_input]") {
  for (const char* const command : {"01_single_gpu 2 1 <&-", "03_ddp_spawn 2 1 --nprocs 2 <&-",
                                    "01_single_gpu 2 1 2>&-", "03_ddp_spawn 2 1 --nprocs 2 2>&-"}) {
    const ddp::test::RunResult result = shell(std::string("$BIN/") + command);
    INFO(command << "\n" << result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.err.empty());
    CHECK(result.out.find("moved ") != std::string::npos);
  }
}

TEST_CASE("training that diverges fails, in one line, and saves nothing of it", "[bad_input]") {
  for (const char* const command :
       {"01_single_gpu 3 1 --lr 5", "03_ddp_spawn 3 1 --nprocs 2 --lr 5",
        "03_ddp_spawn 3 1 --nprocs 2 --lr 5 --speedup fused"}) {
    const ddp::test::RunResult result =
        shell(std::string("$BIN/") + command +
              " --snapshot s; code=$?; [ ! -e s ] || exit 99; exit $code");
    INFO(command << "\n" << result.out << result.err);
    CHECK(result.exit_code == 1);
    CHECK(result.err.find("diverged in epoch 0") != std::string::npos);
    CHECK(lines(result.err) == 1);
    CHECK(result.out.find("moved") == std::string::npos);
  }
}

TEST_CASE("a damaged snapshot is refused by all ranks in one line", "[bad_input]") {
  const ddp::test::RunResult result = shell(
      "echo bad > s; echo worse > s.prev; $BIN/03_ddp_spawn 2 1 --nprocs 2 --resume auto "
      "--snapshot s");
  INFO(result.out << result.err);
  CHECK(result.exit_code == 3);
  CHECK(lines(result.err) == 1);
  CHECK(result.err.find("snapshot s holds") != std::string::npos);
  CHECK(result.err.find("snapshot s.prev holds") != std::string::npos);
}

TEST_CASE("another run's snapshot is refused by its name", "[bad_input]") {
  const ddp::test::RunResult result = shell(
      "for i in 1 2; do $BIN/01_single_gpu 2 1 --quiet --snapshot s > /dev/null; done; "
      "$BIN/01_single_gpu 4 1 --lr 0.02 --resume auto --snapshot s");
  INFO(result.out << result.err);
  CHECK(result.exit_code == 3);
  CHECK(result.err.find("snapshot s belongs to another run: it has lr") != std::string::npos);
  CHECK(lines(result.err) == 1);
}

TEST_CASE("a rank that stands still is named in one line", "[bad_input]") {
  // Usually the first is stopped while ranks meet and the second while they train.
  for (const char* const delay : {"0", "1"}) {
    const ddp::test::RunResult result = shell(
        std::string("$BIN/03_ddp_spawn 1000000000 1000000000 --nprocs 3 --timeout 2 --quiet & "
                    "until [ $(pgrep -P $! | wc -l) = 3 ]; do sleep 0.01; done; sleep ") +
        delay + "; kill -STOP $(pgrep -P $! | tail -n 1); wait $!");
    INFO(result.out << result.err);
    const bool had_met = result.err.find("rendezvous lacks") == std::string::npos;
    CHECK(result.exit_code == (had_met ? 1 : 75));
    CHECK(lines(result.err) == 1);
    CHECK(result.err.find("rank 2") != std::string::npos);
  }
}

TEST_CASE("a timeout below a millisecond is rounded up, not to nothing", "[bad_input]") {
  const ddp::test::RunResult result = shell(
      "port=$(python3 -c 'import socket; s = socket.socket(); s.bind((\"127.0.0.1\", 0)); "
      "print(s.getsockname()[1])'); timeout 30 $BIN/05_multinode 2 1 --rank 0 --world-size 2 "
      "--local-rank 0 --local-world-size 2 --master-addr 127.0.0.1 --master-port $port "
      "--timeout 0.0001");
  INFO(result.out << result.err);
  CHECK(result.exit_code == 75);
  CHECK(lines(result.err) == 1);
  CHECK(result.err.find("within 0.001 s") != std::string::npos);
}

TEST_CASE("samples per second are those that were there", "[bad_input]") {
  const ddp::test::RunResult result = shell(
      "$BIN/01_single_gpu 3 3 --batch-size 1000000 --quiet --snapshot s --metrics m && tail -n 1 "
      "m");
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  const nlohmann::json summary =
      nlohmann::json::parse(result.out.substr(result.out.find('{'))).at("summary");
  const double samples =
      summary.at("samples_per_second").get<double>() * summary.at("step_ms").get<double>() / 1000;
  CHECK(std::abs(samples - 2048) < 1);  // the whole data set
}
