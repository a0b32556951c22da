// Stages' entry points with real processes: exit codes, messages, signals, and no rank left behind.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "common/base/scratch_folder.hpp"
#include "tests/catch.hpp"
#include "tests/support/processes.hpp"
#include "tests/support/run_program.hpp"

namespace {

using ddp::test::all_gone_within;
using ddp::test::children_of;
using ddp::test::contains;
using ddp::test::Program;
using ddp::test::run_program;
using ddp::test::RunOptions;
using ddp::test::RunResult;
using ddp::test::words;
using Variables = std::map<std::string, std::optional<std::string>>;

constexpr double kGoneSeconds = 20;  // much more than it takes, also on a busy machine

/// spawn_helper lies next to this program.
std::string helper() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "spawn_helper";
}

RunOptions environment(Variables variables) {
  // Whatever started the tests must not look like the launcher of the program.
  for (const std::string& name :
       words("RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE SLURM_STEP_ID DDP_LAUNCHER "
             "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE TORCHELASTIC_RUN_ID")) {
    variables.emplace(name, std::nullopt);
  }
  RunOptions options;
  options.environment = std::move(variables);
  return options;
}

std::vector<std::string> command(const std::string& more = "") {
  std::vector<std::string> argv = words("1 1 --device cpu " + more);
  argv.insert(argv.begin(), helper());
  return argv;
}

RunResult run(const Variables& variables, const std::string& more = "") {
  return run_program(command(more), environment(variables));
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

/// Reads until all ranks have printed "ready".
void wait_until_ready(Program& program, int ranks) {
  for (int i = 0; i < ranks; ++i) {
    REQUIRE(program.wait_for_output("rank " + std::to_string(i) + " ready"));
  }
}

}  // namespace

TEST_CASE("all ranks run and the exit code is 0") {
  const RunResult result = run({}, "--nprocs 3");
  CHECK(result.exit_code == 0);
  CHECK(count(result.out, "of 3 done") == 3);
  CHECK(result.err.empty());
  CHECK(count(run({}).out, "of 2 done") == 2);
  CHECK(count(run({}, "--nprocs 1").out, "rank 0 of 1 done") == 1);
}

TEST_CASE("the ranks meet in the inherited file") {
  const RunResult result = run({{"ALL", "meet"}}, "--nprocs 8");
  CHECK(result.exit_code == 0);
  CHECK(result.out == "all met\n");
}

TEST_CASE("what is buffered is printed") {
  const RunResult result = run({{"ALL", "print"}}, "--nprocs 1");
  CHECK(result.out.find("buffered by C") != std::string::npos);
  CHECK(result.out.find("buffered by C++") != std::string::npos);
}

TEST_CASE("a broken connection is told, and does not end the process; unread output does") {
  const RunResult broken = run({{"HOW", "alone"}, {"ALL", "broken"}});
  INFO(broken.err);
  CHECK(broken.exit_code == 1);
  CHECK(contains(broken.err, "the connection is broken"));
  const RunResult unread =
      run_program({"bash", "-c", "\"$0\" 1 1 --device cpu | true; exit ${PIPESTATUS[0]}", helper()},
                  environment({{"HOW", "alone"}, {"ALL", "chatter"}}));
  INFO(unread.err);
  CHECK(unread.exit_code == 128 + SIGPIPE);
  CHECK(unread.err.empty());
}

TEST_CASE("usage errors are one line, and nothing is started") {
  for (const char* const more : {"--nprocs 0", "--epochs 3", "--global-batch 3 --nprocs 2", "7"}) {
    const RunResult result = run({{"ALL", "sleep"}}, more);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(count(result.err, "\n") == 1);
    CHECK(result.err.find("spawn_helper: error: ") == 0);
  }
  const RunResult cuda = run_program({helper(), "1", "1", "--device", "cuda"},
                                     environment({{"CUDA_VISIBLE_DEVICES", ""}}));
  CHECK(cuda.exit_code == 2);
  CHECK(cuda.err ==
        "spawn_helper: error: --device cuda: found no CUDA device, expected at least one; use "
        "--device cpu\n");
}

