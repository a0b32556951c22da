// Every stage ends on the weights of stage 01: the real programs, run to their end.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <regex>
#include <set>
#include <sstream>

#include "common/data/tensor_file.hpp"
#include "common/launch/device_count.hpp"
#include "tests/catch.hpp"
#include "tests/support/held_port.hpp"
#include "tests/support/run_program.hpp"

namespace {

namespace fs = std::filesystem;
using ddp::test::Program;
using ddp::test::RunOptions;
using ddp::test::RunResult;

struct Outcome {
  double moved = NAN;
  double accuracy = NAN;
  std::string digest;
  std::map<std::string, torch::Tensor> weights;
  std::vector<std::string> lines;
};

/// The words of `line`, with torchrun and the programs of this build by their paths.
std::vector<std::string> command(const std::string& line) {
  std::istringstream text(line);
  std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
  // Of the build that this program lies in, which may have been carried here: see tests/gpu.sh.
  const fs::path bin = fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin";
  for (std::string& word : words) {
    const fs::path program = bin / word;
    word = word == "torchrun" ? DDP_TORCHRUN : fs::exists(program) ? program.string() : word;
  }
  return words;
}

std::string torchrun(int world_size) {
  return "torchrun --standalone --no-python --nproc_per_node=" + std::to_string(world_size) + " ";
}

std::string mpirun(int world_size) {
  return "mpirun --oversubscribe -np " + std::to_string(world_size) + " ";
}

/// What a program says that has trained to its end.
Outcome outcome_of(const RunResult& result) {
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  static const std::regex last(
      R"(moved ([-+.\de]+) \| loss \S+(?: \| accuracy (\S+))? \| digest ([0-9a-f]{16}) \| step \S+ ms \| \d+ samples/s)");
  Outcome outcome;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    outcome.lines.push_back(line);
    std::smatch match;
    if (std::regex_match(line, match, last)) {
      outcome.moved = std::stod(match[1]);
      outcome.accuracy = match[2].matched ? std::stod(match[2]) : NAN;
      outcome.digest = match[3];
    }
  }
  REQUIRE(!outcome.digest.empty());
  return outcome;
}

/// Where programs run, and their snapshot lies.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "ddp-parity-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file(const std::string& name = "weights.safetensors") const { return path_ / name; }

  Program start(const std::string& line,
                const std::string& snapshot = "weights.safetensors") const {
    RunOptions options;
    options.cwd = path_;
    options.timeout_seconds = 120;
    options.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                           {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};
    std::vector<std::string> argv = command(line);
    argv.insert(argv.end(), {"--snapshot", snapshot});
    return Program(argv, options);
  }

  /// Trains from the beginning. The file of the run before is gone first: nothing old can be read.
  Outcome run(const std::string& line) const {
    INFO(line);
    fs::remove(file());
    return with_weights(outcome_of(start(line).wait()));
  }

  /// As ranks of one host that no launcher started.
  Outcome run_ranks(const std::string& line, int world_size) const {
    INFO(line);
    fs::remove(file());
    const ddp::test::HeldPort port;
    const std::string size = std::to_string(world_size);
    std::vector<std::unique_ptr<Program>> ranks;
    for (int i = 0; i < world_size; ++i) {
      const std::string rank = std::to_string(i);
      ranks.emplace_back(
          new Program(start(line + " --rank " + rank + " --local-rank " + rank + " --world-size " +
                            size + " --local-world-size " + size +
                            " --master-addr 127.0.0.1 --master-port " + port.number())));
    }
    const Outcome outcome = with_weights(outcome_of(ranks[0]->wait()));
    for (auto rank = ranks.begin() + 1; rank != ranks.end(); ++rank) {
      CHECK((*rank)->wait().exit_code == 0);
    }
    return outcome;
  }

  /// Goes on from the snapshot of that name, if it is there.
  Outcome resume(const std::string& line,
                 const std::string& snapshot = "weights.safetensors") const {
    INFO(line);
    return outcome_of(start(line + " --resume auto", snapshot).wait());
  }

 private:
  Outcome with_weights(Outcome outcome) const {
    for (const auto& [name, tensor] : ddp::read_tensor_file(file()).tensors) {
      outcome.weights[name] = tensor;
    }
    return outcome;
  }

  fs::path path_;
};

