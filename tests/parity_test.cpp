// Every stage ends on the weights of stage 01: the real programs, run to their end.
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>

#include "common/data/tensor_file.hpp"
#include "tests/catch.hpp"
#include "tests/support/processes.hpp"
#include "tests/support/run_program.hpp"

namespace {

namespace fs = std::filesystem;
using ddp::test::Program;
using ddp::test::run_program;
using ddp::test::RunOptions;
using ddp::test::RunResult;

struct Outcome {
  double moved = NAN;
  double accuracy = NAN;
  std::string digest;
  std::map<std::string, torch::Tensor> weights;
  std::vector<std::string> lines;
};

const std::string kBin = std::string(DDP_BIN_DIR) + "/";

/// The last run's files are gone when the next starts, so that nothing old can be read.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "ddp-parity-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file() const { return path_ / "weights.safetensors"; }

  RunOptions run_options() const {
    RunOptions options;
    options.cwd = path_;
    options.timeout_seconds = 120;
    options.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                           {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};
    return options;
  }

  Outcome run(std::vector<std::string> argv, const std::vector<std::string>& options) const {
    const fs::path snapshot = file();
    fs::remove(snapshot);
    argv.insert(argv.end(), options.begin(), options.end());
    argv.insert(argv.end(), {"--snapshot", snapshot.string()});
    const RunResult result = run_program(argv, run_options());
    INFO(argv[0] << " said:\n" << result.out << result.err);
    REQUIRE(result.exit_code == 0);
    Outcome outcome;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) {
      outcome.lines.push_back(line);
      static const std::regex last(
          R"(moved ([-+.\de]+) \| loss \S+(?: \| accuracy (\S+))? \| digest ([0-9a-f]{16}) \| step \S+ ms \| \d+ samples/s)");
      std::smatch match;
      if (std::regex_match(line, match, last)) {
        outcome.moved = std::stod(match[1]);
        outcome.accuracy = match[2].matched ? std::stod(match[2]) : NAN;
        outcome.digest = match[3];
      }
    }
    REQUIRE(!outcome.digest.empty());
    for (const auto& [name, tensor] : ddp::read_tensor_file(snapshot).tensors) {
      outcome.weights[name] = tensor;
    }
    return outcome;
  }

 private:
  fs::path path_;
};

/// Not `difference > bound`: NaN must fail.
bool agrees(double value, double reference, double relative) {
  return std::abs(value - reference) <= relative * std::abs(reference);
}

bool agrees(const Outcome& a, const Outcome& b) {
  if (!agrees(a.moved, b.moved, 1e-4) || a.weights.size() != b.weights.size()) {
    return false;
  }
  for (const auto& [name, weight] : b.weights) {
    const auto found = a.weights.find(name);
    if (found == a.weights.end() || !torch::allclose(found->second, weight, 1e-3, 1e-4)) {
      return false;
    }
  }
  return true;
}

std::vector<std::string> torchrun(int world_size) {
  return {DDP_TORCHRUN, "--standalone", "--nproc_per_node=" + std::to_string(world_size),
          "--no-python"};
}

std::vector<std::string> mpirun(int world_size) {
  return {"mpirun", "--oversubscribe", "-np", std::to_string(world_size)};
}

/// What the tests on Slurm and HTCondor train too (tests/clusters/stages.py): so all launchers are
/// compared with each other.
std::vector<std::string> launcher_workload() {
  std::ifstream file(std::string(DDP_SOURCE_DIR) + "/tests/data/launcher_workload.txt");
  return {std::istream_iterator<std::string>(file), std::istream_iterator<std::string>()};
}

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("the parity check notices NaN and wrong weights", "[parity]") {
  CHECK(agrees(1.00001, 1.0, 1e-4));
  CHECK_FALSE(agrees(1.001, 1.0, 1e-4));
  CHECK_FALSE(agrees(NAN, 1.0, 1e-4));
  CHECK_FALSE(agrees(1.0, NAN, 1e-4));
  Outcome right{1.0, NAN, "", {{"w", torch::ones({2})}}, {}};
  Outcome wrong = right;
  CHECK(agrees(right, wrong));
  wrong.weights["w"] = torch::tensor({1.0F, NAN});
  CHECK_FALSE(agrees(wrong, right));
}

