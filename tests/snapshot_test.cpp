// Any fault of a save, and any moment to stop at: the old or the new snapshot is there, and a
// resumed run ends on the bits of an unbroken one. DDP_TEST_REPEATS: tries of what happens at
// random. DDP_TEST_SEED repeats a run's random moments.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>
#include <iterator>
#include <map>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "common/base/process.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/model/mlp.hpp"
#include "common/training/snapshot.hpp"
#include "tests/catch.hpp"
#include "tests/support/peak_memory.hpp"
#include "tests/support/processes.hpp"
#include "tests/support/run_program.hpp"

extern "C" {
extern std::atomic<int> ddp_fault_calls;  // support/faulty_calls.cpp
}

namespace {

namespace fs = std::filesystem;
using ddp::test::contains;
using ddp::test::peak_growth_mib;
using ddp::test::Program;
using ddp::test::repeats;
using ddp::test::RunOptions;
using ddp::test::RunResult;

/// Other moments in every run; DDP_TEST_SEED repeats them.
std::mt19937 random_moments() {
  const char* const text = std::getenv("DDP_TEST_SEED");
  const unsigned seed =
      text == nullptr ? std::random_device{}() : static_cast<unsigned>(std::stoul(text));
  std::cout << "DDP_TEST_SEED=" << seed << std::endl;
  return std::mt19937(seed);
}

/// Flips a bit of the last number.
void damage(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto last = static_cast<std::streamoff>(fs::file_size(path) - 1);
  file.seekg(last);
  const int byte = file.get();
  file.seekp(last);
  file.put(static_cast<char>(byte ^ 1));
}

/// A model whose weights and momentum are all the number of epochs done, and its snapshot.
class CountingRun {
 public:
  CountingRun() {
    options_.program = "test";
    options_.resume = "auto";
    options_.optimizer = "momentum";
    options_.snapshot = folder_.path() + "/s";
  }

  const std::string& path() const { return options_.snapshot; }
  const std::string& folder() const { return folder_.path(); }

  void save(int64_t epochs_done) {
    fill(epochs_done);
    snapshot_.save(epochs_done);
  }

  /// What a start goes on from: so many epochs done, 0 for a fresh start, -1 if it is refused or
  /// holds anything else than that many epochs' values.
  int64_t resumable() {
    fill(-2);
    std::ostringstream warnings;
    std::streambuf* const stderr_buffer = std::cerr.rdbuf(warnings.rdbuf());
    int64_t epochs_done = -1;
    try {
      epochs_done = snapshot_.load();
    } catch (const ddp::Error&) {
    }
    std::cerr.rdbuf(stderr_buffer);
    if (epochs_done <= 0) {
      return epochs_done;
    }
    bool same = true;
    for (const torch::Tensor& values : all_values()) {
      same = same && torch::all(values == static_cast<double>(epochs_done)).item<bool>();
    }
    return same ? epochs_done : -1;
  }

  /// The snapshot and the one before it.
  size_t files() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder()), fs::directory_iterator()));
  }

 private:
  std::vector<torch::Tensor> all_values() {
    std::vector<torch::Tensor> all = model_->parameters();
    for (const auto& [name, tensor] : optimizer_.state()) {
      all.push_back(tensor);
    }
    return all;
  }
  void fill(int64_t value) {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& values : all_values()) {
      values.fill_(static_cast<double>(value));
    }
  }

  const ddp::ScratchFolder folder_{"ddp-snapshot"};
  ddp::Options options_;
  const ddp::Dataset dataset_ = ddp::load_dataset(options_);
  const ddp::LaunchEnvironment environment_;
  ddp::Mlp model_{dataset_.layers};
  ddp::Optimizer optimizer_{*model_, options_};
  ddp::Snapshot snapshot_{options_, environment_, dataset_, *model_, optimizer_};
};

/// How two saves went, of 3 and then 4 epochs, in a process where one call met a fault.
struct FaultySaves {
  bool reached = true;  ///< there was such a call
  bool killed = false;
  /// By an Error (1) that names the file. What was there before that save or what it was to write
  /// could be resumed from then, and the next save, of 5, went well.
  bool reported = false;
  bool saved = false;
};