TEST_CASE("--help and --version go to stdout") {
  const RunResult help = run_program({helper(), "--help"}, environment({}));
  CHECK(help.exit_code == 0);
  CHECK(help.err.empty());
  for (const char* const word : {"--batch-size", "--global-batch", "default", "SECONDS", "Exit"}) {
    CHECK(help.out.find(word) != std::string::npos);
  }
  const RunResult version = run_program({helper(), "--version"}, environment({}));
  CHECK(version.exit_code == 0);
  CHECK(version.out.find("LibTorch") != std::string::npos);
}

TEST_CASE("--dump-env: every rank says who it is") {
  const RunResult result = run({}, "--dump-env --json --nprocs 3");
  CHECK(result.exit_code == 0);
  std::vector<int> ranks;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json document = nlohmann::json::parse(line);
    CHECK(document.at("launcher") == "spawn");
    CHECK(document.at("world_size") == 3);
    ranks.push_back(document.at("rank"));
  }
  std::sort(ranks.begin(), ranks.end());
  CHECK(ranks == std::vector<int>{0, 1, 2});
}

TEST_CASE("the first failure ends the other ranks and gives the exit code") {
  struct Case {
    const char* action;
    int code;
    const char* rank_says;
    const char* parent_says;  ///< only if the rank could not
  };
  for (const Case& failure :
       std::vector<Case>{{"throw", 1, "error: [rank 1] the message\n", ""},
                         {"usage", 2, "error: [rank 1] got 1, expected 2\n", ""},
                         {"snapshot", 3, "error: [rank 1] damaged\n", ""},
                         {"number", 1, "error: [rank 1] an exception", ""},
                         {"thread_throws", 1, "error: [rank 1] a thread's message\n", ""},
                         {"thread_refuses", 2, "error: [rank 1] got 1\\x0a, expected 2\n", ""},
                         {"abort", 134, "", "rank 1 was killed by signal 6 (Aborted)\n"}}) {
    const RunResult result = run({{"RANK1", failure.action}, {"ALL", "sleep"}}, "--nprocs 3");
    INFO(failure.action << ": " << result.err);
    CHECK(result.exit_code == failure.code);
    CHECK(result.err.find(failure.rank_says) != std::string::npos);
    CHECK(result.err.find(failure.parent_says) != std::string::npos);
    CHECK(count(result.err, "\n") ==
          (*failure.rank_says != '\0' ? 1U : 0U) + (*failure.parent_says != '\0' ? 1U : 0U));
    CHECK(result.seconds < 20);
  }
}

TEST_CASE("the cause is told, and not what it brought about, whoever is faster") {
  struct Case {
    const char* rank2;
    const char* others;
    int code;
    const char* line;
  };
  for (const Case& failure : std::vector<Case>{
           {"fail_in_sight", "fail_after", 1, "error: [rank 2] the cause\n"},
           {"vanish7", "fail_without", 7, "error: rank 2 exited with code 7\n"},
           {"vanish0", "fail_without", 1, "] somebody left (ended with code 0 before: rank 2)\n"},
           {"die_in_sight", "notice_death", 137, "error: rank 2 was killed by signal 9 (Killed)\n"},
       }) {
    // One tracer is all that a process can have.
    const bool traces = std::string(failure.others) == "notice_death";
    for (int i = 0; i < ddp::test::repeats(); ++i) {
      const ddp::ScratchFolder folder("ddp-cause");
      const RunResult result = run({{"RANK2", failure.rank2},
                                    {traces ? "RANK0" : "ALL", failure.others},
                                    {traces ? "RANK1" : "RANK4", "sleep"},
                                    {"MEET", folder.path()}},
                                   traces ? "--nprocs 3" : "--nprocs 4");
      INFO(failure.rank2 << ": " << result.err);
      CHECK(result.exit_code == failure.code);
      CHECK(result.err.ends_with(failure.line));
      CHECK(count(result.err, "\n") == 1);
    }
  }
}