TEST_CASE("every stage ends on stage 01's weights at every world size, over every backend",
          "[parity]") {
  const Folder folder;
  const std::vector<std::vector<std::string>> workloads = {
      {"4", "4", "--global-batch", "48"},
      {"3", "3", "--global-batch", "48", "--dataset", "digits"},
      {"2", "2", "--global-batch", "48", "--dataset", "digits", "--optimizer", "adam"},
      {"2", "2", "--global-batch", "48", "--dataset", "digits", "--optimizer", "momentum",
       "--accumulate", "2"}};
  for (const std::vector<std::string>& workload : workloads) {
    const Outcome reference = folder.run({kBin + "01_single_gpu"}, workload);
    const auto check = [&](const std::string& program, int world_size,
                           const std::vector<std::string>& more) {
      const Outcome outcome = folder.run(
          {kBin + program},
          workload + std::vector<std::string>{"--nprocs", std::to_string(world_size)} + more);
      INFO(program << " " << (more.empty() ? "" : more.back()) << ", world size " << world_size
                   << ": moved " << outcome.moved << ", stage 01 " << reference.moved);
      CHECK(agrees(outcome, reference));
    };
    for (const int world_size : {1, 2, 3, 4, 8}) {
      check("02_data_parallel", world_size, {});
      for (const std::string backend : {"gloo", "shm"}) {
        check("03_ddp_spawn", world_size, {"--backend", backend});
        check("03_ddp_spawn_by_hand", world_size, {"--backend", backend});
      }
    }
  }
}

TEST_CASE("stages 04 and 05 end on stage 01's weights under torchrun and mpirun",
          "[parity][launcher]") {
  const Folder folder;
  const std::vector<std::string> workload = launcher_workload();
  const Outcome reference = folder.run({kBin + "01_single_gpu"}, workload);
  for (const int world_size : {1, 2, 4}) {
    for (const std::string program : {"04_ddp_launcher", "05_multinode"}) {
      const std::vector<std::string> command = std::vector<std::string>{kBin + program} + workload;
      CHECK(agrees(folder.run(torchrun(world_size), command), reference));
      CHECK(agrees(folder.run(mpirun(world_size), command), reference));
    }
  }
}

TEST_CASE("with a sharded optimizer stage 03 ends on stage 01's weights at every world size",
          "[parity][shard]") {
  const Folder folder;
  const std::vector<std::string> shard = {"--shard-optimizer"};
  const std::vector<std::vector<std::string>> workloads = {
      {"2", "2", "--global-batch", "48", "--dataset", "digits"},
      {"2", "2", "--global-batch", "48", "--dataset", "digits", "--optimizer", "momentum",
       "--accumulate", "2"},
      {"2", "2", "--global-batch", "48", "--dataset", "digits", "--optimizer", "adam",
       "--bucket-mib", "0.01"},
      {"2", "2", "--global-batch", "48", "--dataset", "digits", "--optimizer", "adamw", "--speedup",
       "fused"}};
  for (const std::vector<std::string>& workload : workloads) {
    const Outcome reference = folder.run({kBin + "01_single_gpu"}, workload + shard);
    for (const int world_size : {1, 2, 3, 4, 8}) {
      const std::vector<std::string> options =
          workload + std::vector<std::string>{"--nprocs", std::to_string(world_size), "--backend",
                                              world_size % 3 == 2 ? "gloo" : "shm"};
      const Outcome sharded = folder.run({kBin + "03_ddp_spawn"}, options + shard);
      INFO("world size " << world_size << ": moved " << sharded.moved << ", stage 01 "
                         << reference.moved);
      CHECK(agrees(sharded, reference));
      if (world_size == 3) {
        CHECK(sharded.digest == folder.run({kBin + "03_ddp_spawn"}, options).digest);
        CHECK(agrees(folder.run({kBin + "03_ddp_spawn_by_hand"}, options + shard), reference));
      }
    }
  }
}

