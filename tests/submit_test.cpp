// submit's pure parts: spelling of text, the files it writes, settings, sweeps, answers of
// schedulers, its command line.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "tests/catch.hpp"
#include "tools/submit/commands.hpp"
#include "tools/submit/plan.hpp"
#include "tools/submit/process.hpp"
#include "tools/submit/quoting.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/settings.hpp"
#include "tools/submit/submission_file.hpp"

namespace {

namespace fs = std::filesystem;
using namespace ddp::submit;

const std::string kTop = "script_path: /bin/true\nout_dir: /out\n";

std::string in_condor(const std::string& line) {
  return kTop + "local:\n  condor:\n    " + line + "\n";
}

/// What a call says when it refuses its input; empty if it does not.
std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const ddp::UsageError& error) {
    return error.what();
  }
  return "";
}

/// One line of a table: the input, and what the one line of the refusal must mention.
void check_refusal(const std::string& message, const std::vector<std::string>& named) {
  INFO("message: " << message);
  CHECK_FALSE(message.empty());
  CHECK(message.find('\n') == std::string::npos);
  CHECK(message.size() < 500);
  for (const std::string& word : named) {
    INFO("expected: " << word);
    CHECK(message.find(word) != std::string::npos);
  }
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The working directory, with settings and a program, and nothing on PATH but an sbatch.
class Workplace {
 public:
  Workplace() : before_(fs::current_path()), path_(std::getenv("PATH")) {
    std::string name = (fs::temp_directory_path() / "ddp-submit-XXXXXX").string();
    folder_ = fs::canonical(mkdtemp(name.data()));
    fs::current_path(folder_);
    fs::create_directory("bin");
    for (const char* const program : {"program", "03_ddp_spawn", "bin/sbatch"}) {
      std::ofstream(program) << "#!/bin/sh\n";
      fs::permissions(program, fs::perms::owner_all);
    }
    std::ofstream("plain.py") << "print()\n";
    settings("", "program");
    setenv("PATH", (folder_ / "bin").c_str(), 1);
  }
  ~Workplace() {
    setenv("PATH", path_.c_str(), 1);
    fs::current_path(before_);
    fs::remove_all(folder_);
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  static void settings(const std::string& more, const std::string& program) {
    std::ofstream("s.yaml") << "script_path: " + program + "\nout_dir: out\n" + more;
  }
  /// What submit says to these arguments instead of doing anything.
  static std::string refused(const std::vector<std::string>& arguments) {
    std::vector<const char*> argv = {"submit"};
    for (const std::string& argument : arguments) {
      argv.push_back(argument.c_str());
    }
    const std::string message =
        refusal([&] { run(*parse_command_line(static_cast<int>(argv.size()), argv.data())); });
    CHECK_FALSE(fs::exists("out"));
    return message;
  }

 private:
  fs::path folder_;
  fs::path before_;
  std::string path_;
};

JobRequest make_request(Scheduler scheduler, std::vector<std::string> command) {
  JobRequest job;
  job.name = "name";
  job.folder = "jobs/0-name";
  job.scheduler = scheduler;
  job.command = std::move(command);
  job.resources.cpus = 1;
  return job;
}

struct BadFile {
  std::string text;
  std::vector<std::string> named;  ///< the place first
};

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
    INFO((arguments.empty() ? "" : arguments.back()));
    check_refusal(Workplace::refused(arguments), named);
  }
}

TEST_CASE("submit: settings that no scheduler could carry out are refused", "[submit]") {
  const Workplace place;
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
    INFO(bad.program << "\n" << bad.settings);
    Workplace::settings(bad.settings, bad.program);
    std::vector<std::string> arguments = {"--settings-file", "s.yaml"};
    arguments.insert(arguments.end(), bad.arguments.begin(), bad.arguments.end());
    check_refusal(Workplace::refused(arguments), bad.named);
  }
}

