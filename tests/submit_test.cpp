// submit: its command line, the files it writes, and the state that survives whatever happens.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "common/base/exit_codes.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"
#include "tools/submit/command.hpp"
#include "tools/submit/local_runner.hpp"
#include "tools/submit/plan.hpp"
#include "tools/submit/quoting.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/state.hpp"
#include "tools/submit/submission_file.hpp"

namespace {

namespace fs = std::filesystem;
using namespace ddp::submit;
using ddp::test::run_program;
using ddp::test::RunOptions;
using ddp::test::RunResult;

std::string read(const fs::path& path) {
  return read_text(path.string()).value_or("");
}

void write(const fs::path& path, const std::string& text, bool executable = false) {
  std::ofstream(path, std::ios::binary) << text;
  if (executable) {
    fs::permissions(path, fs::perms::owner_all | fs::perms::group_read | fs::perms::others_read);
  }
}

/// A folder with settings, a program, and schedulers that only pretend.
class Workplace {
 public:
  Workplace() {
    std::string name = (fs::temp_directory_path() / "ddp-submit-XXXXXX").string();
    folder_ = fs::canonical(mkdtemp(name.data()));
    fs::create_directory(folder_ / "bin");
    // Nothing else is on PATH: this machine may have a scheduler of its own.
    for (const char* const tool : {"cat", "flock", "mv", "sed", "sleep"}) {
      const fs::path path = fs::path("/usr/bin") / tool;
      fs::create_symlink(fs::exists(path) ? path : fs::path("/bin") / tool, folder_ / "bin" / tool);
    }
    write(folder_ / "program", "#!/bin/sh\nfor a in \"$@\"; do printf '[%s]\\n' \"$a\"; done\n",
          true);
    settings("");
  }
  ~Workplace() { fs::remove_all(folder_); }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  const fs::path& folder() const { return folder_; }
  fs::path out() const { return folder_ / "out"; }

  void settings(const std::string& more, const std::string& program = "program") const {
    write(folder_ / "s.yaml", "script_path: " + program + "\nout_dir: out\n" + more);
  }
  void tool(const std::string& name, const std::string& script) const {
    write(folder_ / "bin" / name, "#!/bin/bash\n" + script, true);
  }