TEST_CASE("a snapshot is the same whether the optimizer was sharded, and over how many ranks",
          "[parity][snapshot][shard]") {
  // (ranks, sharded) of the first half and of the second.
  struct Half {
    int world_size;
    bool sharded;
  };
  const std::vector<std::pair<Half, Half>> pairs = {{{2, false}, {2, true}},
                                                    {{2, true}, {2, false}},
                                                    {{3, true}, {2, false}},
                                                    {{4, true}, {1, true}}};
  for (const std::string speedup : {"none", "fused"}) {
    for (const auto& [first, second] : pairs) {
      const Folder folder;
      const auto run = [&](const Half& half, const std::string& epochs, const std::string& file) {
        std::vector<std::string> argv = {kBin + "03_ddp_spawn",
                                         epochs,
                                         "2",
                                         "--dataset",
                                         "digits",
                                         "--optimizer",
                                         "adam",
                                         "--global-batch",
                                         "48",
                                         "--speedup",
                                         speedup,
                                         "--nprocs",
                                         std::to_string(half.world_size),
                                         "--snapshot",
                                         folder.file() + file,
                                         "--resume",
                                         "auto"};
        if (half.sharded) {
          argv.emplace_back("--shard-optimizer");
        }
        const RunResult result = run_program(argv, folder.run_options());
        INFO(result.out << result.err);
        REQUIRE(result.exit_code == 0);
        return result.out.substr(result.out.find("digest "), 23);
      };
      const Half& a = first;
      const Half& b = second;
      INFO(speedup << ": " << a.world_size << (a.sharded ? " sharded" : "") << ", then "
                   << b.world_size << (b.sharded ? " sharded" : ""));
      run(a, "2", "");
      run({a.world_size, false}, "2", "-plain");
      const auto tensors = ddp::read_tensor_file(folder.file()).tensors;
      const auto plain = ddp::read_tensor_file(folder.file() + "-plain").tensors;
      REQUIRE(tensors.size() == plain.size());
      for (size_t i = 0; i < plain.size(); ++i) {
        CHECK(tensors[i].first == plain[i].first);
        CHECK(torch::equal(tensors[i].second, plain[i].second));
      }
      // The second half, from either, has the bits of the same without sharding.
      CHECK(run(b, "4", "") == run({b.world_size, false}, "4", "-plain"));
    }
  }
}

TEST_CASE("compressed gradients: half the bytes, about the same accuracy",
          "[parity][compression]") {
  const Folder folder;
  const auto bytes_of = [&](const std::vector<std::string>& options) {
    const std::string metrics = folder.file() + ".jsonl";
    folder.run({kBin + "03_ddp_spawn"}, options + std::vector<std::string>{"--metrics", metrics});
    std::ifstream in(metrics);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    const std::regex field(R"("bytes_per_step":(\d+))");
    std::smatch match;
    REQUIRE(std::regex_search(text, match, field));
    return std::stoll(match[1]);
  };
  for (const std::string speedup : {"none", "fused"}) {
    for (const std::string backend : {"gloo", "shm"}) {
      const std::vector<std::string> options = {"30",        "30",   "--dataset", "digits",
                                                "--nprocs",  "2",    "--backend", backend,
                                                "--speedup", speedup};
      const Outcome plain = folder.run({kBin + "03_ddp_spawn"}, options);
      const int64_t plain_bytes = bytes_of(options);
      for (const std::string compression : {"bf16", "fp16"}) {
        const std::vector<std::string> compressed =
            options + std::vector<std::string>{"--gradient-compression", compression};
        const Outcome outcome = folder.run({kBin + "03_ddp_spawn"}, compressed);
        INFO(speedup << ", " << backend << ", " << compression << ": accuracy " << outcome.accuracy
                     << ", uncompressed " << plain.accuracy);
        CHECK(std::abs(outcome.accuracy - plain.accuracy) <= 0.01);
        CHECK(agrees(outcome.moved, plain.moved, 1e-2));
        CHECK(outcome.digest != plain.digest);
        CHECK(2 * bytes_of(compressed) == plain_bytes);
      }
    }
  }
}