TEST_CASE("submit: settings as in the example", "[submit]") {
  const Settings settings =
      parse_settings("s.yaml",
                     "script_path: bin/03_ddp_spawn  # relative\n"
                     "out_dir: \"/your/output dir/\"\n"
                     "arguments: [50, 010, yes, 1e3, '', \"a b\", --lr, 0.1]\n"
                     "nodes: 2\ntime: 1-06:00:00\naccount: def-keli\n"
                     "partition: gpu,long\nconstraint: 'a100|h100'\n"
                     "local:\n  device: cuda\n  condor:\n    bid: 100\n"
                     "    num_cpus: 8\n    memory_cpus: 256000\n"
                     "    num_gpus: 2\n    memory_gpus: 60000\n"
                     "    transfer_files: [data/x.csv]\n",
                     "/home/me");
  CHECK(settings.script_path == "/home/me/bin/03_ddp_spawn");
  CHECK(settings.out_dir == "/your/output dir");
  CHECK(settings.arguments ==
        std::vector<std::string>{"50", "010", "yes", "1e3", "", "a b", "--lr", "0.1"});
  CHECK(settings.device == "cuda");
  CHECK(settings.resources.nodes == 2);
  CHECK(settings.resources.time_s == 30 * 3600);
  CHECK(settings.resources.account == "def-keli");
  CHECK(settings.resources.partition == "gpu,long");
  CHECK(settings.resources.constraint == "a100|h100");
  CHECK(settings.resources.bid == 100);
  CHECK(settings.resources.cpus == 8);
  CHECK(settings.resources.memory_mb == 256000);
  CHECK(settings.resources.gpus == 2);
  CHECK(settings.resources.gpu_memory_mb == 60000);
  CHECK(settings.resources.transfer_files == std::vector<std::string>{"/home/me/data/x.csv"});
}

TEST_CASE("submit: the least that settings must say, in other spellings of YAML", "[submit]") {
  for (const std::string& text :
       {kTop, "\xef\xbb\xbf" + kTop, "---\n" + kTop + "...\n", "# words\n\n" + kTop,
        std::string("{script_path: /bin/true, out_dir: /out}"),
        std::string("script_path: /bin/true\r\nout_dir: /out\r\n"),
        std::string("\"script_path\": '/bin/true'\n'out_dir': \"/out\"\n"),
        std::string("out_dir: >-\n  /out\nscript_path: /bin/true")}) {
    INFO(text);
    const Settings settings = parse_settings("s.yaml", text, "/home");
    CHECK(settings.script_path == "/bin/true");
    CHECK(settings.out_dir == "/out");
    CHECK(settings.arguments.empty());
    CHECK(settings.device == "auto");
    CHECK(settings.resources.nodes == 1);
    CHECK_FALSE(settings.resources.cpus.has_value());
    CHECK_FALSE(settings.resources.bid.has_value());
  }
}