/// Not `difference > bound`: NaN must fail.
bool agrees(double value, double reference, double relative) {
  return std::abs(value - reference) <= relative * std::abs(reference);
}

bool agrees(const Outcome& a, const Outcome& b) {
  return agrees(a.moved, b.moved, 1e-4) && a.weights.size() == b.weights.size() &&
         std::ranges::all_of(b.weights, [&](const auto& item) {
           const auto found = a.weights.find(item.first);
           return found != a.weights.end() &&
                  torch::allclose(found->second, item.second, 1e-3, 1e-4);
         });
}

bool prints_epoch(const Outcome& outcome, int epoch) {
  const std::string text = "Epoch " + std::to_string(epoch) + " ";
  return std::ranges::any_of(
      outcome.lines, [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

/// @return the outcome, and what a rank gives to the all-reduces of a step
std::pair<Outcome, long long> run_and_count_bytes(const Folder& folder, const std::string& line) {
  const Outcome outcome = folder.run(line + " --metrics m");
  std::ifstream in(folder.file("m"));
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  std::smatch match;
  REQUIRE(std::regex_search(text, match, std::regex(R"("bytes_per_step":(\d+))")));
  return {outcome, std::stoll(match[1])};
}

const std::string kDigits = " 2 2 --global-batch 48 --dataset digits";

/// @param exit_code of whoever got the signal
void check_that_a_stopped_run_goes_on(const std::string& program, int signal, int exit_code) {
  const Folder folder;
  const std::string options = program + " --dataset digits --optimizer adam ";
  // It has a million epochs to go when it is asked to stop, and the snapshot is the signal's.
  Program run = folder.start(options + "--save-every 1000000 --total-epochs 1000000");
  REQUIRE(run.wait_for_output("Epoch 3 "));
  kill(run.pid(), signal);
  const RunResult stopped = run.wait();
  INFO(program << ", signal " << signal << ": " << stopped.err);
  CHECK(stopped.exit_code == exit_code);
  CHECK(stopped.err.find("error: [rank") == std::string::npos);
  std::smatch match;
  REQUIRE(
      std::regex_search(stopped.err, match, std::regex("stopped on request after epoch (\\d+)")));
  const int last_epoch = std::stoi(match[1]);
  CHECK(stopped.out.find("Epoch " + std::to_string(last_epoch + 1) + " ") == std::string::npos);
  const std::string whole =
      options + "--save-every 1 --total-epochs " + std::to_string(last_epoch + 3);
  const Outcome resumed = folder.resume(whole);
  CHECK_FALSE(prints_epoch(resumed, last_epoch));
  CHECK(prints_epoch(resumed, last_epoch + 1));
  CHECK(resumed.digest == folder.run(whole).digest);
}

/// What the [gpu] cases run on.
struct Accelerator {
  std::string device = "cuda";
  std::vector<std::string> speedups = {"none", "fused", "graph"};
  int count = std::min(ddp::count_cuda_devices(), 8);

  std::string options(const std::string& speedup) const {
    return " --device " + device + " --speedup " + speedup;
  }
};

/// Says what it is. DDP_TEST_DEVICE=cpu tries the cases themselves where there is no GPU, with what
/// a CPU has in the place of NCCL and of CUDA Graphs.
Accelerator accelerator() {
  const char* const device = std::getenv("DDP_TEST_DEVICE");
  Accelerator found;
  if (device != nullptr && std::string(device) == "cpu") {
    found = {.device = "cpu", .speedups = {"none", "fused"}, .count = 2};
  }
  REQUIRE(found.count > 0);
  std::cout << "used: " << found.count << " devices, " << found.device << std::endl;
  if (found.device == "cuda" && std::system("nvidia-smi -L") != 0) {
    std::cout << "used: found no nvidia-smi that names them\n";
  }
  return found;
}

/// The version that NCCL has printed.
void print_nccl(const Outcome& outcome) {
  for (const std::string& line : outcome.lines) {
    if (line.starts_with("NCCL version")) {
      std::cout << "used: " << line << std::endl;
    }
  }
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

TEST_CASE(
    "every stage ends on stage 01's weights at every world size, over every backend, and 03 "
    "on the same bits each time; with up to two replicas that are kept mirrored, too",
    "[parity]") {
  const Folder folder;
  const Outcome reference = folder.run("01_single_gpu" + kDigits);
  for (const int world_size : {1, 2, 3, 4, 8}) {
    const std::string options = kDigits + " --nprocs " + std::to_string(world_size);
    INFO("world size " << world_size << ", stage 01 moved " << reference.moved);
    CHECK(agrees(folder.run("02_data_parallel" + options), reference));
    const Outcome mirrored = folder.run("02_data_parallel_mirrored" + options);
    CHECK(agrees(mirrored, reference));
    CHECK(agrees(folder.run("03_ddp_spawn_by_hand" + options), reference));
    for (const std::string backend : {" --backend gloo", " --backend shm"}) {
      const Outcome outcome = folder.run("03_ddp_spawn" + options + backend);
      INFO(backend);
      CHECK(agrees(outcome, reference));
      CHECK(folder.run("03_ddp_spawn" + options + backend).digest == outcome.digest);
      CHECK((world_size > 2 || mirrored.digest == outcome.digest));
    }
  }
}

TEST_CASE(
    "every stage ends on stage 01's weights whatever the data, the optimizer and the "
    "micro-batches; the digest is the same over every CPU backend, with and without DDP",
    "[parity]") {
  const Folder folder;
  for (const std::string& workload :
       {std::string(" 4 4 --global-batch 48"), kDigits + " --optimizer adam",
        kDigits + " --optimizer momentum --accumulate 2"}) {
    const Outcome reference = folder.run("01_single_gpu" + workload);
    const std::string two = workload + " --nprocs 2";
    INFO(workload << ": stage 01 moved " << reference.moved);
    CHECK(agrees(folder.run("02_data_parallel" + two), reference));
    const Outcome ddp = folder.run("03_ddp_spawn" + two + " --backend gloo");
    CHECK(agrees(ddp, reference));
    CHECK(folder.run("02_data_parallel_mirrored" + two).digest == ddp.digest);
    CHECK(folder.run("03_ddp_spawn" + two + " --backend shm").digest == ddp.digest);
    CHECK(folder.run("03_ddp_spawn_by_hand" + two + " --backend gloo").digest == ddp.digest);
    CHECK(folder.run("03_ddp_spawn_by_hand" + two + " --backend shm").digest == ddp.digest);
  }
}

TEST_CASE(
    "stages 04 and 05 end on stage 01's weights under torchrun and mpirun, and at world size "
    "2 on the bits of stage 03",
    "[parity][launcher]") {
  // What the tests on Slurm and HTCondor train too (tests/clusters/stages.py): so all launchers are
  // compared with each other.
  std::string workload;
  std::getline(std::ifstream(std::string(DDP_SOURCE_DIR) + "/tests/data/launcher_workload.txt"),
               workload);
  const Folder folder;
  const Outcome reference = folder.run("01_single_gpu " + workload);
  const std::string digest = folder.run("03_ddp_spawn " + workload + " --nprocs 2").digest;
  CHECK(folder.run("03_ddp_spawn " + workload + " --nprocs 2").digest == digest);
  CHECK(folder.run("03_ddp_spawn_by_hand " + workload + " --nprocs 2").digest == digest);
  for (const auto launcher : {torchrun, mpirun}) {
    for (const auto& [program, world_size] :
         std::vector<std::pair<std::string, int>>{{"04_ddp_launcher ", 1},
                                                  {"04_ddp_launcher ", 2},
                                                  {"04_ddp_launcher_accelerated ", 2},
                                                  {"05_multinode ", 2},
                                                  {"05_multinode ", 4}}) {
      const Outcome outcome = folder.run(launcher(world_size) + program + workload);
      INFO(launcher(world_size) << program);
      CHECK(agrees(outcome, reference));
      CHECK((world_size != 2 || outcome.digest == digest));
    }
  }
  const std::string fused =
      folder.run("03_ddp_spawn " + workload + " --nprocs 2 --speedup fused").digest;
  CHECK(folder.run("03_ddp_spawn_by_hand " + workload + " --nprocs 2 --speedup fused").digest ==
        fused);
  CHECK(folder.run(torchrun(2) + "04_ddp_launcher " + workload + " --speedup fused").digest ==
        fused);
  CHECK(folder.run(mpirun(2) + "04_ddp_launcher " + workload + " --speedup fused").digest == fused);
}

TEST_CASE("the accelerator's program prints what main.cpp's does, whatever the options",
          "[parity]") {
  const Folder folder;
  // The last line without its times.
  const auto lines = [&](const std::string& line) {
    std::vector<std::string> printed = folder.run(line).lines;
    std::ranges::sort(printed);  // ranks print when they like
    printed.back().resize(printed.back().find(" | step "));
    return printed;
  };
  for (const std::string options :
       {"", " --optimizer momentum --accumulate 2 --sampler padded --speedup fused",
        " --optimizer adam --accumulate 3 --shard-optimizer --lr-schedule linear --verbose",
        " --gradient-compression bf16 --sampler none --check finite,weights=1"}) {
    for (const std::string& launcher : {mpirun(2), std::string()}) {
      const std::string both = " 2 1 --dataset-size 500 --layers 9,8,3" + options;
      INFO(launcher << both);
      CHECK(lines(launcher + "04_ddp_launcher_accelerated" + both) ==
            lines(launcher + "04_ddp_launcher" + both));
    }
  }
}

TEST_CASE("the accelerator's loader makes no second copy of the data", "[parity]") {
  const Folder folder;
  const auto peak_mib = [&](const std::string& program) {
    // 512 MiB of samples.
    folder.run(program +
               " 1 1 --layers 1024,1 --dataset-size 131072 --global-batch 8192 "
               "--metrics m");
    std::ifstream in(folder.file("m"));
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    std::smatch match;
    REQUIRE(std::regex_search(text, match, std::regex(R"("peak_rss_mib":\[([0-9.]+))")));
    return std::stod(match[1]);
  };
  const double main_mib = peak_mib("04_ddp_launcher");
  const double accelerated_mib = peak_mib("04_ddp_launcher_accelerated");
  INFO("main " << main_mib << " MiB, accelerated " << accelerated_mib << " MiB");
  CHECK(main_mib > 512);
  CHECK(accelerated_mib < main_mib + 128);
}

TEST_CASE(
    "with a sharded optimizer stage 03 ends on stage 01's weights, with the bits of the whole "
    "one",
    "[parity][shard]") {
  const Folder folder;
  const std::string shard = " --shard-optimizer";
  for (const std::string& workload :
       {kDigits + " --nprocs 2 --backend gloo",
        kDigits + " --nprocs 3 --backend shm --optimizer momentum --accumulate 2",
        kDigits + " --nprocs 4 --backend shm --optimizer adam --bucket-mib 0.01",
        kDigits + " --nprocs 3 --backend gloo --optimizer adamw --speedup fused"}) {
    const std::string alone =
        std::regex_replace(workload, std::regex("--(nprocs|backend) \\S+"), "");
    const Outcome reference = folder.run("01_single_gpu" + alone + shard);
    const Outcome sharded = folder.run("03_ddp_spawn" + workload + shard);
    INFO(workload << ": moved " << sharded.moved << ", stage 01 " << reference.moved);
    CHECK(agrees(sharded, reference));
    CHECK(sharded.digest == folder.run("03_ddp_spawn" + workload).digest);
    CHECK(agrees(folder.run("03_ddp_spawn_by_hand" + workload + shard), reference));
  }
}

TEST_CASE("a snapshot is the same whether the optimizer was sharded, and over how many ranks",
          "[parity][snapshot][shard]") {
  const std::string shard = " --shard-optimizer";
  struct Halves {
    std::string first;
    std::string second;
    std::string speedup;
  };
  for (const auto& [first, second, speedup] :
       {Halves{"2", "2" + shard, "none"}, Halves{"3" + shard, "2", "none"},
        Halves{"4" + shard, "1" + shard, "fused"}}) {
    const Folder folder;
    const std::string options =
        " 2 --dataset digits --optimizer adam --global-batch 48 --speedup " + speedup +
        " --nprocs ";
    const auto run = [&](const std::string& epochs, const std::string& ranks,
                         const std::string& snapshot) {
      return folder.resume("03_ddp_spawn " + epochs + options + ranks, snapshot).digest;
    };
    const auto unsharded = [](const std::string& ranks) {
      return ranks.substr(0, ranks.find(' '));
    };
    INFO(speedup << ": " << first << ", then " << second);
    run("2", first, "sharded");
    run("2", unsharded(first), "whole");
    const auto sharded = ddp::read_tensor_file(folder.file("sharded")).tensors;
    const auto whole = ddp::read_tensor_file(folder.file("whole")).tensors;
    REQUIRE(sharded.size() == whole.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      CHECK(sharded[i].first == whole[i].first);
      CHECK(torch::equal(sharded[i].second, whole[i].second));
    }
    // The second half, from either, has the bits of the same without sharding.
    CHECK(run("4", second, "sharded") == run("4", unsharded(second), "whole"));
  }
}

TEST_CASE("compressed gradients: half the bytes, about the same accuracy",
          "[parity][compression]") {
  const Folder folder;
  const auto run = [&](const std::string& options) {
    return run_and_count_bytes(folder, "03_ddp_spawn 30 30 --dataset digits --nprocs 2 " + options);
  };
  for (const std::string options : {"--backend gloo", "--backend shm --speedup fused"}) {
    const auto [plain, plain_bytes] = run(options);
    for (const std::string compression : {"bf16", "fp16"}) {
      const auto [outcome, bytes] = run(options + " --gradient-compression " + compression);
      INFO(options << ", " << compression << ": accuracy " << outcome.accuracy << ", uncompressed "
                   << plain.accuracy);
      CHECK(std::abs(outcome.accuracy - plain.accuracy) <= 0.01);
      CHECK(agrees(outcome.moved, plain.moved, 1e-2));
      CHECK(outcome.digest != plain.digest);
      CHECK(2 * bytes == plain_bytes);
    }
  }
}

TEST_CASE("gradients that float16 cannot hold end the training, not the truth",
          "[parity][compression]") {
  const Folder folder;
  const RunResult result =
      folder.start("03_ddp_spawn 2 2 --nprocs 2 --lr 1e9 --gradient-compression fp16").wait();
  INFO(result.out << result.err);
  CHECK(result.exit_code == 1);
  CHECK(result.err.find("diverged in epoch 0") != std::string::npos);
}

TEST_CASE(
    "fused, every stage ends on the weights that stage 01 reaches with autograd, and on the "
    "same bits each time",
    "[parity]") {
  const Folder folder;
  for (const auto& [workload, world_sizes] : std::vector<std::pair<std::string, std::vector<int>>>{
           {kDigits + " --deterministic", {1, 2, 3}},
           {kDigits + " --optimizer adamw --accumulate 2", {2}}}) {
    const std::string fused = workload + " --speedup fused";
    const Outcome reference = folder.run("01_single_gpu" + workload);
    const Outcome alone = folder.run("01_single_gpu" + fused);
    CHECK(agrees(alone, reference));
    CHECK(alone.digest != reference.digest);  // it was another engine
    CHECK(folder.run("01_single_gpu" + fused + " --threads 2").digest == alone.digest);
    for (const int world_size : world_sizes) {
      for (const std::string program :
           {"02_data_parallel", "03_ddp_spawn", "03_ddp_spawn_by_hand"}) {
        const std::string line = program + fused + " --nprocs " + std::to_string(world_size);
        const Outcome outcome = folder.run(line);
        INFO(line << ": moved " << outcome.moved << ", stage 01 " << reference.moved);
        CHECK(agrees(outcome, reference));
        CHECK((outcome.digest == alone.digest) == (world_size == 1));
        CHECK((program != "03_ddp_spawn" || folder.run(line).digest == outcome.digest));
      }
    }
  }
}

TEST_CASE("fused, the model is as talkative as it was", "[parity]") {
  const Folder folder;
  for (const std::string program :
       {"02_data_parallel", "02_data_parallel --speedup fused", "02_data_parallel_mirrored"}) {
    const Outcome outcome = folder.run(
        program + " --total-epochs 1 --save-every 1 --nprocs 2 --verbose --dataset-size 32");
    CHECK(std::ranges::count(outcome.lines, "In model: input [16, 20] on cpu") == 2);
  }
}

TEST_CASE("without a sampler every rank does what one process does, and nothing is gained",
          "[parity]") {
  const Folder folder;
  for (const std::string workload :
       {" 3 3 --dataset digits", " 3 3 --batch-size 48 --speedup fused --optimizer adam"}) {
    const Outcome alone = folder.run("01_single_gpu" + workload);
    for (const std::string program : {"03_ddp_spawn", "03_ddp_spawn_by_hand"}) {
      // The mean of two equal gradients has their bits.
      const Outcome outcome = folder.run(program + workload + " --nprocs 2 --sampler none");
      INFO(program << workload);
      CHECK(outcome.digest == alone.digest);
      CHECK(outcome.moved == alone.moved);
      for (const std::string& line : alone.lines) {
        const size_t epoch = line.find("] Epoch ");
        if (epoch != std::string::npos) {  // by both ranks, with as many steps
          CHECK(std::ranges::count_if(outcome.lines, [&](const std::string& printed) {
                  return printed.ends_with(line.substr(epoch));
                }) == 2);
        }
      }
      CHECK(folder.run(program + workload + " --nprocs 2").digest != alone.digest);
    }
  }
}

TEST_CASE("every rank prints every epoch, and rank 0 the last line", "[parity]") {
  const Outcome outcome = Folder().run("03_ddp_spawn 3 3 --nprocs 2");
  const std::regex epoch(
      R"(\[CPU([01])\] Epoch ([012]) \| Batchsize: 32 \| Steps: 32 \| Loss: \d+\.\d{4})");
  CHECK(outcome.lines.size() == 7);
  CHECK(std::ranges::count_if(outcome.lines, [&](const std::string& line) {
          return std::regex_match(line, epoch);
        }) == 6);
}

TEST_CASE("a resumed run has the bits of an unbroken one", "[parity][snapshot]") {
  for (const std::string optimizer : {"sgd", "momentum", "adam", "adamw", "adam --speedup fused"}) {
    const Folder folder;
    const std::string options = " 2 --dataset digits --nprocs 2 --optimizer " + optimizer;
    const Outcome unbroken = folder.run("03_ddp_spawn 4" + options);
    INFO(optimizer);
    folder.resume("03_ddp_spawn 2" + options, "halves");
    const Outcome resumed = folder.resume("03_ddp_spawn 4" + options, "halves");
    CHECK_FALSE(prints_epoch(resumed, 1));
    CHECK(resumed.digest == unbroken.digest);
    CHECK(resumed.moved == unbroken.moved);
  }
}

TEST_CASE("a run that a signal stopped, started again, has the bits of an unbroken one",
          "[parity][snapshot]") {
  for (const auto& [program, signal] : std::initializer_list<std::pair<std::string, int>>{
           {"01_single_gpu", SIGUSR1},
           {"01_single_gpu --speedup fused", SIGTERM},
           {"02_data_parallel --nprocs 2", SIGUSR2},
           {"02_data_parallel_mirrored --nprocs 3 --accumulate 2", SIGUSR1},
           {"03_ddp_spawn --nprocs 2", SIGUSR1},
           {"03_ddp_spawn --nprocs 2 --speedup fused", SIGUSR1},
           {"03_ddp_spawn --nprocs 3 --shard-optimizer", SIGUSR2},
           {"03_ddp_spawn_by_hand --nprocs 2", SIGUSR1},
           {mpirun(2) + "04_ddp_launcher", SIGUSR1},
           {mpirun(2) + "04_ddp_launcher_accelerated", SIGUSR1},
           {mpirun(2) + "04_ddp_launcher", SIGUSR2}}) {
    check_that_a_stopped_run_goes_on(program, signal, 85);
  }
}

TEST_CASE("likewise under torchrun, which passes SIGTERM on and says itself that it had one",
          "[launcher]") {
  check_that_a_stopped_run_goes_on(torchrun(2) + "04_ddp_launcher", SIGTERM, 1);
}

TEST_CASE("digits: 0.95 in every stage within 30 epochs", "[parity]") {
  const Folder folder;
  for (const std::string program : {"01_single_gpu", "02_data_parallel --nprocs 2",
                                    "03_ddp_spawn --nprocs 2", "03_ddp_spawn_by_hand --nprocs 2"}) {
    INFO(program);
    CHECK(folder.run(program + " --total-epochs 30 --save-every 30 --dataset digits").accuracy >=
          0.95);
  }
}

TEST_CASE("fashion-mnist: 0.88 within 10 epochs, all stages within 0.003", "[fashion]") {
  const Folder folder;
  const std::string options =
      " --total-epochs 10 --save-every 10 --dataset fashion-mnist --global-batch 64";
  const double reference = folder.run("01_single_gpu" + options).accuracy;
  CHECK(reference >= 0.88);
  // Stages 04 and 05, and 03 by hand, have the bits of 03.
  for (const std::string program : {"02_data_parallel --nprocs 2", "03_ddp_spawn --nprocs 2"}) {
    const double accuracy = folder.run(program + options).accuracy;
    INFO(program << " " << accuracy << ", stage 01 " << reference);
    CHECK(std::abs(accuracy - reference) <= 0.003);
  }
}

TEST_CASE("on a GPU every stage ends where autograd on the CPU does, fused and as a CUDA Graph too",
          "[.][gpu]") {
  const Folder folder;
  const Accelerator used = accelerator();
  // The last batch of an epoch is smaller; the learning rate changes with the epoch.
  for (const std::string workload :
       {" 3 3 --global-batch 48 --dataset digits", " 3 3 --global-batch 48 --dataset-size 500",
        " 3 3 --global-batch 48 --dataset digits --optimizer adam --accumulate 3 --lr-schedule "
        "linear"}) {
    const Outcome reference = folder.run("01_single_gpu --device cpu" + workload);
    for (const std::string& speedup : used.speedups) {
      const std::string gpu = workload + used.options(speedup);
      INFO(gpu);
      CHECK(agrees(folder.run("01_single_gpu" + gpu), reference));
      CHECK(agrees(folder.run("01_single_gpu" + gpu + " --metrics m.jsonl"), reference));
      CHECK(agrees(folder.run("03_ddp_spawn --nprocs 1" + gpu), reference));
      CHECK(agrees(folder.run("03_ddp_spawn_by_hand --nprocs 1" + gpu), reference));
      CHECK(agrees(folder.run("04_ddp_launcher" + gpu), reference));  // alone: world size 1
      if (speedup != "graph") {
        CHECK(agrees(folder.run("02_data_parallel --nprocs 1" + gpu), reference));
      }
      if (speedup == "none") {
        CHECK(agrees(folder.run("02_data_parallel_mirrored --nprocs 1" + gpu), reference));
      }
    }
  }
}

// What follows uses up to 8 GPUs, with one it says nothing about NCCL between devices.

TEST_CASE("on several GPUs every stage ends where autograd on the CPU does", "[.][gpu][ranks]") {
  const Folder folder;
  const Accelerator used = accelerator();
  for (const int world_size : std::set{1, std::min(2, used.count), used.count}) {
    const std::string ranks = std::to_string(world_size);
    const std::string workload =
        " 3 3 --dataset digits --global-batch " + std::to_string(24 * world_size);
    const Outcome reference = folder.run("01_single_gpu --device cpu" + workload);
    for (const std::string& speedup : used.speedups) {
      const std::string alike = workload + used.options(speedup);
      const std::string gpus = alike + " --nprocs " + ranks;
      INFO(gpus << ", stage 01 moved " << reference.moved);
      const Outcome outcome = folder.run("03_ddp_spawn" + gpus);
      print_nccl(outcome);
      CHECK(agrees(outcome, reference));
      CHECK(agrees(folder.run("03_ddp_spawn_by_hand" + gpus), reference));
      CHECK(agrees(folder.run_ranks("04_ddp_launcher" + alike, world_size), reference));
      if (speedup != "graph") {
        CHECK(agrees(folder.run("02_data_parallel" + gpus), reference));
      }
      if (speedup == "none") {
        CHECK(agrees(folder.run("02_data_parallel_mirrored" + gpus), reference));
      }
    }
  }
}

TEST_CASE("on several GPUs a sharded optimizer ends where the whole one on the CPU does",
          "[.][gpu][ranks][shard]") {
  const Folder folder;
  const Accelerator used = accelerator();
  for (const std::string optimizer : {"momentum --accumulate 2", "adam --bucket-mib 0.01"}) {
    const std::string workload = " 2 2 --dataset digits --global-batch " +
                                 std::to_string(24 * used.count) + " --optimizer " + optimizer;
    const Outcome reference = folder.run("01_single_gpu --device cpu" + workload);
    for (const std::string& speedup : used.speedups) {
      const std::string gpus = workload + used.options(speedup) + " --shard-optimizer --nprocs " +
                               std::to_string(used.count);
      INFO(gpus << ", stage 01 moved " << reference.moved);
      CHECK(agrees(folder.run("03_ddp_spawn" + gpus), reference));
    }
  }
}

TEST_CASE("on several GPUs compressed gradients are half the bytes, and about the same accuracy",
          "[.][gpu][ranks]") {
  const Folder folder;
  const Accelerator used = accelerator();
  const std::string workload =
      " 30 30 --dataset digits --global-batch " + std::to_string(24 * used.count);
  const Outcome reference = folder.run("01_single_gpu --device cpu" + workload);
  for (const std::string& speedup : used.speedups) {
    const std::string gpus = "03_ddp_spawn" + workload + used.options(speedup) + " --nprocs " +
                             std::to_string(used.count);
    const auto [plain, plain_bytes] = run_and_count_bytes(folder, gpus);
    for (const std::string compression : {"bf16", "fp16"}) {
      const auto [outcome, bytes] =
          run_and_count_bytes(folder, gpus + " --gradient-compression " + compression);
      INFO(gpus << ", " << compression << ": accuracy " << outcome.accuracy << ", stage 01 "
                << reference.accuracy);
      CHECK(std::abs(outcome.accuracy - reference.accuracy) <= 0.01);
      CHECK(agrees(outcome.moved, reference.moved, 1e-2));
      CHECK(2 * bytes == plain_bytes);
      CHECK((used.count == 1 || outcome.digest != plain.digest));
    }
  }
}