TEST_CASE("the bucket size changes no bit", "[parity]") {
  const Folder folder;
  const std::vector<std::string> options = {"2", "2", "--dataset", "digits", "--nprocs", "3"};
  for (const std::string speedup : {"none", "fused"}) {
    const std::vector<std::string> more = options + std::vector<std::string>{"--speedup", speedup};
    const std::string digest = folder.run({kBin + "03_ddp_spawn"}, more).digest;
    for (const std::string mib : {"0.0001", "0.02", "1", "100"}) {
      INFO(speedup << ", " << mib);
      CHECK(
          folder.run({kBin + "03_ddp_spawn"}, more + std::vector<std::string>{"--bucket-mib", mib})
              .digest == digest);
    }
  }
}

TEST_CASE("gradients that float16 cannot hold end the training, not the truth",
          "[parity][compression]") {
  const Folder folder;
  const RunResult result =
      run_program({kBin + "03_ddp_spawn", "2", "2", "--nprocs", "2", "--lr", "1e9",
                   "--gradient-compression", "fp16", "--snapshot", folder.file()},
                  folder.run_options());
  INFO(result.out << result.err);
  CHECK(result.exit_code == 1);
  CHECK(result.err.find("diverged in epoch 0") != std::string::npos);
}

TEST_CASE("a stopped run with a sharded optimizer goes on to the same bits",
          "[parity][snapshot][shard]") {
  const Folder folder;
  const std::vector<std::string> command = {kBin + "03_ddp_spawn",
                                            "60",
                                            "60",
                                            "--dataset",
                                            "digits",
                                            "--nprocs",
                                            "3",
                                            "--optimizer",
                                            "adam",
                                            "--shard-optimizer"};
  const Outcome unbroken = folder.run(command, {});
  const Folder broken;
  RunResult stopped;
  {
    Program run(command + std::vector<std::string>{"--snapshot", broken.file()},
                broken.run_options());
    REQUIRE(run.wait_for_output("Epoch 3 "));
    kill(run.pid(), SIGUSR1);
    stopped = run.wait();
  }
  INFO(stopped.out << stopped.err);
  CHECK(stopped.exit_code == 85);
  const RunResult resumed = run_program(
      command + std::vector<std::string>{"--snapshot", broken.file(), "--resume", "auto"},
      broken.run_options());
  INFO(resumed.out << resumed.err);
  CHECK(resumed.exit_code == 0);
  CHECK(resumed.out.find("Epoch 3 ") == std::string::npos);
  CHECK(resumed.out.find("digest " + unbroken.digest) != std::string::npos);
}