TEST_CASE("submit: settings that are refused, with the place", "[submit]") {
  const std::string deep = "arguments: " + std::string(100000, '[');
  const std::vector<BadFile> files = {
      // No settings at all.
      {"", {"s.yaml:1:1:", "empty file", "script_path"}},
      {"# nothing\n", {"s.yaml:1:1:", "empty file"}},
      {"[1, 2]\n", {"s.yaml:1:1:", "no map"}},
      {"words\n", {"s.yaml:1:1:", "no map"}},
      {"out_dir: /out\n", {"s.yaml:1:1:", "script_path is missing"}},
      {"script_path: /bin/true\n", {"s.yaml:1:1:", "out_dir is missing"}},
      // Bytes.
      {kTop + "account: \xff\n", {"s.yaml:3:10:", "\"\\xff\"", "UTF-8"}},
      {kTop + "account: a\xc3\n", {"s.yaml:3:11:", "UTF-8"}},
      {kTop + "account: \xed\xa0\x80\n", {"s.yaml:3:10:", "UTF-8"}},
      {std::string("\xff\xfe"
                   "s\0c\0",
                   6),
       {"s.yaml:1:1:", "UTF-8"}},
      {kTop + std::string("account: a\0b\n", 13), {"s.yaml:3:11:", "control", "\\x00"}},
      {kTop + "account: \x1b[31m\n", {"s.yaml:3:10:", "control", "\\x1b"}},
      {kTop + "local:\n\tdevice: cpu\n", {"s.yaml:4:1:", "tab"}},
      {kTop + "local:\n  \tdevice: cpu\n", {"s.yaml:4:3:", "tab"}},
      {kTop + "#" + std::string((1 << 20) + 5, 'x'), {"s.yaml:1:1:", "1048576"}},
      // YAML that is none, or more than settings need.
      {"script_path: [/bin/true\n", {"s.yaml:", "not YAML"}},
      {"script_path: \"/bin/true\nout_dir: /o", {"s.yaml:1:14:", "quotation mark"}},
      {kTop + "account: 'abc", {"s.yaml:3:10:", "quotation mark"}},
      {"script_path: /bin/true\n out_dir: /out\n", {"s.yaml:2:", "not YAML"}},
      {kTop + "time: @x\n", {"s.yaml:3:7:", "not YAML"}},
      {"script_path: a: b\n", {"s.yaml:1:", "not YAML"}},
      {kTop + "---\nnodes: 2\n", {"s.yaml:3:", "second document"}},
      {"script_path: &a /bin/true\nout_dir: *a\n", {"s.yaml:1:", "anchor"}},
      {"&top\nscript_path: /bin/true\nout_dir: /o\n", {"s.yaml:1:", "anchor"}},
      {kTop + "arguments: &a [*a]\n", {"s.yaml:3:", "anchor"}},
      {kTop + "local:\n  <<: {device: cpu}\n", {"s.yaml:4:3:", "merge key"}},
      {kTop + "nodes: !!int 2\n", {"s.yaml:3:8:", "tag", "int"}},
      {kTop + "account: !env HOME\n", {"s.yaml:3:10:", "tag", "env"}},
      {kTop + "arguments: !!python/object/apply:os.system [x]\n", {"s.yaml:3:", "tag"}},
      {deep, {"s.yaml:1:", "expected"}},
      {kTop + "local: {condor: {num_cpus: [[[[[[[[1]]]]]]]]}}\n",
       {"s.yaml:3:", "more than 8 levels"}},
      // Keys.
      {kTop + "nodes: 1\nnodes: 2\n", {"s.yaml:4:1:", "\"nodes\"", "line 3", "every key once"}},
      {kTop + "local:\n  device: cpu\n  device: cuda\n", {"s.yaml:5:3:", "\"device\"", "line 4"}},
      {in_condor("num_cpus: 1\n    'num_cpus': 2"), {"s.yaml:6:5:", "num_cpus", "line 5"}},
      {kTop + "local:\n  device: cpu\nlocal:\n  device: cpu\n",
       {"s.yaml:5:1:", "\"local\"", "line 3"}},
      {kTop + "local: {device: cpu, 'device': cuda}\n", {"s.yaml:3:22:", "line 3"}},
      {kTop + "locale:\n  device: cpu\n", {"s.yaml:3:1:", "did you mean local?"}},
      {kTop + "walltimes:\n  - 1\n  - 2\n", {"s.yaml:3:1:", "\"walltimes\""}},
      {kTop + "colors: >-\n  red\n", {"s.yaml:3:1:", "\"colors\""}},
      {kTop + "local: {devise: cpu}\n", {"s.yaml:3:9:", "did you mean local.device?"}},
      {kTop + "scriptpath: /x\n", {"s.yaml:3:1:", "\"scriptpath\"", "did you mean script_path?"}},
      {kTop + "out-dirs: /x\n", {"s.yaml:3:1:", "\"out-dirs\"", "did you mean out_dir?"}},
      {kTop + "Nodes: 2\n", {"s.yaml:3:1:", "\"Nodes\"", "did you mean nodes?"}},
      {kTop + "walltime: 2\n", {"s.yaml:3:", "\"walltime\""}},
      {kTop + "color: red\n", {"s.yaml:3:", "\"color\"", "expected account"}},
      {kTop + "device: cuda\n", {"s.yaml:3:", "\"device\"", "expected local.device"}},
      {kTop + "num_gpus: 2\n", {"s.yaml:3:", "\"num_gpus\"", "expected local.condor.num_gpus"}},
      {kTop + "local:\n  num_gpus: 2\n",
       {"s.yaml:4:3:", "\"local.num_gpus\"", "local.condor.num_gpus"}},
      {in_condor("num_gpu: 2"),
       {"s.yaml:5:5:", "local.condor.num_gpu\"", "did you mean local.condor.num_gpus?"}},
      {in_condor("memory: 2"), {"s.yaml:5:", "\"local.condor.memory\""}},
      {in_condor("nodes: 2"), {"s.yaml:5:", "nodes at the top"}},
      {kTop + "[a]: 2\n", {"s.yaml:3:1:", "list or a map"}},
      {kTop + "? \n: 2\n", {"s.yaml:4:", "expected a name"}},
      {kTop + "? {a: b}\n: 2\n", {"s.yaml:3:", "key that is a list or a map"}},
      // Numbers.
      {kTop + "nodes: 0\n", {"s.yaml:3:8:", "nodes", "\"0\"", "1 to 65536"}},
      {kTop + "nodes: 65537\n", {"s.yaml:3:8:", "\"65537\"", "1 to 65536"}},
      {kTop + "nodes: -2\n", {"s.yaml:3:8:", "\"-2\""}},
      {kTop + "nodes: two\n", {"s.yaml:3:8:", "\"two\"", "integer"}},
      {kTop + "nodes: 2.0\n", {"s.yaml:3:8:", "\"2.0\"", "plain digits"}},
      {kTop + "nodes:\n", {"s.yaml:3:1:", "nodes", "nothing", "integer"}},
      {kTop + "nodes: ~\n", {"s.yaml:3:1:", "nothing"}},
      {kTop + "nodes: [2]\n", {"s.yaml:3:8:", "a list"}},
      {kTop + "nodes: \"2\"\n", {"s.yaml:3:8:", "the text \"2\"", "without quotation marks"}},
      {in_condor("num_cpus: 010"), {"s.yaml:5:15:", "local.condor.num_cpus", "\"010\"", "octal"}},
      {in_condor("num_cpus: 0x10"), {"s.yaml:5:15:", "\"0x10\""}},
      {in_condor("num_cpus: 0o10"), {"s.yaml:5:15:", "\"0o10\""}},
      {in_condor("num_cpus: 1e3"), {"s.yaml:5:15:", "\"1e3\""}},
      {in_condor("num_cpus: 1_000"), {"s.yaml:5:15:", "\"1_000\""}},
      {in_condor("num_cpus: +8"), {"s.yaml:5:15:", "\"+8\""}},
      {in_condor("num_cpus: 1:30"), {"s.yaml:5:15:", "\"1:30\""}},
      {in_condor("num_cpus: yes"), {"s.yaml:5:15:", "\"yes\""}},
      {in_condor("num_cpus: 99999999999999999999"), {"s.yaml:5:15:", "99999999999999999999"}},
      {in_condor("memory_cpus: 256GB"), {"s.yaml:5:18:", "\"256GB\""}},
      {in_condor("memory_cpus: .nan"), {"s.yaml:5:18:", "\".nan\""}},
      {in_condor("num_gpus: 1000000000"), {"s.yaml:5:15:", "0 to 1024"}},
      {in_condor("memory_gpus: 0"), {"s.yaml:5:18:", "\"0\""}},
      {in_condor("bid: -1"), {"s.yaml:5:10:", "local.condor.bid", "\"-1\""}},
      {in_condor("bid: .inf"), {"s.yaml:5:10:", "\".inf\""}},
      // Times: YAML 1.1 takes 1:30 for 90.
      {kTop + "time: 1:30\n", {"s.yaml:3:7:", "time", "\"1:30\"", "HH:MM:SS", "MM:SS"}},
      {kTop + "time: 90\n", {"s.yaml:3:7:", "\"90\"", "HH:MM:SS", "minutes"}},
      {kTop + "time: 12:60:00\n", {"s.yaml:3:7:", "\"12:60:00\"", "59"}},
      {kTop + "time: 1-24:00:00\n", {"s.yaml:3:7:", "23 hours"}},
      {kTop + "time: 00:00:00\n", {"s.yaml:3:7:", "not zero"}},
      {kTop + "time: 1:2:3\n", {"s.yaml:3:7:", "HH:MM:SS"}},
      {kTop + "time: -1:00:00\n", {"s.yaml:3:7:", "HH:MM:SS"}},
      {kTop + "time: 12:00:00 PM\n", {"s.yaml:3:7:", "HH:MM:SS"}},
      {kTop + "time: 99999:00:00\n", {"s.yaml:3:7:", "HH:MM:SS"}},
      {kTop + "time: [12:00:00]\n", {"s.yaml:3:7:", "a list"}},
      // Texts.
      {"script_path: yes\nout_dir: /o\n",
       {"s.yaml:1:14:", "script_path", "\"yes\"", "truth value"}},
      {"script_path: On\nout_dir: /o\n", {"s.yaml:1:14:", "\"On\"", "truth value"}},
      {"script_path: null\nout_dir: /o\n", {"s.yaml:1:1:", "script_path", "nothing"}},
      {"script_path: 12\nout_dir: /o\n", {"s.yaml:1:14:", "\"12\"", "quotation marks"}},
      {"script_path: 0x1f\nout_dir: /o\n", {"s.yaml:1:14:", "\"0x1f\"", "quotation marks"}},
      {"script_path: ''\nout_dir: /o\n", {"s.yaml:1:14:", "empty text"}},
      {"script_path:\n  a: b\nout_dir: /o\n", {"s.yaml:2:3:", "script_path", "a map"}},
      {"script_path: ~/x\nout_dir: /o\n", {"s.yaml:1:14:", "\"~/x\"", "no shell"}},
      {"script_path: \"/a\\nb\"\nout_dir: /o\n", {"s.yaml:1:14:", "\\x0a", "one line"}},
      {"script_path: \"/a\\0\"\nout_dir: /o\n", {"s.yaml:1:14:", "\\x00"}},
      {"script_path: \"/a\\tb\"\nout_dir: /o\n", {"s.yaml:1:14:", "tabs"}},
      {"script_path: /x\nout_dir: ' /o'\n", {"s.yaml:2:10:", "out_dir", "blanks at its ends"}},
      {kTop + "local:\n  device: gpu\n",
       {"s.yaml:4:11:", "local.device", "\"gpu\"", "auto, cpu or cuda"}},
      {kTop + "local: cuda\n", {"s.yaml:3:8:", "local", "\"cuda\"", "keys and values"}},
      {kTop + "local:\n  condor: [1]\n", {"s.yaml:4:11:", "local.condor", "a list"}},
      {kTop + "account: a b\n", {"s.yaml:3:10:", "account", "\"a b\""}},
      {kTop + "account: 'x;touch y'\n", {"s.yaml:3:10:", "\"x;touch y\""}},
      {kTop + "account: 1e3\n", {"s.yaml:3:10:", "quotation marks"}},
      {kTop + "account: -x\n", {"s.yaml:3:10:", "\"-x\""}},
      {kTop + "partition: \"a\\n#SBATCH --wrap=x\"\n", {"s.yaml:3:12:", "\\x0a"}},
      {kTop + "partition: gpu --wrap\n", {"s.yaml:3:12:", "partition"}},
      {kTop + "constraint: a100;b\n", {"s.yaml:3:13:", "constraint"}},
      {kTop + "constraint: \"$(X)\"\n", {"s.yaml:3:13:", "constraint"}},
      // Arguments.
      {kTop + "arguments: 50 10\n", {"s.yaml:3:12:", "arguments", "\"50 10\"", "a list"}},
      {kTop + "arguments: {lr: 1}\n", {"s.yaml:3:12:", "a map", "a list"}},
      {kTop + "arguments: [50, [10]]\n", {"s.yaml:3:17:", "arguments[1]", "a list"}},
      {kTop + "arguments:\n- 50\n-\n- 3\n", {"arguments[1]", "nothing"}},
      {kTop + "arguments: [50, ~]\n", {"s.yaml:3:17:", "arguments[1]", "nothing"}},
      {kTop + "arguments: [\"a\\nb\"]\n", {"s.yaml:3:13:", "arguments[0]", "\\x0a"}},
      {kTop + "arguments: [\"a\\0b\"]\n", {"s.yaml:3:13:", "arguments[0]", "\\x00"}},
      {in_condor("transfer_files: x.csv"), {"s.yaml:5:21:", "transfer_files", "list of files"}},
      {in_condor("transfer_files: [1]"), {"s.yaml:5:22:", "transfer_files[0]", "quotation marks"}},
  };
  CHECK(files.size() >= 80);
  for (const BadFile& file : files) {
    INFO("file:\n" << file.text.substr(0, 300));
    check_refusal(refusal([&] { parse_settings("s.yaml", file.text, "/home"); }), file.named);
  }
}

