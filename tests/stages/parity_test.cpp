// Every stage ends on the weights of stage 01: the real programs, run to their end, and stopped and
// started again.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <regex>

#include "bench/tables.hpp"
#include "common/base/files.hpp"
#include "common/data/tensor_file.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/ranks_by_hand.hpp"
#include "tests/support/run_program.hpp"

namespace {

namespace fs = std::filesystem;

struct Outcome {
  double moved = NAN;
  std::string digest;
  std::string names;  ///< of the snapshot's tensors
  torch::Tensor weights;  ///< all of them in a row, (numbers) float64
  std::string out;
};

/// The words of `line`, with torchrun and the programs of this build by their paths.
std::vector<std::string> command(const std::string& line) {
  std::vector<std::string> words = ddp::test::words(line);
  for (std::string& word : words) {
    const fs::path program = fs::path(DDP_BIN_DIR) / word;
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

/// Program of stages.list.
struct Stage {
  std::string program, launch;
  std::string bits;  ///< whose digest it has on two ranks, or "-"
  bool has_optimizers = true;

  bool is_under_launcher() const { return launch == "launcher"; }
  /// Command for two ranks, or for one device.
  std::string on_two() const {
    return (is_under_launcher() ? mpirun(2) : "") + program +
           (launch == "replicas" || launch == "spawn" ? " --nprocs 2" : "") +
           (has_optimizers ? " --optimizer adam" : "");
  }
};

std::vector<Stage> stages() {
  const auto program_of = [](const std::string& source) {
    return std::regex_replace(source.substr(0, source.find("/main")), std::regex("/"), "_");
  };
  std::vector<Stage> rows;
  for (const auto& row : ddp::bench::table_rows(ddp::read_text(DDP_SOURCE_DIR "/stages.list"))) {
    if (!contains(row.at(4), "model")) {  // that one is in tests/compiled
      rows.push_back({program_of(row.at(0)), row.at(2), program_of(row.at(3)),
                      !contains(row.at(4), "optimizers")});
    }
  }
  return rows;
}

/// Result of a program that has trained to its end.
Outcome outcome_of(const RunResult& result) {
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  static const std::regex last(R"(moved (\S+) \| loss .* \| digest ([0-9a-f]{16}) \| step)");
  std::smatch match;
  REQUIRE(std::regex_search(result.out, match, last));
  return {.moved = std::stod(match[1]),
          .digest = match[2],
          .names = "",
          .weights = {},
          .out = result.out};
}

/// Folder for programs and their snapshot.
class Folder {
 public:
  std::string file(const std::string& name = "s") const { return folder_.path() + "/" + name; }

  Program start(const std::string& line) const {
    return Program(command(line + " --snapshot s"),
                   {.environment = kOpenMpiAsRoot, .cwd = folder_.path(), .timeout_seconds = 120});
  }

  /// Trains from the beginning, after removing the snapshot of an earlier run.
  Outcome run(const std::string& line) const {
    INFO(line);
    fs::remove(file());
    fs::remove(file("s.prev"));
    Outcome outcome = outcome_of(start(line).wait());
    std::vector<torch::Tensor> weights;
    const ddp::MappedFile snapshot(file());
    for (const auto& [name, tensor] : ddp::parse_tensor_file(file(), snapshot.bytes()).tensors) {
      outcome.names += name + "\n";
      weights.push_back(tensor.flatten().to(torch::kFloat64));
    }
    outcome.weights = torch::cat(weights);
    return outcome;
  }

  /// Resumes from the snapshot, if it is there.
  Outcome resume(const std::string& line) const {
    INFO(line);
    return outcome_of(start(line + " --resume auto").wait());
  }

 private:
  ddp::ScratchFolder folder_{"ddp-parity"};
};

/// Not by `difference > bound`, because NaN must fail.
bool agrees(double value, double reference, double relative) {
  return std::abs(value - reference) <= relative * std::abs(reference);
}

bool agrees(const Outcome& a, const Outcome& b) {
  return agrees(a.moved, b.moved, 1e-4) && a.names == b.names &&
         torch::allclose(a.weights, b.weights, 1e-3, 1e-4);
}

/// Workloads with fewer samples in the last step of an epoch.
const std::vector<std::string> kWorkloads = {
    " 4 4 --global-batch 48",
    " 2 2 --global-batch 48 --dataset digits --lr 0.05",
    " 1 1 --global-batch 96 --layers 784,512,512,10 --dataset-size 1000",
    " 2 2 --global-batch 48 --dataset digits --optimizer momentum",
    " 2 2 --global-batch 48 --dataset digits --optimizer adam",
    " 2 2 --global-batch 48 --dataset digits --optimizer adamw --deterministic"};

/// Stops a run of very many epochs by a signal, which saves a snapshot, and resumes it.
/// @param who receiver of the signal: the program, one of its ranks, or each of them
void check_that_a_stopped_run_goes_on(const std::string& program, int signal, int exit_code,
                                      const std::string& who = "program") {
  const Folder folder;
  const std::string options = program + " --dataset digits --global-batch 48 ";
  Program run = folder.start(options + "--save-every 1000000 --total-epochs 1000000");
  REQUIRE(run.wait_for_output("Epoch 3 "));
  std::vector<pid_t> told{run.pid()};
  if (who != "program") {
    told = children_of(run.pid());
    REQUIRE(told.size() > 1);
    told.erase(told.begin(), who == "one rank" ? told.end() - 1 : told.begin());  // not rank 0
  }
  for (const pid_t pid : told) {
    kill(pid, signal);
  }
  const RunResult stopped = run.wait();
  INFO(program << ", signal " << signal << " to " << who << ": " << stopped.err);
  CHECK(stopped.exit_code == exit_code);
  CHECK(contains(stopped.err,
                 ": stopped on request with snapshot s; a restart by the launcher, "
                 "or --resume auto, goes on from there\n"));
  CHECK_FALSE(contains(stopped.err, ": error: [rank"));
  int last_epoch = 3;
  while (contains(stopped.out, "Epoch " + std::to_string(last_epoch + 1) + " ")) {
    ++last_epoch;
  }
  const std::string whole =
      options + "--save-every 1 --total-epochs " + std::to_string(last_epoch + 3);
  const Outcome resumed = folder.resume(whole);
  CHECK_FALSE(contains(resumed.out, "Epoch " + std::to_string(last_epoch) + " "));
  CHECK(contains(resumed.out, "Epoch " + std::to_string(last_epoch + 1) + " "));
  const Outcome unbroken = folder.run(whole);
  CHECK(resumed.digest == unbroken.digest);
  CHECK(resumed.moved == unbroken.moved);
}

}  // namespace

TEST_CASE("the parity check notices NaN and wrong weights", "[parity]") {
  const Outcome right{1.0, "", "names", torch::ones({2}), ""};
  CHECK(agrees(right, right));
  CHECK_FALSE(agrees({NAN, "", "names", right.weights, ""}, right));
  CHECK_FALSE(agrees({1.0, "", "others", right.weights, ""}, right));
  CHECK_FALSE(agrees({1.0, "", "names", torch::tensor({1.0F, NAN}), ""}, right));
}

TEST_CASE(
    "every stage ends on stage 01's weights, and two ranks on the same bits over every backend",
    "[parity]") {
  const Folder folder;
  for (const std::string& workload : kWorkloads) {
    const bool is_plain = !contains(workload, "--optimizer");
    const Outcome reference = folder.run("01_single_gpu" + workload);
    for (const int world_size : is_plain ? std::vector{1, 2, 4} : std::vector{2}) {
      std::map<std::string, std::string> digests;
      const auto run = [&](const Stage& stage, const std::string& options) {
        const std::string line =
            stage.program + options + workload + " --nprocs " + std::to_string(world_size);
        const Outcome outcome = folder.run(line);
        INFO(line << ": moved " << outcome.moved << ", stage 01 " << reference.moved);
        CHECK(agrees(outcome, reference));
        // With other numbers of ranks, only a command has the bits of its first run.
        const std::string alike = world_size != 2     ? stage.program + options
                                  : stage.bits != "-" ? stage.bits
                                                      : stage.program;
        CHECK(digests.try_emplace(alike, outcome.digest).first->second == outcome.digest);
      };
      for (const Stage& stage : stages()) {
        if (stage.launch == "replicas") {
          run(stage, "");
        } else if (stage.launch == "spawn" && (is_plain || stage.has_optimizers)) {
          run(stage, " --backend shm");
          const bool over_gloo = world_size == 2 || stage.program == stage.bits;
          run(stage, over_gloo ? " --backend gloo" : " --backend shm");
          if (stage.program == stage.bits && world_size == 2) {
            run(stage, " --backend shm --bucket-mib 0.001");
          }
        }
      }
    }
  }
}

TEST_CASE(
    "under a launcher stages 04 and 05 end on stage 03's bits at world size 2, and on stage "
    "01's weights",
    "[launcher]") {
  // The same workload as on Slurm and HTCondor (tests/clusters/stages.py), so that all launchers
  // are compared with each other.
  const std::string workload = "4 2 --dataset digits --global-batch 64";
  const Folder folder;
  const Outcome reference = folder.run("01_single_gpu " + workload);
  const std::string digest = folder.run("03_ddp_spawn " + workload + " --nprocs 2").digest;
  std::vector<std::pair<std::string, int>> starts = {{"04_ddp_launcher", 1}, {"05_multinode", 4}};
  for (const Stage& stage : stages()) {
    if (stage.is_under_launcher()) {
      CHECK(stage.bits == "03_ddp_spawn");
      starts.emplace_back(stage.program, 2);
    }
  }
  for (const auto launcher : {torchrun, mpirun}) {
    for (const auto& [program, world_size] : starts) {
      const Outcome outcome = folder.run(launcher(world_size) + program + " " + workload);
      INFO(launcher(world_size) << program);
      CHECK(agrees(outcome, reference));
      CHECK((world_size != 2 || outcome.digest == digest));
    }
  }
  RanksByHand ranks;
  ranks.start_both(DDP_BIN_DIR "/04_ddp_launcher " + workload);
  CHECK(outcome_of(ranks.started[0]->wait()).digest == digest);
  CHECK(ranks.started[1]->wait().exit_code == 0);
}

TEST_CASE("a run that a signal stopped, started again, has the bits of an unbroken one",
          "[parity][snapshot]") {
  size_t next = 0;
  for (const Stage& stage : stages()) {
    const std::vector<int> signals = stage.is_under_launcher()
                                         ? std::vector{SIGUSR1, SIGUSR2}  // mpirun ends at SIGTERM
                                         : std::vector{SIGTERM, SIGUSR1, SIGUSR2};
    check_that_a_stopped_run_goes_on(stage.on_two(), signals[next++ % signals.size()], 85);
  }
  check_that_a_stopped_run_goes_on("03_ddp_spawn --nprocs 2 --optimizer adam", SIGUSR1, 85,
                                   "one rank");
  check_that_a_stopped_run_goes_on("03_ddp_spawn --nprocs 3 --optimizer adam", SIGTERM, 85,
                                   "each rank");
}

TEST_CASE("likewise under torchrun, which passes SIGTERM on and says itself that it had one",
          "[launcher]") {
  check_that_a_stopped_run_goes_on(torchrun(2) + "04_ddp_launcher --optimizer adam", SIGTERM, 1);
}

// Losses differ by 2e-7 until a ReLU whose input is nearly zero opens in one run only, which no
// processor excludes. So a second seed may hold the promise, too.
TEST_CASE("fashion-mnist: the losses of the first 20 steps agree to 1e-5", "[fashion]") {
  const Folder folder;
  const auto losses = [&folder](const std::string& program) {
    folder.run(program + " 1 1 --dataset fashion-mnist --global-batch 66 --metrics m");
    std::vector<double> sums(910);
    std::vector<int> ranks(910);
    std::ifstream file(folder.file("m"));
    for (std::string line; std::getline(file, line);) {
      const auto step = nlohmann::json::parse(line);
      if (step.contains("step")) {
        sums.at(step["step"]) += step["loss"].get<double>();
        ++ranks.at(step["step"]);
      }
    }
    std::ranges::transform(sums, ranks, sums.begin(), std::divides<>());  // NaN without a rank
    return sums;
  };
  const auto all_agree = [&](const std::string& seed) {
    const std::vector<double> reference = losses("01_single_gpu" + seed);
    CHECK(reference.back() < 0.5 * reference.front());
    for (const std::string program :
         {"01_single_gpu --threads 2", "02_data_parallel --nprocs 2", "03_ddp_spawn --nprocs 1",
          "03_ddp_spawn --nprocs 2", "03_ddp_spawn --nprocs 3",
          "03_ddp_spawn --nprocs 3 --backend gloo", "03_ddp_spawn_fused --nprocs 2"}) {
      const std::vector<double> own = losses(program + seed);
      for (size_t step = 0; step < 20; ++step) {
        if (!agrees(own[step], reference[step], 1e-5)) {
          WARN(program << ", step " << step << ": " << own[step] << ", " << reference[step]);
          return false;
        }
      }
    }
    return true;
  };
  CHECK((all_agree(" --seed 42") || all_agree(" --seed 43")));
}