TEST_CASE("fused, every stage ends on the weights that stage 01 reaches with autograd",
          "[parity]") {
  const Folder folder;
  const std::vector<std::string> fused = {"--speedup", "fused"};
  const std::vector<std::vector<std::string>> workloads = {
      {"3", "3", "--global-batch", "48", "--dataset", "digits", "--deterministic"},
      {"2", "2", "--global-batch", "48", "--dataset", "digits", "--optimizer", "adamw",
       "--accumulate", "2"}};
  for (const std::vector<std::string>& workload : workloads) {
    const Outcome reference = folder.run({kBin + "01_single_gpu"}, workload);
    const Outcome alone = folder.run({kBin + "01_single_gpu"}, workload + fused);
    CHECK(agrees(alone, reference));
    CHECK(alone.digest != reference.digest);  // it was another engine
    CHECK(folder
              .run({kBin + "01_single_gpu"},
                   workload + fused + std::vector<std::string>{"--threads", "2"})
              .digest == alone.digest);
    for (const int world_size : {1, 2, 3, 4, 8}) {
      for (const std::string program :
           {"02_data_parallel", "03_ddp_spawn", "03_ddp_spawn_by_hand"}) {
        const Outcome outcome = folder.run(
            {kBin + program},
            workload + fused + std::vector<std::string>{"--nprocs", std::to_string(world_size)});
        INFO(program << ", world size " << world_size << ": moved " << outcome.moved
                     << ", stage 01 " << reference.moved);
        CHECK(agrees(outcome, reference));
        CHECK((outcome.digest == alone.digest) == (world_size == 1));
      }
    }
  }
}

TEST_CASE("fused, at world size 2 the digest is the same under every launcher, and in every run",
          "[parity][launcher]") {
  const Folder folder;
  const std::vector<std::string> workload = {"3",         "3",      "--global-batch", "64",
                                             "--dataset", "digits", "--speedup",      "fused"};
  const std::vector<std::string> two = workload + std::vector<std::string>{"--nprocs", "2"};
  const Outcome spawned = folder.run({kBin + "03_ddp_spawn"}, two);
  CHECK(folder.run({kBin + "03_ddp_spawn"}, two).digest == spawned.digest);
  CHECK(folder.run({kBin + "03_ddp_spawn_by_hand"}, two).digest == spawned.digest);
  CHECK(folder.run(torchrun(2), std::vector<std::string>{kBin + "04_ddp_launcher"} + workload)
            .digest == spawned.digest);
  CHECK(
      folder.run(mpirun(2), std::vector<std::string>{kBin + "04_ddp_launcher"} + workload).digest ==
      spawned.digest);
}

TEST_CASE("fused, a resumed run has the bits of an unbroken one", "[parity][snapshot]") {
  const Folder folder;
  const std::vector<std::string> options = {"--dataset",   "digits", "--nprocs",  "2",
                                            "--optimizer", "adam",   "--speedup", "fused"};
  const std::string digest = folder.run({kBin + "03_ddp_spawn", "4", "2"}, options).digest;
  const std::string snapshot =
      fs::temp_directory_path() / ("ddp-fused-halves-" + std::to_string(getpid()));
  for (const std::string epochs : {"2", "4"}) {
    const RunResult result =
        run_program(std::vector<std::string>{kBin + "03_ddp_spawn", epochs, "2"} + options +
                    std::vector<std::string>{"--snapshot", snapshot, "--resume", "auto"});
    INFO(result.out << result.err);
    REQUIRE(result.exit_code == 0);
    CHECK((result.out.find("digest " + digest) != std::string::npos) == (epochs == "4"));
  }
  fs::remove(snapshot);
  fs::remove(snapshot + ".prev");
}

TEST_CASE("fused, the model is as talkative as it was", "[parity]") {
  const Folder folder;
  const std::vector<std::string> options = {"1", "1", "--verbose", "--dataset-size", "32"};
  const auto announced = [&](const std::vector<std::string>& more) {
    const Outcome outcome =
        folder.run({kBin + "02_data_parallel", "--nprocs", "2"}, options + more);
    return std::count(outcome.lines.begin(), outcome.lines.end(),
                      "In model: input [16, 20] on cpu");
  };
  CHECK(announced({}) == 2);
  CHECK(announced({"--speedup", "fused"}) == 2);
}