TEST_CASE("submit: any text is settings or a refusal, never anything else", "[submit]") {
  // Mutations of a good file: cut, doubled, overwritten.
  const std::string good =
      kTop + "arguments: [50, 'a b', \"c\\n\"]\nlocal: {device: cpu}\ntime: 1-02:03:04\n";
  const std::string bytes = std::string("\0\t\n\r :#-[]{},&*!|>'\"%@`~\\x\xff\xc3\x80<?0", 33);
  unsigned random = 1;
  const auto next = [&random](std::size_t below) {
    random = random * 1664525U + 1013904223U;
    return static_cast<std::size_t>(random >> 8U) % below;
  };
  int refused = 0;
  constexpr int kTries = 20000;
  for (int i = 0; i < kTries; ++i) {
    std::string text = good;
    for (std::size_t edits = 1 + next(4); edits > 0; --edits) {
      const std::size_t at = next(text.size());
      switch (next(3)) {
        case 0:
          text[at] = bytes[next(bytes.size())];
          break;
        case 1:
          text.insert(at, 1, bytes[next(bytes.size())]);
          break;
        default:
          text.erase(at, 1 + next(8));
          break;
      }
      if (text.empty()) {
        text = "\n";
      }
    }
    try {
      parse_settings("s.yaml", text, "/home");
    } catch (const ddp::UsageError& error) {
      ++refused;
      const std::string message = error.what();
      if (!message.starts_with("s.yaml:") || message.find('\n') != std::string::npos) {
        INFO(text << "\n" << message);
        REQUIRE(message.starts_with("s.yaml:"));
        REQUIRE(message.find('\n') == std::string::npos);
      }
    }
  }
  CHECK(refused > kTries / 4);
  CHECK(refused < kTries);
}

TEST_CASE("submit: a command whose end nobody can know is no success", "[submit]") {
  const auto before = signal(SIGCHLD, SIG_IGN);
  const CommandResult lost = run_command({"/bin/true"});
  signal(SIGCHLD, before);
  CHECK_FALSE(lost.ok());
  CHECK(contains(lost.failure, "cannot wait for /bin/true"));
  CHECK(run_command({"/bin/true"}).ok());
}