  RunOptions options() const {
    RunOptions options;
    options.environment["PATH"] = (folder_ / "bin").string();
    options.environment["WORKPLACE"] = folder_.string();
    options.cwd = folder_.string();
    return options;
  }
  static std::vector<std::string> argv(const std::vector<std::string>& arguments) {
    std::vector<std::string> argv = {std::string(DDP_BIN_DIR) + "/submit"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return argv;
  }
  RunResult run(const std::vector<std::string>& arguments) const {
    return run_program(argv(arguments), options());
  }
  RunResult submit(std::vector<std::string> arguments = {}) const {
    arguments.insert(arguments.begin(), {"--settings-file", "s.yaml"});
    return run(arguments);
  }
  nlohmann::json jobs() const {
    const RunResult result = run({"list", "--json", "--out-dir", "out"});
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return nlohmann::json::parse(result.out).at("jobs");
  }

  /// A Slurm that numbers jobs, remembers them with their comments, and knows their states.
  /// @param trouble shell code that runs in sbatch before ($1 = before) and after taking the job
  void make_slurm(const std::string& trouble = ":") const {
    tool("sbatch", R"(trouble() { )" + trouble + R"(; }
[[ $# == 2 && $1 == --parsable ]] || { echo "unexpected arguments: $*" >&2; exit 9; }
comment=$(sed -n 's/^#SBATCH --comment=//p' "$2")
trouble before
exec 8>"$WORKPLACE/slurm.lock"; flock 8
id=$(($(cat "$WORKPLACE/slurm.last" 2>/dev/null || echo 100) + 1))
printf '%s|PENDING|Priority|%s\n' "$id" "$comment" >>"$WORKPLACE/slurm.jobs"
echo "$id" >"$WORKPLACE/slurm.last"
flock -u 8
trouble after
echo "$id"
)");
    tool("squeue", "cat \"$WORKPLACE/slurm.jobs\" 2>/dev/null || true\n");
    tool("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1\n");
    tool("scancel", "echo \"$@\" >>\"$WORKPLACE/cancelled\"\n");
  }
  /// "id|state|reason|comment" of every job that the pretended Slurm has taken.
  std::vector<std::vector<std::string>> slurm_jobs() const {
    std::vector<std::vector<std::string>> jobs;
    std::ifstream file(folder_ / "slurm.jobs");
    for (std::string line; std::getline(file, line);) {
      jobs.push_back(split(line, '|', 4));
    }
    return jobs;
  }
  void set_slurm_state(const std::string& id, const std::string& state) const {
    std::string text;
    for (const auto& job : slurm_jobs()) {
      text += job[0] + "|" + (job[0] == id ? state : job[1]) + "|" + job[2] + "|" + job[3] + "\n";
    }
    write(folder_ / "slurm.jobs", text);
  }

 private:
  fs::path folder_;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Waits at most ten seconds. @return whether it came true
template <typename Condition>
bool wait_until(const Condition& condition) {
  for (int i = 0; i < 1000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

/// A local job that writes its process id into the file `pid` and ends when the file `end` is in
/// its folder.
constexpr const char* kWaits = "#!/bin/sh\necho $$ >pid\nwhile ! [ -e end ]; do sleep 0.05; done\n";

JobRequest make_request(Scheduler scheduler, std::vector<std::string> command) {
  JobRequest job;
  job.name = "name";
  job.folder = "jobs/0-name";
  job.scheduler = scheduler;
  job.command = std::move(command);
  job.resources.cpus = 1;
  return job;
}

}  // namespace

TEST_CASE("submit: HTCondor's spelling of arguments", "[submit]") {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "\"\""},
      {{"50", "10", "--lr=0.1"}, "\"50 10 --lr=0.1\""},
      {{""}, "\"''\""},
      {{"a b", "c\td"}, "\"'a b' 'c\td'\""},
      {{"it's"}, "\"'it''s'\""},
      {{"say \"x\""}, "\"'say \"\"x\"\"'\""},
      {{"$(HOME)"}, "\"'$(DOLLAR)(HOME)'\""},
      {{"$ENV(HOME)"}, "\"'$(DOLLAR)ENV(HOME)'\""},
      {{"$$(Memory)"}, "\"'$$(DOLLARDOLLAR)(Memory)'\""},
      {{"$$$(x)", "$"}, "\"'$$(DOLLARDOLLAR)$(DOLLAR)(x)' '$(DOLLAR)'\""},
      {{"a\\", "#;"}, "\"'a\\' '#;'\""},
  };
  for (const auto& [arguments, expected] : cases) {
    CHECK(condor_arguments(arguments) == expected);
  }
  CHECK_THROWS_AS(condor_arguments({"$(DOLLAR)"}), ddp::UsageError);
  CHECK_THROWS_AS(condor_arguments({"x$$$(Dollar)"}), ddp::UsageError);
  CHECK_NOTHROW(condor_arguments({"$$(DOLLAR)", "$", "(DOLLAR)", "$(DOLLAR:x)"}));
}

TEST_CASE("submit: what no submission file can carry is refused", "[submit]") {
  for (const std::string& text :
       {std::string("a\nb"), std::string("a\rb"), std::string("a\0b", 3), std::string("\x1b[0m"),
        std::string("\x7f"), std::string("\xff"), std::string("\xc0\x80"), std::string("\xf5")}) {
    CHECK_THROWS_AS(check_argument("x", text), ddp::UsageError);
  }
  CHECK_NOTHROW(check_argument("x", ""));
  CHECK_THROWS_AS(check_text("x", ""), ddp::UsageError);
  CHECK_NOTHROW(check_argument("x", "\t $(`;#\"'\\ \xc3\xa9 \xf0\x9f\x98\x80"));
  CHECK_THROWS_AS(condor_path("x", "/a$$(b)"), ddp::UsageError);
  CHECK_THROWS_AS(condor_path("x", "/a\\"), ddp::UsageError);
  CHECK(condor_path("x", "/a$(b)") == "/a$(DOLLAR)(b)");
}

TEST_CASE("submit: an HTCondor job on one node and on several", "[submit]") {
  JobRequest job = make_request(Scheduler::kCondor, {"/bin/p", "50"});
  job.resources.gpus = 2;
  job.resources.cpus = 8;
  job.resources.memory_mb = 1001;
  job.resources.gpu_memory_mb = 60000;
  const std::string one = condor_file(job, "/out", 1, "token-1");
  for (const char* const line :
       {"universe = vanilla\n", "executable = /bin/p\n", "arguments = \"50\"\n",
        "initialdir = /out/jobs/0-name\n", "output = job.out\n", "error = job.err\n",
        "log = job.log\n", "should_transfer_files = NO\n", "request_cpus = 8\n",
        "request_memory = 1001\n", "request_gpus = 2\n", "gpus_minimum_memory = 60000\n",
        "checkpoint_exit_code = 85\n", "+SubmitToken = \"token-1\"\n", "\nqueue\n"}) {
    INFO(line);
    CHECK(contains(one, line));
  }
  for (const char* const part : {"Bid", "accounting_group", "machine_count", "transfer_input_files",
                                 "on_exit_remove", "allowed_execute_duration"}) {
    INFO(part);
    CHECK_FALSE(contains(one, part));
  }
  CHECK(contains(condor_file(job, "/out", 2, "t"), "output = job.2.out\n"));

  job.resources.nodes = 3;
  job.processes_per_node = 2;
  job.several = true;
  job.resources.bid = 100;
  job.resources.account = "group_x.me";
  job.resources.time_s = 3600;
  const std::string several = condor_file(job, "/out", 1, "t");
  for (const char* const line :
       {"universe = parallel\n", "machine_count = 6\n",
        "+ParallelShutdownPolicy = \"WAIT_FOR_ALL\"\n", "request_cpus = 4\n",
        "request_memory = 501\n", "request_gpus = 1\n", "output = job.out.$(Node)\n",
        "DDP_JOB_ID=$(ClusterId).$$([NumJobStarts])\"", "on_exit_remove = ExitCode =!= 85\n",
        "+Bid = 100\n", "accounting_group = group_x.me\n", "allowed_execute_duration = 3600\n"}) {
    INFO(line);
    CHECK(contains(several, line));
  }
  CHECK_FALSE(contains(several, "checkpoint_exit_code"));

  JobRequest transfers = make_request(Scheduler::kCondor, {"/bin/p"});
  transfers.resources.transfer_files = {"/data/a b.csv", "/data/$(x)"};
  const std::string file = condor_file(transfers, "/out", 1, "t");
  CHECK(contains(file, "transfer_input_files = /data/a b.csv,/data/$(DOLLAR)(x)\n"));
  CHECK(
      contains(file, "should_transfer_files = YES\nwhen_to_transfer_output = ON_EXIT_OR_EVICT\n"));
  CHECK(contains(file, "transfer_executable = True\n"));
}

TEST_CASE("submit: a Slurm script's directives", "[submit]") {
  JobRequest job = make_request(Scheduler::kSlurm, {"/bin/p", "a'b", "$(x)"});
  job.resources.nodes = 2;
  job.resources.cpus = 9;
  job.processes_per_node = 4;
  job.resources.gpus = 4;
  job.resources.memory_mb = 256000;
  job.resources.time_s = 90061;
  job.resources.account = "def-keli";
  job.resources.partition = "gpu";
  job.resources.constraint = "a100|h100";
  const std::string script = slurm_file(job, "/out dir", 1, "token-1");
  for (const char* const line :
       {"#SBATCH --nodes=2\n", "#SBATCH --ntasks-per-node=4\n", "#SBATCH --cpus-per-task=2\n",
        "#SBATCH --gpus-per-node=4\n", "#SBATCH --mem=256000M\n", "#SBATCH --time=1-01:01:01\n",
        "#SBATCH --account=def-keli\n", "#SBATCH --partition=gpu\n",
        "#SBATCH --constraint=a100|h100\n", "#SBATCH --comment=token-1\n", "#SBATCH --requeue\n",
        "cd -- '/out dir/jobs/0-name' ||", "  /bin/p 'a'\\''b' '$(x)' &\n"}) {
    INFO(line);
    CHECK(contains(script, line));
  }
}

TEST_CASE("submit: sweeps", "[submit]") {
  const SweepAxis hidden = parse_sweep("--hidden=128\\,128,256,a\\\\b,x\\y");
  CHECK(hidden.key == "hidden");
  CHECK(hidden.values == std::vector<std::string>{"128,128", "256", "a\\b", "x\\y"});
  const std::vector<SweepPoint> points =
      sweep_points({parse_sweep("lr=0.1,0.01"), parse_sweep("seed=1,2,3")});
  REQUIRE(points.size() == 6);
  CHECK(points[0] == SweepPoint{{"lr", "0.1"}, {"seed", "1"}});
  CHECK(points[1] == SweepPoint{{"lr", "0.1"}, {"seed", "2"}});
  CHECK(points[5] == SweepPoint{{"lr", "0.01"}, {"seed", "3"}});
  CHECK(sweep_points({}).size() == 1);
  for (const char* const bad : {"lr", "=1", "lr=", "lr=1,,2", "lr=1,1", "l r=1", "lr=a\nb"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_sweep(bad), ddp::UsageError);
  }
  CHECK_THROWS_AS(sweep_points({parse_sweep("batch-size=1"), parse_sweep("batch_size=2")}),
                  ddp::UsageError);
  std::string many = "a=0";
  for (int i = 1; i < 101; ++i) {
    many += "," + std::to_string(i);
  }
  SweepAxis second = parse_sweep(many);
  second.key = "b";
  CHECK_THROWS_AS(sweep_points({parse_sweep(many), second}), ddp::UsageError);
}

TEST_CASE("submit: the scheduler's answer is the job's id and nothing else", "[submit]") {
  CHECK(parse_condor_id("12.0 - 12.0\n") == "12");
  CHECK(parse_slurm_id("1234\n") == "1234");
  CHECK(parse_slurm_id("1234;gpu-cluster\n") == "1234;gpu-cluster");
  for (const char* const bad :
       {"", "\n", "12", "12.0 - 12.1\n", "12.0 - 13.0\n", "12.0 - 12.0\n13.0 - 13.0\n",
        "WARNING\n12.0 - 12.0\n", ".0 - .0\n", "12.0 - 12.0 \n"}) {
    INFO(bad);
    CHECK_FALSE(parse_condor_id(bad).has_value());
  }
  for (const char* const bad : {"", "\n", "Submitted batch job 12\n", "12\n13\n", "12;\n", "012\n",
                                "-1\n", "12 \n", "12;a b\n", "12;a;b\n", "12\n\n"}) {
    INFO(bad);
    CHECK_FALSE(parse_slurm_id(bad).has_value());
  }
}

TEST_CASE("submit: HTCondor's log of a job", "[submit]") {
  const std::string submitted = "000 (012.000.000) 2026-01-01 Job submitted from host: <x>\n...\n";
  const std::string runs = submitted + "001 (012.000.000) 2026-01-01 Job executing on host\n...\n";
  const auto state = [](const std::string& text) { return parse_condor_log(text)->finding.state; };
  CHECK_FALSE(parse_condor_log("").has_value());
  CHECK_FALSE(parse_condor_log("000 (012.000.000) half an eve").has_value());
  CHECK(parse_condor_log(submitted)->id == "12");
  CHECK(state(submitted) == JobState::kPending);
  CHECK(state(runs) == JobState::kRunning);
  CHECK(state(runs + "004 (012.000.000) x Job was evicted.\n...\n") == JobState::kPending);
  const CondorLog held = *parse_condor_log(
      runs + "012 (012.000.000) x Job was held.\n\tno such file\n\tCode 6\n...\n");
  CHECK(held.finding.state == JobState::kHeld);
  CHECK(held.finding.reason == "no such file");
  CHECK(state(runs + "009 (012.000.000) x Job was aborted.\n...\n") == JobState::kCancelled);
  const std::string end =
      "005 (012.000.000) x Job terminated.\n\t(1) Normal termination (return value ";
  CHECK(state(runs + end + "0)\n...\n") == JobState::kDone);
  CHECK(parse_condor_log(runs + end + "3)\n...\n")->finding.exit_code == 3);
  CHECK(state(runs + end + "3)\n...\n") == JobState::kFailed);
  CHECK(state(runs + "005 (012.000.000) x\n\t(0) Abnormal termination (signal 9)\n...\n") ==
        JobState::kFailed);
  // An event that is still being written does not count yet, nor one of another job.
  CHECK(state(runs + end + "0)\n") == JobState::kRunning);
  CHECK(state(runs + "005 (013.000.000) x\n\t(1) Normal termination (return value 0)\n...\n") ==
        JobState::kRunning);
}

TEST_CASE("submit: command lines that are refused", "[submit]") {
  const Workplace place;
  place.make_slurm();
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {{}, {"--settings-file is missing"}},
      {{"--settings-file"}, {"--settings-file has no value"}},
      {{"--settings-file="}, {"--settings-file is empty"}},
      {{"--settings-file", "none.yaml"}, {"none.yaml", "No such file"}},
      {{"--settings-file", "."}, {"folder", "settings file"}},
      {{"--settings-file", "s.yaml", "--settings-file", "s.yaml"}, {"given twice"}},
      {{"--setings-file", "s.yaml"}, {"--setings-file", "did you mean --settings-file?"}},
      {{"--settings-file", "s.yaml", "--scheduler", "pbs"},
       {"--scheduler", "pbs", "condor, slurm"}},
      {{"--settings-file", "s.yaml", "--nodes", "0"}, {"--nodes", "\"0\""}},
      {{"--settings-file", "s.yaml", "--nodes", "2", "--nodes", "3"}, {"--nodes was given twice"}},
      {{"--settings-file", "s.yaml", "--nodes", "-1"}, {"--nodes", "\"-1\""}},
      {{"--settings-file", "s.yaml", "--gpus", "0", "1", "1"}, {"--gpus", "twice"}},
      {{"--settings-file", "s.yaml", "--gpus", "all"}, {"--gpus", "\"all\""}},
      {{"--settings-file", "s.yaml", "--time", "12"}, {"--time", "\"12\"", "HH:MM:SS"}},
      {{"--settings-file", "s.yaml", "--account", "a b"}, {"--account", "\"a b\""}},
      {{"--settings-file", "s.yaml", "--account", "a\nb"}, {"--account", "\\x0a"}},
      {{"--settings-file", "s.yaml", "--partition", "x;y"}, {"--partition", "\"x;y\""}},
      {{"--settings-file", "s.yaml", "--sweep", "lr"}, {"--sweep", "\"lr\""}},
      {{"--settings-file", "s.yaml", "--sweep", "lr=1,1"}, {"lr", "twice"}},
      {{"--settings-file", "s.yaml", "--dry-run=yes"}, {"--dry-run", "expected none"}},
      {{"--settings-file", "s.yaml", "50", "10"}, {"50"}},
      {{"--settings-file", "s.yaml", "--sweep", "lr=1", "--", "--lr", "2"}, {"--lr", "once"}},
      {{"--settings-file", "s.yaml", "--", "a\nb"}, {"program argument 1", "\\x0a"}},
      {{"--settings-file", "s.yaml", "--", "ok", "\xff"}, {"program argument 2", "\\xff", "UTF-8"}},
      {{"--settings-file", "s.yaml", "--scheduler", "local", "--nodes", "2"}, {"nodes", "local"}},
      {{"--settings-file", "s.yaml", "--scheduler", "local", "--gpus", "0"}, {"--gpus", "program"}},
      {{"lst"}, {"\"lst\"", "did you mean list?"}},
      {{"frobnicate"}, {"\"frobnicate\"", "resubmit"}},
      {{"list"}, {"no submissions in", "out_dir"}},
      {{"list", "nowhere"}, {"no submissions in", "nowhere"}},
      {{"list", "--settings-file", "s.yaml", "x"}, {"one of them"}},
      {{"list", "--", "x"}, {"--"}},
      {{"cancel", "--out-dir", "out"}, {"no job was given", "--all"}},
      {{"resubmit", "--failed", "3"}, {"--failed and job numbers"}},
      {{"resubmit", "3", "1", "3"}, {"job 3 was given twice"}},
      {{"logs", "--lines", "x"}, {"--lines", "\"x\""}},
      {{"status", "--failed"}, {"--failed"}},
  };
  for (const auto& [arguments, named] : cases) {
    const RunResult result = place.run(arguments);
    INFO((arguments.empty() ? "" : arguments.back()) << "\nstderr: " << result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    for (const std::string& word : named) {
      CHECK(contains(result.err, word));
    }
    CHECK_FALSE(fs::exists(place.out()));
  }
}

TEST_CASE("submit: settings that no scheduler could carry out are refused", "[submit]") {
  const Workplace place;
  place.make_slurm();
  write(place.folder() / "03_ddp_spawn", "#!/bin/sh\n", true);
  write(place.folder() / "plain.py", "print()\n");
  const std::string condor = "local:\n  condor:\n    ";
  struct Case {
    std::string program;
    std::string settings;
    std::vector<std::string> arguments;
    std::vector<std::string> named;
  };
  const std::vector<Case> cases = {
      {"missing", "", {}, {"script_path", "missing", "No such file"}},
      {"bin", "", {}, {"script_path", "not a folder"}},
      {"plain.py", "", {}, {"script_path", "plain.py", "chmod +x"}},
      {"03_ddp_spawn", "nodes: 2\n", {}, {"nodes", "03_ddp_spawn", "05_multinode"}},
      {"program",
       condor + "memory_gpus: 5\n    num_gpus: 1\n",
       {"--scheduler", "slurm"},
       {"memory_gpus", "Slurm", "constraint"}},
      {"program", condor + "memory_gpus: 5\n", {}, {"memory_gpus", "num_gpus 0"}},
      {"program", "local: {device: cuda}\n", {}, {"device", "num_gpus 0"}},
      {"program", "local: {device: cpu, condor: {num_gpus: 1}}\n", {}, {"num_gpus", "cpu"}},
      {"program",
       "nodes: 2\n" + condor + "num_cpus: 1\n    num_gpus: 2\n",
       {},
       {"num_cpus", "at least 2"}},
      {"program",
       condor + "transfer_files: [s.yaml]\n",
       {"--scheduler", "slurm"},
       {"transfer_files", "slurm"}},
      {"program",
       condor + "transfer_files: [s.yaml]\n",
       {"--nodes", "2", "--scheduler", "condor"},
       {"transfer_files", "nodes 2"}},
      {"program", condor + "transfer_files: [\"a,b\"]\n", {"--scheduler", "condor"}, {"commas"}},
      {"program", condor + "transfer_files: [none]\n", {"--scheduler", "condor"}, {"none"}},
  };
  for (const Case& bad : cases) {
    place.settings(bad.settings, bad.program);
    const RunResult result = place.submit(bad.arguments);
    INFO(bad.program << "\n" << bad.settings << "\nstderr: " << result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    for (const std::string& word : bad.named) {
      CHECK(contains(result.err, word));
    }
    CHECK_FALSE(fs::exists(place.out()));
  }
}

TEST_CASE("submit: a dry run prints what a real one does, and does nothing", "[submit]") {
  const Workplace place;
  place.make_slurm();
  place.settings("arguments: [50, 'a b']\n");
  const std::vector<std::string> options = {"--scheduler", "slurm", "--time", "01:00:00"};
  std::vector<std::string> dry = options;
  dry.emplace_back("--dry-run");
  const RunResult before = place.submit(dry);
  CHECK(before.exit_code == 0);
  CHECK(before.err.empty());
  CHECK_FALSE(fs::exists(place.out()));
  CHECK(place.slurm_jobs().empty());

  REQUIRE(place.submit(options).exit_code == 0);
  const std::string written = read(place.out() / "submission_file.sbatch");
  // The same but for the number that the out_dir got.
  std::string expected = before.out;
  const std::string token = place.slurm_jobs().at(0).at(3);
  expected.replace(expected.find("submit-NEW-0-1"), std::string("submit-NEW-0-1").size(), token);
  CHECK(contains(expected, written));
  CHECK(contains(expected,
                 "\nsbatch --parsable " + (place.out() / "submission_file.sbatch").string()));

  // From now on it is exact: the next job, with its number.
  dry.insert(dry.end(), {"--sweep", "x=1,2"});
  const RunResult after = place.submit(dry);
  CHECK(contains(after.out, token.substr(0, token.size() - 3) + "1-1"));
  CHECK(contains(after.out, "jobs/2-x-2"));
  CHECK_FALSE(fs::exists(place.out() / "jobs/1-x-1"));
}

TEST_CASE("submit: a program's arguments in a sweep on Slurm, and everything after", "[submit]") {
  const Workplace place;
  place.make_slurm();
  write(place.folder() / "01_single_gpu", "#!/bin/sh\n", true);
  place.settings("arguments: [50, 10]\nlocal: {device: cpu}\n", "01_single_gpu");
  const RunResult result = place.submit(
      {"--sweep", "lr=0.1,0.01", "--sweep", "seed=1,2", "--", "5", "1", "--snapshot=x"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  nlohmann::json jobs = place.jobs();
  REQUIRE(jobs.size() == 4);
  CHECK(jobs[1].at("name") == "lr-0.1_seed-2");
  const std::vector<std::string> command = jobs[1].at("command");
  CHECK(command == std::vector<std::string>{(place.folder() / "01_single_gpu").string(), "5", "1",
                                            "--snapshot=x", "--lr", "0.1", "--seed", "2",
                                            "--device", "cpu", "--metrics", "metrics.jsonl",
                                            "--resume", "auto"});
  std::set<std::string> folders;
  for (std::size_t i = 0; i < 4; ++i) {
    folders.insert(jobs[i].at("folder").get<std::string>());
    CHECK(fs::exists(jobs[i].at("folder").get<std::string>() + "/submission_file.sbatch"));
    CHECK(jobs[i].at("id") == place.slurm_jobs()[i][0]);
    CHECK(jobs[i].at("state") == "pending");
  }
  CHECK(folders.size() == 4);
  CHECK_FALSE(fs::exists(place.out() / "submission_file.sbatch"));

  // status asks: the queue, then what the job's script left, then nobody knows.
  place.set_slurm_state("101", "RUNNING");
  place.set_slurm_state("102", "COMPLETED");
  place.set_slurm_state("103", "FAILED");
  write(jobs[2].at("folder").get<std::string>() + "/exit_code", "103 7\n");
  RunResult status = place.run({"status", "out"});
  INFO(status.out << status.err);
  CHECK(status.exit_code == 0);
  jobs = place.jobs();
  CHECK(jobs[0].at("state") == "running");
  CHECK(jobs[1].at("state") == "done");
  CHECK(jobs[2].at("state") == "failed");
  CHECK(jobs[2].at("exit_code") == 7);
  CHECK(jobs[3].at("state") == "pending");
  CHECK(contains(status.out, "exit code 7"));

  // Without an answer the last known states stay, and the exit code says so.
  place.tool("squeue",
             "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1\n");
  status = place.run({"status", "--json", "--out-dir", "out"});
  CHECK(status.exit_code == 75);
  CHECK(contains(status.err, "Unable to contact"));
  const nlohmann::json document = nlohmann::json::parse(status.out);
  CHECK(document.at("unreachable").size() == 1);
  CHECK(document.at("jobs")[0].at("state") == "running");
  place.make_slurm();

  // What failed is submitted again, as the same job in the same folder.
  const RunResult again = place.run({"resubmit", "--failed", "out"});
  INFO(again.err);
  CHECK(again.exit_code == 0);
  jobs = place.jobs();
  CHECK(jobs[2].at("state") == "pending");
  CHECK(jobs[2].at("attempt") == 2);
  CHECK(jobs[2].at("id") == "105");
  CHECK(place.slurm_jobs().size() == 5);
  CHECK(place.run({"resubmit", "--failed", "out"}).exit_code == 0);
  CHECK(place.slurm_jobs().size() == 5);
  CHECK(place.run({"resubmit", "0", "out"}).exit_code == 2);  // it runs

  write(jobs[0].at("folder").get<std::string>() + "/job-101.out", "one\ntwo\nthree\n");
  const RunResult tail = place.run({"logs", "0", "out", "--lines", "2"});
  CHECK(contains(tail.out, "<==\ntwo\nthree\n"));
  CHECK_FALSE(contains(tail.out, "one"));
  CHECK(place.run({"logs", "3", "out"}).exit_code == 1);

  CHECK(place.run({"cancel", "0", "3", "out"}).exit_code == 0);
  CHECK(read(place.folder() / "cancelled") == "101\n104\n");
  CHECK(place.jobs()[3].at("state") == "cancelled");
  CHECK(place.run({"cancel", "9", "out"}).exit_code == 2);

  // What the user has cancelled comes back only by its number.
  CHECK(contains(place.run({"resubmit", "--failed", "out"}).out, "nothing to resubmit"));
  CHECK(place.slurm_jobs().size() == 5);
  CHECK(place.run({"resubmit", "3", "out"}).exit_code == 0);
  CHECK(place.jobs()[3].at("state") == "pending");
  CHECK(place.slurm_jobs().size() == 6);
}

TEST_CASE("submit: HTCondor is asked for jobs, and its log where it does not answer", "[submit]") {
  const Workplace place;
  place.tool("condor_submit", "[[ $1 == -terse && $# == 2 ]] || exit 9\necho '7.0 - 7.0'\n");
  place.tool("condor_q", "[[ $1 == 7 ]] && cat \"$WORKPLACE/queue\"\n");
  place.tool("condor_history", "cat \"$WORKPLACE/history\"\n");
  place.tool("condor_rm", "echo \"$@\" >>\"$WORKPLACE/cancelled\"\n");
  write(place.folder() / "queue", "7 5 The job has no legs\n");
  write(place.folder() / "history", "");
  REQUIRE(place.submit().exit_code == 0);
  CHECK(fs::exists(place.out() / "submission_file.sub"));
  REQUIRE(place.run({"status", "out"}).exit_code == 0);
  CHECK(place.jobs()[0].at("state") == "held");
  CHECK(place.jobs()[0].at("reason") == "The job has no legs");
  write(place.folder() / "queue", "");
  write(place.folder() / "history", "7 4 3 undefined\n");
  REQUIRE(place.run({"status", "out"}).exit_code == 0);
  CHECK(place.jobs()[0].at("state") == "failed");
  CHECK(place.jobs()[0].at("exit_code") == 3);

  place.tool("condor_submit", "echo '8.0 - 8.0'\n");
  REQUIRE(place.submit().exit_code == 0);
  place.tool("condor_q", "echo 'Failed to connect to the schedd' >&2; exit 1\n");
  write(place.out() / "jobs/1-program/job.log",
        "000 (008.000.000) x\n...\n005 (008.000.000) x\n\t(1) Normal termination (return value "
        "0)\n...\n");
  const RunResult status = place.run({"status", "out"});
  CHECK(status.exit_code == 75);
  CHECK(contains(status.err, "Failed to connect"));
  CHECK(place.jobs()[1].at("state") == "done");
}

TEST_CASE("submit: a scheduler that fails, lies or is slow", "[submit]") {
  struct Case {
    std::string trouble;  ///< of sbatch
    bool answers;  ///< squeue does
    int code;
    std::string state;
    std::string named;
  };
  const std::vector<Case> cases = {
      // Refused, and squeue knows no such job.
      {"[[ $1 == before ]] && { echo 'sbatch: error: invalid partition' >&2; exit 1; }", true, 1,
       "refused", "invalid partition"},
      // Taken, though sbatch reports an error: no second job may come of it.
      {"[[ $1 == after ]] && { echo 'Socket timed out' >&2; exit 1; }", true, 0, "pending", ""},
      // Taken, but the answer is no id.
      {"[[ $1 == after ]] && echo 'Welcome to the cluster!'", true, 0, "pending", ""},
      // Nobody knows.
      {"[[ $1 == after ]] && exit 1", false, 75, "maybe-submitted", "not known"},
  };
  for (const Case& one : cases) {
    const Workplace place;
    place.make_slurm(one.trouble);
    if (!one.answers) {
      place.tool("squeue", "echo 'no controller' >&2; exit 1\n");
    }
    const RunResult result = place.submit();
    INFO(one.trouble << "\n" << result.err);
    CHECK(result.exit_code == one.code);
    CHECK(contains(result.err, one.named));
    CHECK(place.jobs()[0].at("state") == one.state);
    if (one.state != "refused") {
      // The one that nobody knew is found as soon as squeue answers.
      place.make_slurm();
      CHECK(place.run({"resubmit", "--failed", "out"}).exit_code == 0);
      CHECK(place.jobs()[0].at("state") == "pending");
      CHECK(place.slurm_jobs().size() == 1);
    }
  }
  const Workplace none;
  const RunResult result = none.submit({"--scheduler", "slurm"});
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "sbatch is not on PATH"));
  CHECK(none.submit().exit_code == 2);
}

TEST_CASE("submit: killed at any moment, no job is lost or doubled", "[submit][crash]") {
  const Workplace place;
  // Some sbatch take the job at once, others late; all end after submit was killed.
  place.make_slurm("sleep 0.0$((RANDOM % 6))");
  constexpr int kSweep = 12;
  std::string sweep = "x=0";
  for (int i = 1; i < kSweep; ++i) {
    sweep += "," + std::to_string(i);
  }
  unsigned random = 7;
  int kills = 0;
  bool first = true;
  const auto all_submitted = [&] {
    if (!StateFile::exists(place.out().string())) {
      return false;
    }
    const nlohmann::json jobs = place.jobs();
    return jobs.size() == kSweep && std::all_of(jobs.begin(), jobs.end(), [](const auto& job) {
             return job.at("state") == "pending";
           });
  };
  for (int round = 0; round < 400 && !all_submitted(); ++round) {
    // The first call that got far enough to have the jobs in its state is followed by
    // resubmissions.
    first = first && !(StateFile::exists(place.out().string()) && !place.jobs().empty());
    const std::vector<std::string> arguments =
        first ? std::vector<std::string>{"--settings-file", "s.yaml", "--sweep", sweep}
              : std::vector<std::string>{"resubmit", "--failed", "out"};
    RunOptions options = place.options();
    ddp::test::Program program(Workplace::argv(arguments), options);
    random = random * 1664525U + 1013904223U;
    std::this_thread::sleep_for(std::chrono::microseconds((random >> 8U) % 90000));
    // In turn submit alone, so that an sbatch on its way goes on, and both.
    const bool alone = round % 2 == 0;
    if (kill(alone ? program.pid() : -program.pid(), SIGKILL) == 0) {
      ++kills;
    }
    // Until whatever still holds the lock has ended: Program's end kills the group.
    const int fd = open((place.out() / "submissions.lock").c_str(), O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
      flock(fd, LOCK_EX);
      close(fd);
    }
  }
  REQUIRE(all_submitted());
  CHECK(kills > 3);
  const auto taken = place.slurm_jobs();
  const nlohmann::json jobs = place.jobs();
  INFO(kills << " kills");
  CHECK(taken.size() == kSweep);
  std::map<std::string, int> by_job;
  for (const auto& job : taken) {
    const std::vector<std::string> parts = split(job[3], '-', 4);  // submit-ID-JOB-ATTEMPT
    by_job[parts.at(2)] += 1;
    CHECK(jobs[static_cast<std::size_t>(std::stoi(parts.at(2)))].at("id") == job[0]);
  }
  CHECK(by_job.size() == kSweep);
  for (const auto& [index, count] : by_job) {
    INFO("job " << index);
    CHECK(count == 1);
  }
}

TEST_CASE("submit: a state cut off anywhere is read up to there", "[submit][crash]") {
  const Workplace place;
  place.make_slurm();
  REQUIRE(place.submit({"--sweep", "x=1,2"}).exit_code == 0);
  const fs::path path = place.out() / "submissions.jsonl";
  const std::string whole = read(path);
  std::size_t last = 0;
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    write(path, whole.substr(0, size));
    const StateFile state(place.out().string(), StateFile::Access::kRead);
    CHECK(state.jobs().size() >= last);
    last = state.jobs().size();
  }
  CHECK(last == 2);
  // Writing on after a cut leaves whole lines only.
  write(path, whole.substr(0, whole.size() - 5));
  {
    StateFile state(place.out().string(), StateFile::Access::kWrite);
    CHECK(state.job(1).state == JobState::kSubmitting);
    state.submitted(1, "99");
  }
  const StateFile repaired(place.out().string(), StateFile::Access::kRead);
  CHECK(repaired.job(1).id == "99");
  // Damage in the middle is no crash: refused with its line.
  std::string damaged = whole;
  damaged[damaged.find('\n') + 3] = '\x01';
  write(path, damaged);
  const RunResult result = place.run({"list", "out"});
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "submissions.jsonl:2:"));
}

TEST_CASE("submit: two at once lose nothing", "[submit][crash]") {
  const Workplace place;
  place.make_slurm();
  constexpr int kAtOnce = 6;
  std::vector<std::thread> threads;
  std::vector<int> codes(kAtOnce, -1);
  for (int i = 0; i < kAtOnce; ++i) {
    threads.emplace_back([&, i] { codes[static_cast<std::size_t>(i)] = place.submit().exit_code; });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(codes == std::vector<int>(kAtOnce, 0));
  const nlohmann::json jobs = place.jobs();
  REQUIRE(jobs.size() == kAtOnce);
  std::set<std::string> ids;
  for (const nlohmann::json& job : jobs) {
    ids.insert(job.at("id").get<std::string>());
  }
  CHECK(ids.size() == kAtOnce);
  CHECK(place.slurm_jobs().size() == kAtOnce);
}

TEST_CASE("submit: local jobs run here, one after another", "[submit]") {
  const Workplace place;
  write(place.folder() / "program",
        "#!/bin/sh\nfor a in \"$@\"; do printf '[%s]' \"$a\"; done\necho \" in ${PWD##*/}\"\n"
        "n=$(cat runs 2>/dev/null || echo 0); echo $((n + 1)) >runs\n"
        "[ \"$2\" != 2 ] || exit 3\n[ \"$2\" != 3 ] || [ $n -ge 2 ] || exit 85\n",
        true);
  RunResult result = place.submit({"--scheduler", "local", "--sweep", "x=1,2,3"});
  INFO(result.out << result.err);
  CHECK(result.exit_code == 1);
  nlohmann::json jobs = place.jobs();
  CHECK(jobs[0].at("state") == "done");
  CHECK(jobs[1].at("state") == "failed");
  CHECK(jobs[1].at("exit_code") == 3);
  CHECK(jobs[2].at("state") == "done");  // the third start, after two that ended with 85
  CHECK(read(place.out() / "jobs/0-x-1/job.out") == "[--x][1] in 0-x-1\n");
  CHECK(read(place.out() / "jobs/2-x-3/runs") == "3\n");
  CHECK(contains(place.run({"logs", "0", "out"}).out, "[--x][1]"));

  // A job whose submit is gone is lost, not running for ever; its process is gone with it.
  write(place.folder() / "program", "#!/bin/sh\necho $$ >pid\nexec sleep 100\n", true);
  {
    ddp::test::Program program(
        Workplace::argv({"--settings-file", "s.yaml", "--scheduler", "local"}), place.options());
    const fs::path pid = place.out() / "jobs/3-program/pid";
    for (int i = 0; i < 1000 && read(pid).empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    CHECK(place.run({"status", "out"}).exit_code == 0);
    CHECK(place.jobs()[3].at("state") == "running");
    kill(program.pid(), SIGKILL);
    program.wait();
    const pid_t child = std::stoi(read(pid));
    for (int i = 0; i < 500 && kill(child, 0) == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    CHECK(kill(child, 0) != 0);
  }
  CHECK(place.run({"status", "out"}).exit_code == 0);
  CHECK(place.jobs()[3].at("state") == "lost");

  // Ctrl-C ends the job that runs and keeps the others for later.
  ddp::test::Program program(
      Workplace::argv({"--settings-file", "s.yaml", "--scheduler", "local", "--sweep", "y=1,2"}),
      place.options());
  const fs::path pid = place.out() / "jobs/4-y-1/pid";
  for (int i = 0; i < 1000 && read(pid).empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(program.pid(), SIGINT);
  CHECK(program.wait().exit_code == 1);
  jobs = place.jobs();
  CHECK(jobs[4].at("state") == "failed");
  CHECK(jobs[5].at("state") == "planned");
}

TEST_CASE("submit: what happens to a local job whose turn has not come counts", "[submit]") {
  const Workplace place;
  write(place.folder() / "program", kWaits, true);
  const auto running = [&](const std::string& folder) {
    return wait_until([&] { return !read(place.out() / "jobs" / folder / "pid").empty(); });
  };
  const auto end = [&](const std::string& folder) {
    write(place.out() / "jobs" / folder / "end", "");
  };
  ddp::test::Program first(
      Workplace::argv({"--settings-file", "s.yaml", "--scheduler", "local", "--sweep", "x=1,2,3"}),
      place.options());
  REQUIRE(running("0-x-1"));

  SECTION("cancelled: it does not run") {
    CHECK(place.run({"cancel", "1", "out"}).exit_code == 0);
    end("0-x-1");
    REQUIRE(running("2-x-3"));
    end("2-x-3");
    const RunResult result = first.wait();
    CHECK(result.exit_code == 1);
    CHECK(contains(result.out, "job 1 (2 of 3) x-2: left out, it is cancelled by now\n"));
    CHECK(place.jobs()[1].at("state") == "cancelled");
    CHECK(place.jobs()[2].at("state") == "done");
    CHECK_FALSE(fs::exists(place.out() / "jobs/1-x-2"));
  }
  SECTION("submitted by another: it runs there, and the ones behind it run") {
    ddp::test::Program second(Workplace::argv({"resubmit", "--failed", "out"}), place.options());
    REQUIRE(running("1-x-2"));
    end("0-x-1");
    REQUIRE(running("2-x-3"));
    end("2-x-3");
    const RunResult result = first.wait();
    INFO(result.out << result.err);
    CHECK(result.err.empty());
    CHECK(contains(result.out, "job 1 (2 of 3) x-2: left out, it is running by now\n"));
    CHECK(result.exit_code == 1);  // not all are done yet
    end("1-x-2");
    const RunResult others = second.wait();
    INFO(others.out << others.err);
    CHECK(others.exit_code == 0);
    CHECK(contains(others.out, "job 2 (2 of 2) x-3: left out, it is done by now\n"));
    for (const nlohmann::json& job : place.jobs()) {
      CHECK(job.at("state") == "done");
      CHECK(job.at("attempt") == 1);
    }
  }
  SECTION("its folder is still in use: it is left out, and the ones behind it run") {
    fs::create_directories(place.out() / "jobs/1-x-2");
    const std::string path = (place.out() / "jobs/1-x-2/running.lock").string();
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    REQUIRE(flock(fd, LOCK_EX | LOCK_NB) == 0);
    end("0-x-1");
    REQUIRE(running("2-x-3"));
    end("2-x-3");
    const RunResult result = first.wait();
    close(fd);
    CHECK(result.err.empty());
    CHECK(contains(result.out, "job 1 (2 of 3) x-2: left out, its last start has not ended yet"));
    CHECK(place.jobs()[1].at("state") == "planned");
    CHECK(place.jobs()[2].at("state") == "done");
  }
}

TEST_CASE("submit: a running local job is cancelled, and the next one's turn comes", "[submit]") {
  const Workplace place;
  write(place.folder() / "program", kWaits, true);
  ddp::test::Program program(
      Workplace::argv({"--settings-file", "s.yaml", "--scheduler", "local", "--sweep", "x=1,2"}),
      place.options());
  const auto pid_of = [&](const std::string& folder) {
    const fs::path path = place.out() / "jobs" / folder / "pid";
    wait_until([&] { return contains(read(path), "\n"); });
    return std::stoi(read(path));
  };
  const pid_t child = pid_of("0-x-1");
  const RunResult cancel = place.run({"cancel", "0", "out"});
  CHECK(cancel.exit_code == 0);
  CHECK(cancel.out == "job 0 cancelled\n");
  CHECK(wait_until([child] { return kill(child, 0) != 0; }));
  CHECK(place.jobs()[0].at("state") == "cancelled");
  pid_of("1-x-2");
  write(place.out() / "jobs/1-x-2/end", "");
  const RunResult result = program.wait();
  CHECK(result.exit_code == 1);
  CHECK(contains(result.out, "job 0 (1 of 2) x-1: cancelled, ended by signal 15, "));
  CHECK(contains(result.out, "job 1 (2 of 2) x-2: done, "));
  CHECK(place.jobs()[0].at("state") == "cancelled");
  CHECK(place.jobs()[1].at("state") == "done");
  CHECK(contains(place.run({"resubmit", "--failed", "out"}).out, "nothing to resubmit"));
}

TEST_CASE("submit: cancelling reaches the submit that runs the job and no other process",
          "[submit]") {
  const Workplace place;
  write(place.folder() / "program", kWaits, true);
  ddp::test::Program program(Workplace::argv({"--settings-file", "s.yaml", "--scheduler", "local"}),
                             place.options());
  REQUIRE(wait_until([&] { return !read(place.out() / "jobs/0-program/pid").empty(); }));
  // As if the job ran on another machine, and its number were that of somebody else's process here.
  ddp::test::Program bystander({"sleep", "100"});
  const fs::path path = place.out() / "submissions.jsonl";
  std::string text = read(path);
  const std::string id = "\"id\":\"" + std::to_string(program.pid()) + "\"";
  REQUIRE(contains(text, id));
  text.replace(text.find(id), id.size(), "\"id\":\"" + std::to_string(bystander.pid()) + "\"");
  write(path, text);
  const RunResult result = place.run({"cancel", "0", "out"});
  CHECK(result.exit_code == 1);
  CHECK(contains(result.err, "process " + std::to_string(bystander.pid())));
  CHECK(contains(result.err, "expected the machine it is on"));
  CHECK(place.jobs()[0].at("state") == "running");
  CHECK(kill(bystander.pid(), 0) == 0);
  write(place.out() / "jobs/0-program/end", "");
  CHECK(program.wait().exit_code == 0);
}

TEST_CASE("submit: whoever starts it may ignore the ends of its children", "[submit]") {
  const Workplace place;
  write(place.folder() / "program", "#!/bin/sh\nexit 3\n", true);
  place.tool("condor_submit", "echo 'no schedd' >&2; exit 1\n");
  place.tool("condor_q", "exit 0\n");
  place.tool("condor_history", "exit 0\n");
  const auto deaf = [&](const std::string& scheduler) {
    std::vector<std::string> argv =
        Workplace::argv({"--settings-file", "s.yaml", "--scheduler", scheduler});
    argv.insert(argv.begin(), {"env", "--ignore-signal=CHLD"});
    return run_program(argv, place.options());
  };
  const RunResult local = deaf("local");
  INFO(local.out << local.err);
  CHECK(local.exit_code == 1);
  CHECK(place.jobs()[0].at("state") == "failed");
  CHECK(place.jobs()[0].at("exit_code") == 3);
  const RunResult condor = deaf("condor");
  CHECK(condor.exit_code == 1);
  CHECK(contains(condor.err, "no schedd"));
  CHECK(place.jobs()[1].at("state") == "refused");

  // Nor is a child whose end nobody can know about a success.
  const auto before = signal(SIGCHLD, SIG_IGN);
  const CommandResult lost = run_command({"/bin/true"});
  std::string failure;
  try {
    Job job;
    job.request = make_request(Scheduler::kLocal, {"/bin/true"});
    {
      StateFile state((place.folder() / "other").string(), StateFile::Access::kWrite);
      state.plan({job.request});
    }
    run_local_jobs((place.folder() / "other").string(), {job});
  } catch (const ddp::Error& error) {
    failure = error.what();
  }
  signal(SIGCHLD, before);
  CHECK_FALSE(lost.ok());
  CHECK(contains(lost.failure, "cannot wait for /bin/true"));
  CHECK(contains(failure, "cannot wait for process"));
}

TEST_CASE("submit: what cannot be printed is no success", "[submit]") {
  const Workplace place;
  place.make_slurm();
  REQUIRE(place.submit().exit_code == 0);
  for (const std::string program : {"submit", "ddp-env"}) {
    for (const std::string arguments :
         {program == "submit" ? "list out" : "--json", "--help", "--version"}) {
      RunOptions options = place.options();
      options.environment["PATH"] = std::nullopt;
      const RunResult result =
          run_program({"/bin/sh", "-c",
                       std::string(DDP_BIN_DIR) + "/" + program + " " + arguments + " >/dev/full"},
                      options);
      INFO(program << " " << arguments);
      CHECK(result.exit_code == 1);
      CHECK(result.err ==
            program + ": error: cannot write to stdout, expected room on its device\n");
    }
    const RunResult version = run_program({std::string(DDP_BIN_DIR) + "/" + program, "--version"});
    CHECK(version.exit_code == 0);
    CHECK(version.out.starts_with(program + " "));
    CHECK(version.out.find_first_of("0123456789") != std::string::npos);
    CHECK(std::count(version.out.begin(), version.out.end(), '\n') == 1);
  }
}

TEST_CASE("submit: a state that says what submit never writes is refused with its line",
          "[submit]") {
  const Workplace place;
  place.make_slurm("[[ $1 == before ]] && exit 1");
  REQUIRE(place.submit().exit_code == 1);
  const fs::path path = place.out() / "submissions.jsonl";
  const std::string whole = read(path);
  struct Case {
    std::string from;
    std::string to;
    std::string named;
  };
  const std::string command = "[\"" + (place.folder() / "program").string() + "\"]";
  const std::vector<Case> cases = {
      {"\"processes_per_node\":1", "\"processes_per_node\":0", "2: processes_per_node: got 0"},
      {"\"processes_per_node\":1", "\"processes_per_node\":-1", "2: processes_per_node: got -1"},
      {"\"processes_per_node\":1", "\"processes_per_node\":4294967297", "2: processes_per_node"},
      {"\"processes_per_node\":1", "\"processes_per_node\":1.5", "2: processes_per_node: got"},
      {"\"processes_per_node\":1", "\"processes_per_node\":2", "2: cpus: got 1, expected"},
      {"\"cpus\":1", "\"cpus\":0", "2: cpus: got 0"},
      {"\"cpus\":1", "\"cpus\":1,\"account\":\"a\\n#SBATCH --x\"", "2: account: got"},
      {"\"cpus\":1", "\"cpus\":1,\"time_s\":0", "2: time_s: got 0"},
      {"\"nodes\":1", "\"nodes\":0", "2: nodes: got 0"},
      {"\"gpus\":0", "\"gpus\":-1", "2: gpus: got -1"},
      {command, "[]", "2: command: got"},
      {command, "[\"\"]", "2: command: got"},
      {command, "[\"/x\",\"a\\nb\"]", "2: command: got"},
      {"jobs/0-program", "../../evil", "2: folder: got \"../../evil\""},
      {"jobs/0-program", "jobs/../../evil", "2: folder: got"},
      {"jobs/0-program", "/evil", "2: folder: got \"/evil\""},
      {"jobs/0-program", "", "2: folder"},
      {"\"name\":\"program\"", "\"name\":\"a\\nb\"", "2: name: got"},
      {"\"scheduler\":\"slurm\"", "\"scheduler\":\"pbs\"", "2: scheduler: got \"pbs\""},
      {"\"job\":0", "\"job\":7", "2: job: got 7"},
      {"\"version\":1", "\"version\":2", "1: version: got 2, expected 1"},
      {"\"version\":1", "\"version\":\"1\"", "1: version: got"},
      {"\"event\":\"created\"", "\"event\":\"planned\"", "1: event: got \"planned\""},
      {whole.substr(0, whole.find('\n') + 1), "",
       "1: event: got \"planned\", expected \"created\""},
      {"\"event\":\"submitting\"", "\"event\":\"created\"", "3: event: got \"created\""},
      {"\"event\":\"submitting\"", "\"event\":\"printed\"", "3: event: got \"printed\""},
      {"\"attempt\":1", "\"attempt\":2147483647", "3: attempt: got 2147483647, expected 1"},
      {"\"state\":\"refused\"", "\"state\":\"tired\"", "4: state: got \"tired\""},
  };
  for (const Case& one : cases) {
    std::string damaged = whole;
    INFO(one.from << " -> " << one.to);
    REQUIRE(contains(damaged, one.from));
    damaged.replace(damaged.find(one.from), one.from.size(), one.to);
    write(path, damaged);
    for (const char* const action : {"list", "resubmit"}) {
      const RunResult result = place.run(
          action == std::string("list") ? std::vector<std::string>{"list", "out"}
                                        : std::vector<std::string>{"resubmit", "--failed", "out"});
      INFO(action << ": " << result.signal << " " << result.err);
      CHECK(result.exit_code == 2);
      CHECK(contains(result.err, "submissions.jsonl:" + one.named));
      CHECK(contains(result.err, "expected"));
      CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    }
    CHECK(read(path) == damaged);
    CHECK_FALSE(fs::exists(place.folder() / "evil"));
  }
  write(path, whole);
  place.make_slurm();
  CHECK(place.run({"resubmit", "--failed", "out"}).exit_code == 0);
}

TEST_CASE("submit: a Slurm script asks to be started again as often as allowed", "[submit]") {
  const Workplace place;
  fs::create_directories(place.out() / "jobs/0-name");
  place.tool("srun", "exit 85\n");
  place.tool("scontrol",
             "echo \"$1\" >>\"$WORKPLACE/asked\"\n[[ $1 != --oneliner ]] || echo 'x "
             "JobState=RUNNING y'\n");
  const JobRequest job = make_request(Scheduler::kSlurm, {"/bin/true"});
  write(place.folder() / "script", slurm_file(job, place.out().string(), 1, "token"));
  struct Case {
    std::optional<std::string> most;
    std::string restarts;
    bool again;
  };
  for (const Case& one : std::vector<Case>{{std::nullopt, "999", true},
                                           {std::nullopt, "1000", false},
                                           {"3", "2", true},
                                           {"3", "3", false},
                                           {"08", "7", true},
                                           {"08", "8", false},
                                           {"0", "0", false},
                                           {"000000009", "9", false}}) {
    RunOptions options = place.options();
    options.environment["SLURM_JOB_ID"] = "7";
    options.environment["SLURM_RESTART_COUNT"] = one.restarts;
    options.environment["DDP_MAX_REQUEUES"] = one.most;
    write(place.folder() / "asked", "");
    const RunResult result =
        run_program({"/bin/bash", (place.folder() / "script").string()}, options);
    INFO(one.most.value_or("unset") << " " << one.restarts << ": " << result.err);
    CHECK(result.exit_code == 85);
    CHECK(contains(read(place.folder() / "asked"), "requeue") == one.again);
    CHECK(fs::exists(place.out() / "jobs/0-name/exit_code") == !one.again);
    CHECK(result.err.empty());
    fs::remove(place.out() / "jobs/0-name/exit_code");
  }
  for (const char* const bad : {"x", "-1", "3 ", "1e3", "99999999999999999999"}) {
    RunOptions options = place.options();
    options.environment["DDP_MAX_REQUEUES"] = bad;
    const RunResult result =
        run_program({"/bin/bash", (place.folder() / "script").string()}, options);
    INFO(bad << result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.err == "DDP_MAX_REQUEUES: got \"" + std::string(bad) + "\", expected a number\n");
  }
}

TEST_CASE("submit: what lies in the way is not overwritten", "[submit]") {
  const Workplace place;
  place.make_slurm();
  fs::create_directories(place.out() / "jobs/0-program");
  RunResult result = place.submit();
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "jobs/0-program"));
  fs::remove_all(place.out() / "jobs");
  write(place.out() / "submission_file.sbatch", "precious\n");
  result = place.submit();
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "submission_file.sbatch"));
  CHECK(read(place.out() / "submission_file.sbatch") == "precious\n");
  CHECK(place.slurm_jobs().empty());
  CHECK(place.jobs().empty());  // nor is it planned
  CHECK(place.submit({"--dry-run"}).exit_code == 2);
}