TEST_CASE("at world size 2 the digest is the same under every launcher, and in every run",
          "[parity][launcher]") {
  const Folder folder;
  const std::vector<std::string> workload = launcher_workload();
  const std::vector<std::string> two = workload + std::vector<std::string>{"--nprocs", "2"};
  const std::string digest = folder.run({kBin + "03_ddp_spawn"}, two).digest;
  CHECK(folder.run({kBin + "03_ddp_spawn"}, two).digest == digest);
  CHECK(folder.run({kBin + "03_ddp_spawn_by_hand"}, two).digest == digest);
  for (const std::string program : {"04_ddp_launcher", "05_multinode"}) {
    const std::vector<std::string> command = std::vector<std::string>{kBin + program} + workload;
    CHECK(folder.run(torchrun(2), command).digest == digest);
    CHECK(folder.run(mpirun(2), command).digest == digest);
  }
}

TEST_CASE("at world size 2 the digest is the same over every CPU backend", "[parity]") {
  const Folder folder;
  const std::vector<std::string> two = {"3",         "3",      "--global-batch", "64",
                                        "--dataset", "digits", "--nprocs",       "2"};
  const std::string digest = folder.run({kBin + "03_ddp_spawn"}, two).digest;
  for (const std::string program : {"03_ddp_spawn", "03_ddp_spawn_by_hand"}) {
    for (const std::string backend : {"gloo", "shm"}) {
      INFO(program << " " << backend);
      CHECK(folder.run({kBin + program}, two + std::vector<std::string>{"--backend", backend})
                .digest == digest);
    }
  }
}

TEST_CASE("no rank outlives a launcher that was killed", "[launcher]") {
  for (const std::vector<std::string>& launcher : {torchrun(2), mpirun(2)}) {
    const Folder folder;
    Program program(launcher + std::vector<std::string>{kBin + "04_ddp_launcher", "1000000",
                                                        "1000000", "--device", "cpu"},
                    folder.run_options());
    REQUIRE(program.wait_for_output("Epoch 3 "));
    const std::vector<pid_t> ranks = ddp::test::children_of(program.pid());
    REQUIRE(ranks.size() == 2);
    kill(program.pid(), SIGKILL);
    INFO(launcher[0]);
    CHECK(ddp::test::all_gone_within(ranks, 2));
  }
}

TEST_CASE("repeated runs have the same digest at any world size", "[parity]") {
  const Folder folder;
  const std::vector<std::string> workload = {"2", "2", "--dataset", "digits"};
  for (const std::string backend : {"gloo", "shm"}) {
    for (const std::string world_size : {"1", "3", "4", "8"}) {
      for (const std::string speedup : {"none", "fused"}) {
        const std::vector<std::string> options =
            workload + std::vector<std::string>{"--nprocs", world_size,  "--backend",
                                                backend,    "--speedup", speedup};
        INFO(backend << ", " << speedup << ", world size " << world_size);
        CHECK(folder.run({kBin + "03_ddp_spawn"}, options).digest ==
              folder.run({kBin + "03_ddp_spawn"}, options).digest);
      }
    }
  }
}

TEST_CASE("every rank prints every epoch, and rank 0 the last line", "[parity]") {
  const Folder folder;
  const Outcome outcome = folder.run({kBin + "03_ddp_spawn"}, {"3", "3", "--nprocs", "2"});
  const std::regex epoch(
      R"(\[CPU([01])\] Epoch ([012]) \| Batchsize: 32 \| Steps: 32 \| Loss: \d+\.\d{4})");
  CHECK(outcome.lines.size() == 7);
  CHECK(std::count_if(outcome.lines.begin(), outcome.lines.end(),
                      [&](const std::string& line) { return std::regex_match(line, epoch); }) == 6);
}