TEST_CASE("the cause is told also where the parent finds several ranks ended") {
  struct Case {
    const char* rank1;
    const char* rank0;
    int code;
    const char* line;
  };
  for (const Case& failure :
       std::vector<Case>{{"fail_in_sight", "abort_after", 1, "error: [rank 1] the cause\n"},
                         {"fail_in_sight", "fail_after", 1, "error: [rank 1] the cause\n"},
                         {"vanish7", "fail_without", 7, "error: rank 1 exited with code 7\n"}}) {
    const ddp::ScratchFolder folder("ddp-cause");
    const RunResult result = run({{"RANK0", failure.rank0},
                                  {"RANK1", failure.rank1},
                                  {"RANK2", "hold_parent"},  // the last: all were started by then
                                  {"MEET", folder.path()},
                                  {"HELD", folder.path() + "/held"}},
                                 "--nprocs 3");
    INFO(failure.rank1 << ", " << failure.rank0 << ": " << result.err);
    CHECK(result.exit_code == failure.code);
    CHECK(result.err.ends_with(failure.line));
    CHECK(count(result.err, "\n") == 1);
  }
}

TEST_CASE("a line of any length arrives, cut at 64 KiB") {
  const RunResult result = run({{"RANK1", "shout"}, {"ALL", "sleep"}}, "--nprocs 2");
  CHECK(result.exit_code == 1);
  CHECK(result.err ==
        "spawn_helper: error: [rank 1] " +
            std::string((1 << 16) - std::string("spawn_helper: error: [rank 1] ").size(), 'x') +
            "\n");
}

TEST_CASE("a rank that ignores SIGTERM is killed after the grace") {
  const RunResult result = run({{"RANK1", "throw"}, {"ALL", "stubborn"}}, "--nprocs 2");
  CHECK(result.exit_code == 1);
  CHECK(count(result.err, "[rank 1] the message") == 1);
  CHECK(result.seconds < 30);
}

TEST_CASE("stopping on request is no error") {
  const RunResult result = run({{"ALL", "again"}});
  CHECK(result.exit_code == 85);
  CHECK(count(result.err, "exited with code") == 0);
  CHECK(run({{"RANK0", "again"}, {"RANK1", "throw"}}).exit_code == 1);
}

TEST_CASE("signals are forwarded to every rank, once each") {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) {
    Program program(command("--nprocs 3"), environment({{"ALL", "stop"}}));
    wait_until_ready(program, 3);
    // To the whole group, as the terminal sends Ctrl-C.
    kill(-program.pid(), signal);
    const RunResult result = program.wait();
    INFO(result.out << result.err);
    CHECK(result.exit_code == 85);
    CHECK(count(result.out, "got signal " + std::to_string(signal) + " x1\n") == 3);
  }
}

