// A mistake is answered by one line on stderr, exit code 2, at once, and nothing is written. What
// options_test holds of the command line and bad_environment_test of the launchers is not repeated.
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/scratch_folder.hpp"
#include "tests/catch.hpp"
#include "tests/support/processes.hpp"
#include "tests/support/run_program.hpp"

namespace {

namespace fs = std::filesystem;
using ddp::test::RunOptions;
using ddp::test::RunResult;
using ddp::test::words;

/// The program by its path, and what follows it on the command line.
std::vector<std::string> command(const std::string& line) {
  std::vector<std::string> argv = words(line);
  argv.front() = std::string(DDP_BIN_DIR) + "/" + argv.front();
  return argv;
}

/// A shell command on a program's command line, in a folder that is gone afterwards.
RunResult shell(const std::string& script) {
  const ddp::ScratchFolder folder("ddp-bad");
  RunOptions options;
  options.cwd = folder.path();
  options.environment = {{"BIN", DDP_BIN_DIR}};
  return ddp::test::run_program({"sh", "-c", script}, options);
}

/// It ended with `exit_code` and one line, which has all these `parts`.
void check_one_line(const RunResult& result, int exit_code, const std::vector<std::string>& parts) {
  INFO("stdout: " << result.out.substr(0, 1000) << "\nstderr: " << result.err);
  CHECK(result.exit_code == exit_code);
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  for (const std::string& part : parts) {
    INFO("expected " << part);
    CHECK(result.err.find(part) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("bad input: one line, exit 2, nothing written", "[bad_input]") {
  const ddp::ScratchFolder scratch("ddp-bad");
  const fs::path folder = scratch.path();
  const fs::path work = folder / "work";
  fs::create_directory(work);
  fs::create_directory(folder / "truncated");
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  fs::create_symlink("circle", folder / "circle");
  fs::create_symlink("no/such/folder/s", folder / "nowhere");
  fs::copy(fs::path(DDP_SOURCE_DIR) / "data" / "digits.safetensors", folder / "truncated");
  fs::resize_file(folder / "truncated" / "digits.safetensors", 20000);

  using Environment = std::map<std::string, std::optional<std::string>>;
  const Environment no_gpu = {{"CUDA_VISIBLE_DEVICES", ""}};
  const Environment no_host = {{"RANK", "1"},
                               {"WORLD_SIZE", "2"},
                               {"LOCAL_RANK", "0"},
                               {"LOCAL_WORLD_SIZE", "1"},
                               {"MASTER_ADDR", "no-such-host.invalid"},
                               {"MASTER_PORT", "29500"}};
  struct BadInput {
    std::string line;
    std::vector<std::string> named;
    Environment environment = {};
    int exit_code = 2;
  };
  const std::vector<BadInput> cases = {
      {"01_single_gpu 5 1 --epocs 3", {"--epocs"}},
      {"01_single_gpu 5 1 --nprocs 2", {"--nprocs", "2"}},
      {"04_ddp_launcher 5 1 --nprocs 2", {"--nprocs"}},
      {"01_single_gpu 5 1",
       {"world size 2"},
       {{"RANK", "1"},
        {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", "29500"}}},
      {"01_single_gpu 5 1 --batch-size 9223372036854775807",
       {"--batch-size", "9223372036854775807"}},
      {"01_single_gpu 5 1 --speedup graph --device cpu", {"--speedup graph", "cpu", "fused"}},
      {"02_data_parallel 5 1 --speedup graph --device cpu", {"--speedup graph", "cpu", "fused"}},
      {"03_ddp_spawn 5 1 --speedup graph --device cpu", {"--speedup graph", "cpu", "fused"}},
      {"01_single_gpu 5 1 --devices 0", {"--devices"}, no_gpu},
      {"02_data_parallel 5 1 --devices 0 1", {"--devices"}, no_gpu},
      {"03_ddp_spawn 5 1 --devices 0 1", {"--devices"}, no_gpu},
      {"03_ddp_spawn 5 1 --backend nccl --device cpu", {"nccl", "cpu"}},
      {"02_data_parallel_mirrored 5 1 --speedup fused",
       {"--speedup", "fused", "expected none", "02_data_parallel has fused"}},
      {"02_data_parallel_mirrored 5 1 --gradient-compression fp16",
       {"--gradient-compression", "fp16", "03_ddp_spawn compresses"}},
      {"03_ddp_spawn_by_hand 5 1 --gradient-compression bf16",
       {"--gradient-compression", "bf16", "03_ddp_spawn compresses"}},
      {"01_single_gpu 5 1 --snapshot no/such/folder/x", {"no/such/folder/x"}},
      {"03_ddp_spawn 5 1 --snapshot no/such/folder/x", {"--snapshot", "no/such/folder/x"}},
      {"01_single_gpu 5 1 --snapshot ../pipe", {"pipe"}},
      {"01_single_gpu 5 1 --resume auto --snapshot ../pipe", {"pipe"}},
      {"01_single_gpu 5 1 --snapshot /dev/null", {"--snapshot", "/dev/null"}},
      {"01_single_gpu 5 1 --snapshot a\nb/x", {"a\\x0ab/x", "folder"}},
      {"01_single_gpu 5 1 --snapshot .", {"--snapshot", "\".\""}},
      {"03_ddp_spawn 5 1 --snapshot " + std::string(240, 'n'),
       {"--snapshot", "240 bytes", "at most 229"}},
      {"01_single_gpu 5 1 --snapshot ../circle", {"--snapshot", "circle"}},
      {"01_single_gpu 5 1 --snapshot ../nowhere", {"--snapshot", "no/such/folder"}},
      {"01_single_gpu 5 1 --metrics no/such/m", {"--metrics", "no/such/m"}},
      {"03_ddp_spawn 5 1 --metrics .", {"--metrics", "\".\""}},
      {"01_single_gpu 5 1 --trace no/such/t", {"--trace", "no/such/t"}},
      {"03_ddp_spawn 5 1 --trace .", {"--trace", "\".\""}},
      {"01_single_gpu 5 1 --metrics t --trace ./t", {"--trace", "\"./t\"", "--metrics"}},
      {"03_ddp_spawn 5 1 --trace t --speedup graph", {"--trace", "--speedup graph", "fused"}},
      {"01_single_gpu 5 1 --data-dir a\nb --dataset digits", {"\\x0ab"}},
      {"03_ddp_spawn 5 1 --dataset digits --data-dir ../missing", {"missing"}},
      {"03_ddp_spawn 5 1 --dataset digits --data-dir ../truncated", {"digits.safetensors"}},
      {"01_single_gpu 5 1 --dataset fashion-mnist --data-dir ../missing", {"train-images"}},
      // Names of hosts may come late: this one is asked for until --timeout.
      {"04_ddp_launcher 5 1 --timeout 1", {"no-such-host.invalid"}, no_host, 75},
  };
  for (const BadInput& bad : cases) {
    RunOptions options;
    options.environment = bad.environment;
    options.cwd = work;
    const RunResult result = ddp::test::run_program(command(bad.line), options);
    INFO(bad.line);
    check_one_line(result, bad.exit_code, bad.named);
    CHECK(result.out.empty());
    CHECK(fs::is_empty(work));
  }
}

TEST_CASE("what stdout does not take is an error", "[bad_input]") {
  // /dev/full takes nothing, as a full disk.
  for (const char* const command :
       {"01_single_gpu 2 1 > /dev/full", "01_single_gpu --help > /dev/full",
        "01_single_gpu --version > /dev/full", "02_data_parallel 2 1 > /dev/full",
        "03_ddp_spawn 2 1 --nprocs 2 > /dev/full", "01_single_gpu 2 1 >&-"}) {
    INFO(command);
    check_one_line(shell(std::string("$BIN/") + command), 1, {"cannot write to stdout"});
  }
}

TEST_CASE("a closed stdin or stderr disturbs nothing", "[bad_input]") {
  for (const char* const command : {"01_single_gpu 2 1 <&-", "03_ddp_spawn 2 1 --nprocs 2 <&-",
                                    "01_single_gpu 2 1 2>&-", "03_ddp_spawn 2 1 --nprocs 2 2>&-"}) {
    const RunResult result = shell(std::string("$BIN/") + command);
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
    const RunResult result = shell(std::string("$BIN/") + command +
                                   " --snapshot s; code=$?; [ ! -e s ] || exit 99; exit $code");
    INFO(command);
    check_one_line(result, 1, {"diverged in epoch 0"});
    CHECK(result.out.find("moved") == std::string::npos);
  }
}

TEST_CASE("another run's snapshot is refused by the setting that differs", "[bad_input]") {
  struct Runs {
    std::string own;
    std::string other;
    std::string says;  // as many words as tell the setting from those that begin alike
  };
  const std::string same = "--layers 20,8,1 --lr 0.01 ";
  for (const auto& [own, other, says] :
       {Runs{same, "--layers 20,9,1 --lr 0.01", "layers 20,8,1, expected 20,9,1"},
        Runs{same, same + "--lr-schedule linear", "lr-schedule constant, expected linear over 4"},
        Runs{same + "--lr-schedule linear", same + "--lr-schedule linear",
             "lr-schedule linear over 2 epochs, expected linear over 4 epochs"},
        Runs{same, same + "--dataset-size 999", "dataset synthetic 2048+512 samples, "},
        Runs{same, same + "--optimizer adam", "optimizer sgd, expected adam"},
        Runs{same + "--optimizer momentum", same + "--optimizer adamw",
             "optimizer momentum, expected adamw"},
        Runs{same, "--layers 20,8,8,1 --lr 0.01", "layers 20,8,1, expected 20,8,8,1"},
        Runs{same, same + "--sampler none", "sampler distributed, expected none"},
        Runs{same, "--layers 20,8,1 --lr 0.02", "lr 0.01, expected 0.02"},
        Runs{same, same + "--sampler padded", "sampler distributed, expected padded"},
        Runs{same, same + "--global-batch 16", "global-batch 32, expected 16"},
        // The seed makes synthetic data, too.
        Runs{"--dataset digits", "--dataset digits --seed 7", "seed 42, expected 7"}}) {
    INFO(own << "; " << other);
    const std::string program = "$BIN/01_single_gpu --quiet --save-every 1 --snapshot s ";
    check_one_line(shell(program + "--total-epochs 2 " + own + " > /dev/null && " + program +
                         "--total-epochs 4 --resume auto " + other),
                   3, {"snapshot s belongs to another run: it has " + says});
  }
}

TEST_CASE("a rank that stands still while all train is named in one line", "[bad_input]") {
  const ddp::ScratchFolder folder("ddp-bad");
  RunOptions options;
  options.cwd = folder.path();
  // Long enough for three starts of LibTorch on a busy machine: the clock that counts begins when a
  // rank has been stopped.
  ddp::test::Program program(command("03_ddp_spawn 1000000000 1000000000 --nprocs 3 --timeout 10"),
                             options);
  REQUIRE(program.wait_for_output("Epoch 3 "));
  const std::vector<pid_t> ranks = ddp::test::children_of(program.pid());
  REQUIRE(ranks.size() == 3);
  kill(ranks[2], SIGSTOP);
  check_one_line(program.wait(), 1, {"rank 2"});
}

TEST_CASE("a thread that cannot be started is an error in one line", "[bad_input]") {
  for (const std::string line :
       {"02_data_parallel 2 1 --nprocs 3 --threads 1", "01_single_gpu 2 1 --threads 2",
        "02_data_parallel 2 1 --nprocs 3 --threads 1 --speedup fused",
        "01_single_gpu 2 1 --threads 2 --speedup fused"}) {
    for (const int from : {1, 2}) {  // of two that there are at a time
      const ddp::ScratchFolder folder("ddp-bad");
      RunOptions options;
      options.cwd = folder.path();
      options.environment = {{"LD_PRELOAD", DDP_NO_THREAD},
                             {"DDP_NO_THREAD_FROM", std::to_string(from)}};
      INFO(line << ", from thread " << from);
      check_one_line(ddp::test::run_program(command(line), options), 2,
                     {"a thread cannot be started", "ulimit -u"});
      CHECK(fs::is_empty(folder.path()));
    }
  }
}

TEST_CASE("a rank that does not come is named, and a timeout below a millisecond is rounded up",
          "[bad_input]") {
  // As under mpirun: rank 0 takes any free port, and tells the others in a file.
  const std::string rank0 =
      "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 "
      "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=job PMIX_SERVER_TMPDIR=$PWD "
      "$BIN/05_multinode 2 1 --timeout ";
  check_one_line(shell(rank0 + "2"), 75, {"within 2 s", "lacks rank 1"});
  check_one_line(shell(rank0 + "0.0001"), 75, {"within 0.001 s"});
}

TEST_CASE("samples per second are those that were there", "[bad_input]") {
  const RunResult result = shell(
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