TEST_CASE("a resumed run has the bits of an unbroken one", "[parity][snapshot]") {
  for (const std::string optimizer : {"sgd", "momentum", "adam", "adamw"}) {
    const Folder folder;
    const std::vector<std::string> common = {"--dataset", "digits",      "--nprocs",
                                             "2",         "--optimizer", optimizer};
    const Outcome unbroken = folder.run({kBin + "03_ddp_spawn", "4", "2"}, common);
    // run() starts without a snapshot, so both halves happen in one folder by hand.
    const Folder halves;
    const std::string snapshot =
        fs::temp_directory_path() / ("ddp-halves-" + std::to_string(getpid()));
    const auto half = [&](const std::string& epochs) {
      const RunResult result =
          run_program(std::vector<std::string>{kBin + "03_ddp_spawn", epochs, "2"} + common +
                      std::vector<std::string>{"--snapshot", snapshot, "--resume", "auto"});
      INFO(result.err);
      REQUIRE(result.exit_code == 0);
      return result.out;
    };
    half("2");
    const std::string out = half("4");
    CHECK(out.find("Epoch 1 ") == std::string::npos);  // it did resume
    CHECK(out.find("digest " + unbroken.digest) != std::string::npos);
    char moved[32];
    std::snprintf(moved, sizeof(moved), "moved %#.6g ", unbroken.moved);
    CHECK(out.find(moved) != std::string::npos);
    fs::remove(snapshot);
    fs::remove(snapshot + ".prev");
  }
}

TEST_CASE("a run that a signal stopped, started again, has the bits of an unbroken one",
          "[parity][snapshot]") {
  const std::vector<std::vector<std::string>> programs = {
      {kBin + "01_single_gpu"},
      {kBin + "02_data_parallel", "--nprocs", "2"},
      {kBin + "03_ddp_spawn", "--nprocs", "2"},
      {kBin + "03_ddp_spawn_by_hand", "--nprocs", "2"},
      mpirun(2) + std::vector<std::string>{kBin + "04_ddp_launcher"}};
  for (const std::vector<std::string>& program : programs) {
    for (const int signal : {SIGUSR1, SIGUSR2}) {
      const Folder folder;
      // Saved by itself only at the end: a snapshot before that is the signal's.
      const std::vector<std::string> command =
          program + std::vector<std::string>{"--total-epochs", "60",     "--save-every", "60",
                                             "--dataset",      "digits", "--optimizer",  "adam"};
      const Outcome unbroken = folder.run(command, {});
      const Folder broken;
      RunResult stopped;
      {
        Program run(command + std::vector<std::string>{"--snapshot", broken.file()},
                    broken.run_options());
        REQUIRE(run.wait_for_output("Epoch 3 "));
        kill(run.pid(), signal);
        stopped = run.wait();
      }
      INFO(program[0] << ", signal " << signal << ": " << stopped.out << stopped.err);
      CHECK(stopped.exit_code == 85);
      CHECK(stopped.err.find("stopped on request after epoch ") != std::string::npos);
      CHECK(stopped.err.find("error: [rank") == std::string::npos);
      CHECK(stopped.out.find("Epoch 59 ") == std::string::npos);
      const RunResult resumed = run_program(
          command + std::vector<std::string>{"--snapshot", broken.file(), "--resume", "auto"},
          broken.run_options());
      INFO(resumed.out << resumed.err);
      CHECK(resumed.exit_code == 0);
      CHECK(resumed.out.find("Epoch 3 ") == std::string::npos);  // it did resume
      CHECK(resumed.out.find("digest " + unbroken.digest) != std::string::npos);
    }
  }
}

TEST_CASE("digits: 0.95 in every stage within 30 epochs", "[parity]") {
  const Folder folder;
  const std::vector<std::string> options = {"30", "30", "--dataset", "digits"};
  const std::vector<std::string> two = options + std::vector<std::string>{"--nprocs", "2"};
  CHECK(folder.run({kBin + "01_single_gpu"}, options).accuracy >= 0.95);
  CHECK(folder.run({kBin + "02_data_parallel"}, two).accuracy >= 0.95);
  CHECK(folder.run({kBin + "03_ddp_spawn"}, two).accuracy >= 0.95);
  CHECK(folder.run({kBin + "03_ddp_spawn_by_hand"}, two).accuracy >= 0.95);
  CHECK(folder.run(torchrun(2), std::vector<std::string>{kBin + "04_ddp_launcher"} + options)
            .accuracy >= 0.95);
}