/// @param old what can be resumed from before them
/// @param call that alone counts; empty: every one does
FaultySaves saves_with(CountingRun& run, int64_t old, const std::string& fault, int at,
                       const std::string& call = "") {
  constexpr int kSaved = 10;
  constexpr int kReported = 11;
  constexpr int kNotReached = 12;
  const pid_t child = fork();
  if (child == 0) {
    unsetenv("DDP_FAULT_CALL");
    if (!call.empty()) {
      setenv("DDP_FAULT_CALL", call.c_str(), 1);
    }
    setenv("DDP_FAULT_FOLDER", run.folder().c_str(), 1);
    setenv("DDP_FAULT_AT", std::to_string(at).c_str(), 1);
    setenv("DDP_FAULT", fault.c_str(), 1);
    int code = 1;
    int64_t before = old;
    int64_t saving = 3;
    try {
      run.save(saving);
      before = saving++;
      run.save(saving);
      code = ddp_fault_calls < at ? kNotReached : kSaved;
    } catch (const ddp::Error& error) {
      unsetenv("DDP_FAULT");
      // Before the next save, which would hide what this one has destroyed.
      const int64_t left = run.resumable();
      if (error.code() == ddp::ExitCode::kTrainingFailed && contains(error.what(), run.path()) &&
          (left == before || left == saving)) {
        run.save(5);
        code = kReported;
      }
    } catch (...) {
      code = 2;
    }
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  FaultySaves result;
  result.killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  if (WIFEXITED(status)) {
    result.reached = WEXITSTATUS(status) != kNotReached;
    result.saved = WEXITSTATUS(status) == kSaved || !result.reached;
    result.reported = WEXITSTATUS(status) == kReported;
  }
  return result;
}

const std::string kMpirun = "mpirun --oversubscribe -np 2 ";

/// Runs programs in a folder of their own, where "s" is the snapshot.
class Runs {
 public:
  fs::path file(const std::string& name = "s") const { return fs::path(folder_.path()) / name; }

  /// The programs of this build by their paths.
  Program start(const std::string& line,
                const std::map<std::string, std::optional<std::string>>& environment = {}) const {
    RunOptions options;
    options.cwd = folder_.path();
    options.timeout_seconds = 200;
    options.environment = environment;
    options.environment.emplace("OMPI_ALLOW_RUN_AS_ROOT", "1");
    options.environment.emplace("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    std::vector<std::string> argv = ddp::test::words(line);
    for (std::string& word : argv) {
      const std::string program = std::string(DDP_BIN_DIR) + "/" + word;
      word = word == "torchrun" ? DDP_TORCHRUN : fs::exists(program) ? program : word;
    }
    argv.insert(argv.end(), {"--snapshot", file().string()});
    return Program(argv, options);
  }

  /// @return the digest of a run to its end
  std::string digest(
      const std::string& line,
      const std::map<std::string, std::optional<std::string>>& environment = {}) const {
    return digest_of(start(line, environment).wait());
  }

  static std::string digest_of(const RunResult& result) {
    INFO(result.out.substr(0, 2000) << result.err);
    REQUIRE(result.exit_code == 0);
    std::smatch match;
    REQUIRE(std::regex_search(result.out, match, std::regex("digest ([0-9a-f]{16})")));
    return match[1];
  }

  /// Variables under which a call for the snapshot's files meets a fault.
  std::map<std::string, std::optional<std::string>> fault(const std::string& what,
                                                          const std::string& call) const {
    return {{"LD_PRELOAD", DDP_FAULTY_CALLS},
            {"DDP_FAULT_FOLDER", folder_.path()},
            {"DDP_FAULT", what},
            {"DDP_FAULT_CALL", call},
            {"DDP_FAULT_AT", "1"}};
  }

  /// Waits until a file of that name's beginning is there. @return false if the process ended
  /// before
  bool wait_for_file(const std::string& prefix, pid_t pid) const {
    while (kill(pid, 0) == 0 && ddp::process_state(pid) != 'Z') {
      for (const auto& entry : fs::directory_iterator(folder_.path())) {
        if (entry.path().filename().string().rfind(prefix, 0) == 0) {
          return true;
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

 private:
  const ddp::ScratchFolder folder_{"ddp-snapshot"};
};

template <typename Value>
const Value& any_of(const std::vector<Value>& values, std::mt19937& random) {
  return values[random() % values.size()];
}

// Longer than starts on a busy machine are apart.
const std::string kSlowTimeout = " --timeout 6 --optimizer adam";

void check_slow_save(const std::string& line, bool is_stopped) {
  const Runs runs;
  INFO(line);
  const std::string epochs = is_stopped ? " 1000000 1000000" : " 4 2";
  Program program = runs.start(line + epochs + kSlowTimeout, runs.fault("sleep 9", "fsync"));
  if (is_stopped) {
    REQUIRE(program.wait_for_output("Epoch 3 "));
    kill(program.pid(), SIGUSR1);
  }
  const RunResult result = program.wait();
  INFO(result.err);
  CHECK(result.exit_code == (is_stopped ? 85 : 0));
  CHECK(result.seconds > 9);
  CHECK(fs::exists(runs.file()));
}

/// Seconds that a run is left alone.
void wait_up_to(double seconds, std::mt19937& random) {
  std::this_thread::sleep_for(
      std::chrono::duration<double>(std::uniform_real_distribution<double>(0, seconds)(random)));
}

}  // namespace

TEST_CASE("a fault at any call of a save leaves the old or the new snapshot", "[snapshot]") {
  // What lies there when the two saves begin, and what a start would go on from.
  struct Before {
    const char* what;
    int64_t resumable;
  };
  std::vector<std::string> faults = {"kill", "short"};
  for (const int error : {ENOSPC, EIO, EINTR, EPERM}) {
    faults.push_back(std::to_string(error));
  }
  if (repeats() > 5) {
    for (const int error : {EDQUOT, ENOMEM}) {
      faults.push_back(std::to_string(error));
    }
  }
  for (const auto& [before, old] :
       {Before{"nothing", 0}, Before{"two good ones", 2}, Before{"a damaged one, a good one", 1}}) {
    for (const std::string& fault : faults) {
      for (int at = 1;; ++at) {
        CountingRun run;
        if (old != 0) {
          run.save(1);
          run.save(2);
        }
        if (old == 1) {
          damage(run.path());
        }
        REQUIRE(run.resumable() == old);
        const FaultySaves saves = saves_with(run, old, fault, at);
        INFO(before << " before, fault " << fault << " at call " << at);
        const int64_t found = run.resumable();
        if (saves.killed) {
          CHECK((found == old || found == 3 || found == 4));
        } else if (saves.reported) {
          CHECK(found == 5);
        } else {
          CHECK(saves.saved);
          CHECK(found == 4);
        }
        if (fault == "short") {
          CHECK(saves.saved);  // no fault to a program that knows it
        }
        // The next one goes on as if nothing had been, and cleans up.
        run.save(6);
        CHECK(run.resumable() == 6);
        CHECK(run.files() <= 2);
        if (!saves.reached) {
          CHECK(at > 20);
          break;
        }
      }
    }
  }
}

TEST_CASE("every call of a save can meet a fault", "[snapshot]") {
  // One that faulty_calls.cpp lacks, or no longer gets, would be left out in silence.
  for (const std::string call : {"open", "close", "flock", "fsync", "read", "pwrite", "access",
                                 "link", "rename", "unlink"}) {
    CountingRun run;
    run.save(1);
    run.save(2);
    const FaultySaves saves = saves_with(run, 2, "short", 1, call);
    INFO(call);
    CHECK(saves.reached);
    CHECK(saves.saved);
  }
}

TEST_CASE("a save bears another run that saves under the same name", "[snapshot]") {
  struct Case {
    std::string fault;
    const char* call;
  };
  // It takes for leftovers the new file before it is locked, and the old one's second name; it
  // replaces the old one while that is being linked.
  for (const auto& [fault, call] : {Case{"lost", "flock"}, Case{"locked", "flock"},
                                    Case{"lost", "rename"}, Case{std::to_string(ENOENT), "link"}}) {
    CountingRun run;
    run.save(1);
    run.save(2);
    const FaultySaves saves = saves_with(run, 2, fault, 1, call);
    INFO("fault " << fault << " at " << call);
    CHECK(saves.reached);
    CHECK(saves.saved);
    CHECK(run.resumable() == 4);
    CHECK(run.files() == 2);
  }
}

TEST_CASE("a save needs no copy of the tensors, a load one", "[snapshot]") {
  constexpr int64_t kElements = int64_t{16} << 20;
  constexpr double kTensorMib = 64;
  constexpr double kSlackMib = 16;
  const ddp::ScratchFolder folder("ddp-snapshot");
  const ddp::TensorFile file{{},
                             {{"a", torch::ones({kElements})}, {"b", torch::ones({kElements})}}};
  // The second one reads the first.
  for (int i = 0; i < 2; ++i) {
    CHECK(peak_growth_mib([&] { ddp::write_tensor_file(folder.path() + "/s", file); }) < kSlackMib);
  }
  const double load_mib = peak_growth_mib([&] {
    CHECK(torch::equal(ddp::read_tensor_file(folder.path() + "/s").tensors[1].second,
                       file.tensors[1].second));
  });
  CHECK(load_mib > 2 * kTensorMib - kSlackMib);
  CHECK(load_mib < 2 * kTensorMib + kSlackMib);
}

TEST_CASE("a disk slower than --timeout neither fails a run nor turns 85 into 75", "[snapshot]") {
  for (const auto& [line, is_stopped] :
       {std::pair("03_ddp_spawn --nprocs 2 --backend shm", false),
        std::pair("03_ddp_spawn --nprocs 3 --backend gloo --shard-optimizer", true)}) {
    check_slow_save(line, is_stopped);
  }
  // So does a slow start from it.
  const Runs runs;
  runs.digest("03_ddp_spawn --nprocs 2 1 1" + kSlowTimeout);
  CHECK(runs.digest("03_ddp_spawn --nprocs 2 2 1 --resume auto" + kSlowTimeout,
                    runs.fault("sleep 9", "read")) ==
        Runs().digest("03_ddp_spawn --nprocs 2 2 1" + kSlowTimeout));
}

TEST_CASE("a disk slower than --timeout fails no run over mpi", "[mpi]") {
  check_slow_save(kMpirun + "04_ddp_launcher --backend mpi --shard-optimizer", false);
}

namespace {

/// What becomes of a run of that many ranks whose rank 0 gets `signal` while it saves.
RunResult run_struck_in_save(const std::string& line, size_t ranks, int signal) {
  const Runs runs;
  Program program = runs.start(line, runs.fault("sleep 150", "fsync"));
  REQUIRE(runs.wait_for_file("s.tmp.", program.pid()));
  const std::vector<pid_t> pids = ddp::test::children_of(program.pid());
  REQUIRE(pids.size() == ranks);
  kill(pids[0], signal);
  RunResult result = program.wait();
  INFO(result.err);
  CHECK_FALSE(result.timed_out);
  return result;
}

}  // namespace

TEST_CASE("a save that finds no room says how many bytes it needs", "[snapshot]") {
  const Runs good;
  good.digest("01_single_gpu 1 1");
  const std::string needed = std::to_string(fs::file_size(good.file()));
  for (const int error : {ENOSPC, EDQUOT, EFBIG, EIO}) {
    const Runs runs;
    const RunResult result =
        runs.start("01_single_gpu 1 1", runs.fault(std::to_string(error), "pwrite")).wait();
    CHECK(result.exit_code == 1);
    CHECK(result.err == "01_single_gpu: error: snapshot " + runs.file().string() +
                            " cannot be written: " + std::strerror(error) +
                            (error == EIO ? "" : ", expected room for " + needed + " bytes") +
                            "\n");
  }
}

TEST_CASE("rank 0 that is killed while it saves is missed at once", "[snapshot]") {
  const RunResult result =
      run_struck_in_save("03_ddp_spawn 2 1 --nprocs 2 --timeout 150", 2, SIGKILL);
  INFO(result.err);
  CHECK(result.exit_code == 128 + SIGKILL);
  CHECK(contains(result.err, "rank 0"));
  CHECK(result.seconds < 100);
}

TEST_CASE("rank 0 that stands still while it saves is named at the timeout", "[snapshot]") {
  const RunResult result =
      run_struck_in_save("03_ddp_spawn 2 1 --nprocs 2 --timeout 6", 2, SIGSTOP);
  INFO(result.err);
  CHECK(result.exit_code == 1);
  CHECK(contains(result.err, "rank 0 gave no sign of life for 6 s"));
  CHECK(result.seconds < 100);
}

TEST_CASE("a stop at any moment is heard, and the run resumes with the same bits", "[snapshot]") {
  std::mt19937 random = random_moments();
  const std::vector<int> signals = {SIGTERM, SIGUSR1, SIGUSR2};
  const std::string options = " 1000000 --nprocs 2 --dataset-size 64 --optimizer adam --backend ";
  // Much longer than it takes until they are told.
  const std::vector<std::string> any_run = {"03_ddp_spawn 4000" + options + "shm",
                                            "03_ddp_spawn 2000" + options + "gloo"};
  const std::vector<std::string> unbroken = {Runs().digest(any_run[0] + " --quiet"),
                                             Runs().digest(any_run[1] + " --quiet")};
  for (int i = 0; i < repeats(); ++i) {
    const Runs runs;
    const auto backend = static_cast<size_t>(i % 2);
    const std::string run = any_run[backend] + (i / 2 % 2 == 0 ? " --metrics m" : "");
    Program program = runs.start(run, runs.fault("sleep 0.2", "fsync"));
    REQUIRE(program.wait_for_output("Epoch 3 "));
    const std::vector<pid_t> ranks = ddp::test::children_of(program.pid());
    REQUIRE(ranks.size() == 2);
    const pid_t parent = program.pid();
    // Reads meanwhile: ranks whose pipe is full hear nothing.
    std::future<RunResult> end =
        std::async(std::launch::async, [&program] { return program.wait(); });
    // The parent tells all; or one rank is told, or each by itself.
    const std::vector<pid_t> told =
        any_of<std::vector<pid_t>>({{parent}, {any_of(ranks, random)}, ranks}, random);
    const std::string second = any_of<std::string>({"none", "at once", "while it saves"}, random);
    wait_up_to(0.3, random);
    for (const pid_t pid : told) {
      kill(pid, any_of(signals, random));
      if (second == "at once") {
        wait_up_to(0.002, random);
        kill(pid, any_of(signals, random));
      }
    }
    if (second == "while it saves" && runs.wait_for_file("s.tmp.", parent)) {
      kill(parent, any_of(signals, random));
    }
    const RunResult stopped = end.get();
    INFO(run << ", told: " << told.size() << (told.front() == parent ? " (parent)" : "")
             << ", second signal: " << second << ": " << stopped.err);
    CHECK(stopped.exit_code == 85);
    CHECK(std::regex_match(stopped.err,
                           std::regex(".*: stopped on request after epoch [0-9]+[^\\n]*\\n")));
    CHECK(runs.digest(run + " --quiet --resume auto") == unbroken[backend]);
  }
}

TEST_CASE("a request to stop that comes while spawn's ranks still start is heard", "[snapshot]") {
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    const Runs runs;
    Program program = runs.start("03_ddp_spawn 1000000 1000000 --quiet --dataset-size 64");
    for (int i = 0; i < 60000 && ddp::test::children_of(program.pid()).size() < 2; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    kill(program.pid(), signal);
    const RunResult stopped = program.wait();
    INFO(stopped.err);
    CHECK(stopped.exit_code == 85);
    CHECK(fs::exists(runs.file()));
  }
}

TEST_CASE("a resume at every epoch boundary ends on the bits of an unbroken run", "[snapshot]") {
  // Each start goes one epoch further than the one before.
  const std::string small = " --quiet --hidden 16 --global-batch 64 --dataset-size ";
  // One step an epoch, or three of which the last has fewer samples.
  const std::vector<std::string> sizes = {"64", "160"};
  const bool is_short = repeats() <= 5;
  const int epochs = is_short ? 3 : 6;
  const std::vector<std::string> optimizers = {"sgd", "momentum", "adam", "adamw"};
  size_t turn = 0;
  struct Stage {
    std::string line;
    std::vector<std::string> variants;
  };
  const std::vector<std::string> one = {"", " --speedup fused"};
  const std::vector<std::string> several = {"", " --speedup fused", " --shard-optimizer",
                                            " --shard-optimizer --speedup fused"};
  for (const auto& [line, variants] :
       {Stage{"01_single_gpu", one}, Stage{"02_data_parallel --nprocs 2", one},
        Stage{"03_ddp_spawn --nprocs 2", several},
        Stage{"03_ddp_spawn_by_hand --nprocs 2", {"", " --shard-optimizer"}},
        Stage{kMpirun + "04_ddp_launcher", is_short ? one : several},
        Stage{kMpirun + "05_multinode", is_short ? one : several}}) {
    for (const std::string& variant : variants) {
      // A short test takes one of the optimizers, and over all its turns each of them, with either
      // size.
      const size_t first = is_short ? turn % optimizers.size() : 0;
      const size_t last = is_short ? first + 1 : optimizers.size();
      for (size_t i = first; i < last; ++i, ++turn) {
        const std::string& size = sizes[(turn + turn / optimizers.size()) % sizes.size()];
        const std::string run = line + small + size + variant + " --optimizer " + optimizers[i];
        INFO(run);
        const Runs runs;
        std::string resumed;
        for (int epoch = 1; epoch <= epochs; ++epoch) {
          resumed = runs.digest(run + " --save-every 1 --resume auto --total-epochs " +
                                std::to_string(epoch));
        }
        CHECK(resumed ==
              Runs().digest(run + " --save-every 100 --total-epochs " + std::to_string(epochs)));
      }
    }
  }
}

TEST_CASE("a damaged snapshot is named, and the one before it is used", "[snapshot]") {
  const std::string run = "03_ddp_spawn --nprocs 2 --dataset-size 64 --save-every 1 ";
  const Runs runs;
  runs.digest(run + "--total-epochs 3");
  damage(runs.file());
  const RunResult result = runs.start(run + "--total-epochs 4 --resume auto").wait();
  INFO(result.out << result.err);
  CHECK(Runs::digest_of(result) == Runs().digest(run + "--total-epochs 4"));
  CHECK(contains(result.err, "warning: snapshot " + runs.file().string() + " is damaged"));
  CHECK(contains(result.err, "going on from " + runs.file("s.prev").string()));
  CHECK(contains(result.out, "Epoch 2 "));
  CHECK_FALSE(contains(result.out, "Epoch 1 "));
  // None is whole: refused, and nothing is trained.
  damage(runs.file());
  damage(runs.file("s.prev"));
  const RunResult refused = runs.start(run + "--total-epochs 5 --resume auto").wait();
  INFO(refused.err);
  CHECK(refused.exit_code == 3);
  CHECK(refused.out.empty());
  CHECK(std::count(refused.err.begin(), refused.err.end(), '\n') == 1);
  CHECK(contains(refused.err, "snapshot " + runs.file().string() + " "));
  CHECK(contains(refused.err, "snapshot " + runs.file("s.prev").string() + " "));
}

TEST_CASE("training that diverges later leaves the last good snapshot", "[snapshot]") {
  // The loss doubles with each step until it is infinite.
  for (const std::string line :
       {"01_single_gpu", "03_ddp_spawn --nprocs 2", "03_ddp_spawn --nprocs 2 --speedup fused"}) {
    const std::string run = line + " --dataset-size 64 --global-batch 64 --lr 3 --save-every 1 ";
    const Runs runs;
    const RunResult result = runs.start(run + "--total-epochs 1000").wait();
    INFO(line << ": " << result.err);
    REQUIRE(result.exit_code == 1);
    std::smatch match;
    REQUIRE(std::regex_search(result.err, match, std::regex("diverged in epoch (\\d+)")));
    const std::string epochs = match[1];
    REQUIRE(std::stoi(epochs) > 1);
    // What it has saved is what a run of so many epochs has.
    const Runs shorter;
    shorter.start(run + "--total-epochs " + epochs).wait();
    const auto bytes = [](const fs::path& path) {
      std::ifstream file(path, std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    REQUIRE(!bytes(runs.file()).empty());
    CHECK(bytes(runs.file()) == bytes(shorter.file()));
  }
}

TEST_CASE("what each value of --resume does with a snapshot that is there", "[snapshot]") {
  const std::string run = "01_single_gpu --dataset-size 64 --save-every 1 ";
  const std::map<std::string, std::optional<std::string>> restarted = {
      {"SLURM_JOB_ID", "1"}, {"SLURM_RESTART_COUNT", "1"}};
  struct Start {
    std::string resume;
    bool is_restart;
    bool goes_on;
  };
  for (const auto& [resume, is_restart, goes_on] :
       {Start{"", false, false}, Start{"", true, true}, Start{" --resume restart", false, false},
        Start{" --resume restart", true, true}, Start{" --resume auto", false, true},
        Start{" --resume auto", true, true}, Start{" --resume never", false, false},
        Start{" --resume never", true, false}}) {
    const Runs runs;
    runs.digest(run + "--total-epochs 2");
    const RunResult result =
        runs.start(run + "--total-epochs 3" + resume,
                   is_restart ? restarted : std::map<std::string, std::optional<std::string>>{})
            .wait();
    INFO(resume << (is_restart ? " restarted" : " fresh") << result.err);
    CHECK(contains(result.out, "Epoch 0 ") != goes_on);
    CHECK(contains(result.out, "Epoch 2 "));
    CHECK(Runs::digest_of(result) == Runs().digest(run + "--total-epochs 3"));
  }
}

TEST_CASE("a rank that is killed under torchrun --max-restarts: it goes on from the snapshot",
          "[torchrun]") {
  const std::string run = "04_ddp_launcher 3000 10 --dataset-size 64 --optimizer adam";
  const std::string torchrun =
      "torchrun --standalone --no-python --nproc_per_node=2 --max-restarts=1 ";
  const Runs runs;
  Program program = runs.start(torchrun + run);
  REQUIRE(program.wait_for_output("Epoch 30 "));
  const std::vector<pid_t> ranks = ddp::test::children_of(program.pid());
  REQUIRE(ranks.size() == 2);
  kill(ranks[1], SIGKILL);
  const RunResult result = program.wait();
  INFO(result.err);
  const std::string out = "\n" + result.out;
  const std::regex first_epoch("\\] Epoch 0 ");
  CHECK(std::distance(std::sregex_iterator(out.begin(), out.end(), first_epoch), {}) == 2);
  CHECK(Runs::digest_of(result) == Runs().digest(kMpirun + run + " --quiet"));
}

TEST_CASE("rank 0 that is killed while it saves is missed by ranks that torchrun asks to stop",
          "[torchrun]") {
  const RunResult result = run_struck_in_save(
      "torchrun --standalone --no-python --nproc_per_node=3 04_ddp_launcher 2 1 --backend shm", 3,
      SIGKILL);
  INFO(result.err);
  // Or else they would wait for --timeout, 120 s, until torchrun kills them.
  for (const std::string rank : {"1", "2"}) {
    const std::regex said("\\[rank " + rank +
                          "\\] rank 0 \\(pid [0-9]+\\) died while rank 0 writes the snapshot\n");
    CHECK(std::regex_search(result.err, said));
  }
}

TEST_CASE("a symbolic link as --snapshot leads to what is written", "[snapshot]") {
  for (const bool target_exists : {true, false}) {
    const Runs runs;
    fs::create_directory(runs.file("far"));
    fs::create_symlink("far/first", runs.file());
    fs::create_symlink(runs.file("far") / "target", runs.file("far") / "first");
    if (target_exists) {
      runs.digest("01_single_gpu 1 1");
    }
    INFO(target_exists);
    const std::string digest = runs.digest("01_single_gpu 2 1 --resume auto");
    CHECK(fs::is_symlink(runs.file()));
    CHECK(fs::is_symlink(runs.file("far") / "first"));
    CHECK(fs::is_regular_file(fs::symlink_status(runs.file("far") / "target")));
    CHECK(fs::is_regular_file(fs::symlink_status(runs.file("far") / "target.prev")));
    CHECK_FALSE(fs::exists(fs::symlink_status(runs.file("s.prev"))));
    CHECK(runs.digest("01_single_gpu 2 1 --resume auto") == digest);
    fs::remove_all(runs.file("far"));
    const RunResult refused = runs.start("01_single_gpu 2 1").wait();
    CHECK(refused.exit_code == 2);
    CHECK(contains(refused.err, "--snapshot"));
  }
}

TEST_CASE("the longest name that is taken can be saved, resumed, and saved again", "[snapshot]") {
  const Runs runs;
  const std::string longest(255 - ddp::kSnapshotSuffixBytes, 'n');
  fs::create_symlink(longest, runs.file());
  runs.digest("01_single_gpu 3 1");
  CHECK(fs::exists(runs.file(longest + ".prev")));
  fs::remove(runs.file());
  fs::create_symlink(longest + "n", runs.file());
  const RunResult refused = runs.start("01_single_gpu 3 1").wait();
  INFO(refused.err);
  CHECK(refused.exit_code == 2);
  CHECK(contains(refused.err, "got a name of 230 bytes"));
  CHECK(contains(refused.err, "at most 229"));
}