TEST_CASE("a second SIGTERM changes nothing") {
  Program program(command("--nprocs 2"), environment({{"ALL", "stop"}}));
  wait_until_ready(program, 2);
  kill(program.pid(), SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  kill(program.pid(), SIGTERM);
  CHECK(program.wait().exit_code == 85);
}

TEST_CASE("a killed rank ends the run and is named") {
  Program program(command("--nprocs 2"), environment({{"ALL", "pid"}}));
  REQUIRE(program.wait_for_output("ready\npid"));
  const std::vector<pid_t> ranks = children_of(program.pid());
  REQUIRE(ranks.size() == 2);
  kill(ranks[1], SIGKILL);
  CHECK(all_gone_within(ranks, kGoneSeconds));
  const RunResult result = program.wait();
  CHECK(result.exit_code == 137);
  CHECK(result.err.find("rank 1 was killed by signal 9 (Killed)\n") != std::string::npos);
}

TEST_CASE("no rank outlives a killed parent") {
  Program program(command("--nprocs 4"), environment({{"ALL", "stubborn"}}));
  wait_until_ready(program, 4);
  const std::vector<pid_t> ranks = children_of(program.pid());
  REQUIRE(ranks.size() == 4);
  kill(program.pid(), SIGKILL);
  CHECK(all_gone_within(ranks, kGoneSeconds));
  CHECK(program.wait().signal == SIGKILL);
}

TEST_CASE("killed while starting, it leaves nobody either") {
  std::size_t seen = 0;
  // On a busy machine the first rank may be long in coming.
  for (int delay_ms = 0; delay_ms < 40 || (seen == 0 && delay_ms < 2000); delay_ms += 4) {
    Program program(command("--nprocs 8"), environment({{"ALL", "sleep"}}));
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    const std::vector<pid_t> ranks = children_of(program.pid());
    seen += ranks.size();
    kill(program.pid(), SIGKILL);
    CHECK(all_gone_within(ranks, kGoneSeconds));
    program.wait();
  }
  CHECK(seen > 0);
}

TEST_CASE("the ranks get the signal mask back, and SIGCHLD is not lost") {
  CHECK(run({{"ALL", "mask"}}).exit_code == 0);
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  Program program(command(), environment({{"RANK0", "usage"}, {"RANK1", "sleep"}}));
  std::signal(SIGCHLD, before);
  CHECK(program.wait().exit_code == 2);
}

TEST_CASE("a launcher that started several processes is refused by stages that start their own") {
  Variables variables = {{"RANK", "0"},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", "0"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "localhost"},
                         {"MASTER_PORT", "29500"},
                         {"TORCHELASTIC_RUN_ID", "x"}};
  for (const char* const how : {"spawn", "alone"}) {
    variables["HOW"] = how;
    const RunResult result = run(variables);
    CHECK(result.exit_code == 2);
    CHECK(result.err.find("04_ddp_launcher") != std::string::npos);
    CHECK(count(result.err, "\n") == 1);
    CHECK(result.out.empty());
  }
  CHECK(run(variables, "--dump-env").exit_code == 0);
  variables["HOW"] = "rank";
  CHECK(run(variables).out == "rank 0 of 2 done\n");
}

TEST_CASE("alone: the error has no rank") {
  const RunResult result = run({{"HOW", "alone"}, {"ALL", "throw"}});
  CHECK(result.exit_code == 1);
  CHECK(result.err == "spawn_helper: error: the message\n");
}

TEST_CASE("torchrun's error file names the cause") {
  const ddp::ScratchFolder folder("ddp-error");
  const std::string path = folder.path() + "/error.json";
  const RunResult result =
      run({{"HOW", "rank"}, {"ALL", "throw"}, {"TORCHELASTIC_ERROR_FILE", path}});
  CHECK(result.exit_code == 1);
  const nlohmann::json document = nlohmann::json::parse(std::ifstream(path));
  const nlohmann::json& message = document.at("message");
  CHECK(message.at("message") == "spawn_helper: error: the message");
  CHECK(message.at("extraInfo").at("py_callstack") == "the message\nand a backtrace");
  CHECK(!message.at("extraInfo").at("timestamp").get<std::string>().empty());
}

TEST_CASE("what main() has said is the last word, whatever a thread throws after it") {
  const RunResult result = run({{"HOW", "rank"}, {"ALL", "main_then_thread"}});
  CHECK(result.exit_code == 75);
  CHECK(result.err == "spawn_helper: error: gone, expected it there\n");
}

TEST_CASE("starts side by side never share a store") {
  std::vector<std::unique_ptr<Program>> programs;
  for (int i = 0; i < 20; ++i) {
    programs.push_back(
        std::make_unique<Program>(command("--nprocs 2"), environment({{"ALL", "meet"}})));
  }
  for (const auto& program : programs) {
    const RunResult result = program->wait();
    CHECK(result.exit_code == 0);
    CHECK(result.out == "all met\n");
  }
}