TEST_CASE("fashion-mnist: 0.88 within 10 epochs, all stages within 0.003", "[fashion]") {
  const Folder folder;
  const std::vector<std::string> options = {
      "10", "10", "--dataset", "fashion-mnist", "--global-batch", "64"};
  const std::vector<std::string> two = options + std::vector<std::string>{"--nprocs", "2"};
  const double reference = folder.run({kBin + "01_single_gpu"}, options).accuracy;
  CHECK(reference >= 0.88);
  for (const std::string program : {"02_data_parallel", "03_ddp_spawn", "03_ddp_spawn_by_hand"}) {
    const double accuracy = folder.run({kBin + program}, two).accuracy;
    INFO(program << " " << accuracy << ", stage 01 " << reference);
    CHECK(std::abs(accuracy - reference) <= 0.003);
  }
  const double accuracy =
      folder.run(torchrun(2), std::vector<std::string>{kBin + "04_ddp_launcher"} + options)
          .accuracy;
  CHECK(std::abs(accuracy - reference) <= 0.003);
}

TEST_CASE("on a GPU every stage ends where the CPU does", "[.][gpu]") {
  const Folder folder;
  const std::vector<std::string> options = {"3", "3", "--dataset", "digits", "--global-batch",
                                            "48"};
  const std::vector<std::string> gpu = options + std::vector<std::string>{"--device", "cuda"};
  const Outcome reference =
      folder.run({kBin + "01_single_gpu"}, options + std::vector<std::string>{"--device", "cpu"});
  CHECK(agrees(folder.run({kBin + "01_single_gpu"}, gpu), reference));
  for (const std::string program : {"02_data_parallel", "03_ddp_spawn", "03_ddp_spawn_by_hand"}) {
    CHECK(agrees(folder.run({kBin + program}, gpu + std::vector<std::string>{"--nprocs", "1"}),
                 reference));
  }
  CHECK(agrees(folder.run({kBin + "04_ddp_launcher"}, gpu), reference));  // alone: world size 1
}

TEST_CASE("on a GPU the fused step and its CUDA Graph end where autograd on the CPU does",
          "[.][gpu]") {
  const Folder folder;
  // The last batch of an epoch is smaller; the learning rate changes with the epoch.
  const std::vector<std::vector<std::string>> workloads = {
      {"3", "3", "--dataset", "digits", "--global-batch", "48"},
      {"3", "3", "--global-batch", "48", "--dataset-size", "500"},
      {"3", "3", "--dataset", "digits", "--global-batch", "48", "--optimizer", "adam",
       "--accumulate", "3", "--lr-schedule", "linear"}};
  for (const std::vector<std::string>& workload : workloads) {
    const Outcome reference = folder.run({kBin + "01_single_gpu"},
                                         workload + std::vector<std::string>{"--device", "cpu"});
    for (const std::string speedup : {"fused", "graph"}) {
      const std::vector<std::string> gpu =
          workload + std::vector<std::string>{"--device", "cuda", "--speedup", speedup};
      const std::vector<std::string> one = gpu + std::vector<std::string>{"--nprocs", "1"};
      INFO("--speedup " << speedup);
      CHECK(agrees(folder.run({kBin + "01_single_gpu"}, gpu), reference));
      CHECK(agrees(folder.run({kBin + "03_ddp_spawn"}, one), reference));
      CHECK(agrees(folder.run({kBin + "03_ddp_spawn_by_hand"}, one), reference));
      CHECK(agrees(folder.run({kBin + "04_ddp_launcher"}, gpu), reference));
      CHECK(agrees(folder.run({kBin + "01_single_gpu"},
                              gpu + std::vector<std::string>{"--metrics", "m.jsonl"}),
                   reference));
      if (speedup == "fused") {
        CHECK(agrees(folder.run({kBin + "02_data_parallel"}, one), reference));
      }
    }
  }
}
