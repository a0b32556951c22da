// Stages' entry points with real processes: exit codes, messages, signals, and no rank left behind.

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/base/files.hpp"
#include "common/device/hardware.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

using namespace std::string_literals;

constexpr double kGoneSeconds = 20;  // much more than needed, also on a busy machine

/// @param variables "A=1 B": A is set, B is not
RunOptions environment(const std::string& variables) {
  RunOptions options;
  // The launcher of the tests must not look like the program's launcher.
  options.environment = ddp::test::variables(
      "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE SLURM_STEP_ID DDP_LAUNCHER OMPI_COMM_WORLD_RANK "
      "OMPI_COMM_WORLD_SIZE TORCHELASTIC_RUN_ID PMIX_RANK " +
      variables);
  return options;
}

/// Path of spawn_helper, beside this program.
std::vector<std::string> command(const std::string& more = "") {
  std::vector<std::string> argv = words("helper 1 1 --device cpu " + more);
  argv[0] = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "spawn_helper";
  return argv;
}

RunResult run(const std::string& variables, const std::string& more = "") {
  return run_program(command(more), environment(variables));
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

/// Cores that a thread may run on: "0-3".
std::string cores_of(pid_t thread) {
  const std::string status = ddp::read_text("/proc/" + std::to_string(thread) + "/status");
  const std::string name = "Cpus_allowed_list:\t";
  const size_t begin = status.find(name) + name.size();
  return status.substr(begin, status.find('\n', begin) - begin);
}

std::vector<pid_t> ranks_of(Program& program, size_t ranks) {
  for (size_t rank = 0; rank < ranks; ++rank) {
    REQUIRE(program.wait_for_output("rank " + std::to_string(rank) + " ready"));
  }
  const std::vector<pid_t> pids = children_of(program.pid());
  REQUIRE(pids.size() == ranks);
  return pids;
}

}  // namespace

TEST_CASE("all ranks run, and what they print arrives") {
  const RunResult result = run("", "--nprocs 3");
  CHECK(result.exit_code == 0);
  CHECK(count(result.out, "of 3 done") == 3);
  CHECK(result.err.empty());
  CHECK(count(run("").out, "of 2 done") == 2);
  CHECK(run("ALL=print", "--nprocs 1").out.size() == 30);
  CHECK(count(run("ALL=batch", "--nprocs 2 --global-batch 8").out, "batch 4") == 2);
}

TEST_CASE("the ranks meet at a file in a folder that is gone afterwards") {
  const RunResult result = run("ALL=meet", "--nprocs 8");
  CHECK(result.exit_code == 0);
  REQUIRE(result.out.starts_with("all met at /"));
  const std::string file = result.out.substr(result.out.find('/'));
  CHECK_FALSE(std::filesystem::exists(std::filesystem::path(file).parent_path()));
}

TEST_CASE("how one rank ends is how the run ends, and the reason is printed once") {
  struct Case {
    std::string rank1;
    int code;
    std::string line;
  };
  const std::string rank = "spawn_helper: error: [rank 1] ";
  const std::string parent = "spawn_helper: error: rank 1 ";
  for (const Case& failure :
       std::vector<Case>{{"throw", 1, rank + "the message\n"},
                         {"usage", 2, rank + "got 1\\n, expected 2\n"},
                         {"snapshot", 3, rank + "damaged\n"},
                         {"transient", 75, rank + "gone, expected it there\n"},
                         {"number", 1, rank + "an exception of unknown type\n"},
                         {"thread", 1, rank + "a thread's\n"},
                         {"explained", 75, rank + "a thread's, explained\n"},
                         {"broken", 1, rank + "the connection is broken\n"},
                         {"late", 2, rank + "first\nat the end\n"},
                         {"silent", 1, ""},
                         {"abort", 134, parent + "was killed by signal 6 (Aborted)\n"},
                         {"exit7", 7, parent + "exited with code 7\n"}}) {
    const RunResult result = run("ALL=sleep RANK1=" + failure.rank1, "--nprocs 3");
    INFO(failure.rank1);
    CHECK(result.exit_code == failure.code);
    CHECK(result.err == failure.line);
    CHECK(result.seconds < 20);
  }
  CHECK(run("RANK0=again RANK1=throw").exit_code == 1);
}

TEST_CASE("a rank that ignores SIGTERM is killed after the first grace") {
  Program program(command("--nprocs 2"), environment("RANK1=give_up ALL=stubborn"));
  ranks_of(program, 2);
  kill(program.pid(), SIGTERM);  // has a longer grace than the failure that follows
  const RunResult result = program.wait();
  CHECK(result.exit_code == 1);
  CHECK(result.err == "spawn_helper: error: [rank 1] the message\n");
  CHECK(result.seconds < 25);
}

TEST_CASE("signals are forwarded to every rank, and a second one changes nothing") {
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) {
    Program program(command("--nprocs 3"), environment("ALL=stop"));
    ranks_of(program, 3);
    kill(program.pid(), signal);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    kill(program.pid(), signal);
    const RunResult result = program.wait();
    INFO(result.out << result.err);
    CHECK(result.exit_code == 85);
    CHECK(count(result.out, "got signal " + std::to_string(signal) + "\n") == 3);
  }
  for (const int signal : {SIGINT, SIGHUP}) {
    Program program(command("--nprocs 2"), environment("ALL=sleep"));
    const std::vector<pid_t> ranks = ranks_of(program, 2);
    kill(program.pid(), signal);
    CHECK(all_gone_within(ranks, kGoneSeconds));
    CHECK(program.wait().exit_code == 128 + signal);
  }
}

TEST_CASE("a user's signal that comes while ranks load their libraries stops them in time") {
  Program program(words(DDP_BIN_DIR "/03_ddp_spawn 100000 100000 --nprocs 2"), environment(""));
  while (children_of(program.pid()).size() < 2) {
  }
  kill(program.pid(), GENERATE(SIGUSR1, SIGUSR2));
  CHECK(program.wait().exit_code == 85);
}

TEST_CASE("a SIGHUP that is ignored, as under nohup, reaches no rank") {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  Program program(command("--nprocs 2"), environment("ALL=hangup"));
  std::signal(SIGHUP, before);
  ranks_of(program, 2);
  kill(program.pid(), SIGHUP);
  kill(program.pid(), SIGUSR1);
  CHECK(program.wait().exit_code == 85);
}

TEST_CASE("OpenMP's variables do not put ranks, or replicas, on one core", "[cores]") {
  const std::string whole = cores_of(getpid());
  const std::string core = std::to_string(std::stoi(whole));
  const auto is_free = [&whole](pid_t thread) { return cores_of(thread) == whole; };
  for (const std::string& variable :
       {"OMP_PROC_BIND=true"s, "OMP_PLACES={" + core + "}", "GOMP_CPU_AFFINITY=" + core}) {
    INFO(variable);
    for (const std::string stage : {"/03_ddp_spawn", "/02_data_parallel"}) {
      Program program(words(DDP_BIN_DIR + stage + " 100000 1000000 --nprocs 2"),
                      environment(variable));
      REQUIRE(program.wait_for_output("Epoch 1 "));
      const std::vector<pid_t> ranks = children_of(program.pid());
      CHECK(ranks.size() == (stage == "/03_ddp_spawn" ? 2 : 0));
      CHECK(std::ranges::all_of(ranks, is_free));
      const std::string threads = "/proc/" + std::to_string(program.pid()) + "/task";
      CHECK(std::ranges::any_of(
          std::filesystem::directory_iterator(threads),
          [&](const auto& thread) { return is_free(std::stoi(thread.path().filename())); }));
    }
  }
  for (const std::string rank : {"0", "1"}) {  // of a launcher that was itself bound
    const RunOptions two =
        environment("HOW=rank WORLD_SIZE=2 MASTER_ADDR=::1 MASTER_PORT=1 RANK=" + rank);
    std::vector<std::string> bound = words("taskset -c " + core);
    std::ranges::copy(command(), std::back_inserter(bound));
    for (const auto& argv : {command(), bound}) {
      const bool is_told = rank == "0" && argv == bound;
      CHECK((contains(run_program(argv, two).err, "note: 2 ranks share one") == is_told ||
             ddp::count_cores() == 1));
    }
  }
}

TEST_CASE("under srun SIGTERM ends a rank with an error; rank 1 looks at no file to write") {
  Program program(
      command("--snapshot no/such/x"),
      environment(
          "HOW=rank ALL=sleep SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=1 "
          "SLURM_NODEID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1 "
          "SLURM_STEP_TASKS_PER_NODE=2"));
  REQUIRE(program.wait_for_output("rank 1 ready"));
  kill(program.pid(), SIGTERM);
  CHECK(program.wait().exit_code == 1);
}

TEST_CASE("the ranks get the signal mask back, and SIGCHLD is not lost") {
  CHECK(run("ALL=mask").exit_code == 0);
  std::vector<std::string> ignoring = {"env", "--ignore-signal=CHLD"};
  std::ranges::copy(command(), std::back_inserter(ignoring));
  Program program(ignoring, environment("RANK0=usage RANK1=sleep"));
  CHECK(program.wait().exit_code == 2);
}

TEST_CASE("a launcher that started several processes is refused by stages that start their own") {
  const std::string variables =
      "RANK=1 LOCAL_RANK=1 MASTER_PORT=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost "
      "HOW=";
  for (const char* const how : {"spawn", "alone"}) {
    const RunResult result = run(variables + how);
    check_one_line(result, 2, {"04_ddp_launcher"});
    CHECK(result.out.empty());
  }
  CHECK(run(variables + "rank").out == "rank 1 of 2 done\n");
}

TEST_CASE("alone: the error has no rank, and torchrun's file has the error") {
  const ddp::ScratchFolder folder("ddp-error");
  const std::string path = folder.path() + "/error.json";
  for (const std::string how : {"alone", "rank"}) {
    const RunResult result = run("ALL=throw TORCHELASTIC_ERROR_FILE=" + path + " HOW=" + how);
    CHECK(result.exit_code == 1);
    const std::string note = "spawn_helper: note: no launcher started it, so it trains alone\n";
    CHECK(result.err == (how == "rank" ? note : "") + "spawn_helper: error: the message\n");
    const nlohmann::json message = nlohmann::json::parse(std::ifstream(path)).at("message");
    CHECK(message.at("message") == "spawn_helper: error: the message");
    CHECK(std::stol(message.at("extraInfo").at("timestamp").get<std::string>()) > 0);
    std::filesystem::remove(path);
  }
}
