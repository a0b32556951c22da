// submit's pure parts: spelling, the files it writes, settings, sweeps, answers of schedulers.
#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include "tests/catch.hpp"
#include "tools/submit/plan.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/settings.hpp"
#include "tools/submit/text.hpp"

namespace {

using ddp::test::contains;

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

/// Every part is in the text.
void check_contains(const std::string& text, const std::vector<std::string>& parts) {
  INFO(text);
  for (const std::string& part : parts) {
    INFO(part);
    CHECK(contains(text, part));
  }
}

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
        std::string("\x7f"), std::string("\xff"), std::string("\xc0\x80"), std::string("\xf5"),
        std::string("a\xc3"), std::string("\xed\xa0\x80")}) {
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
  const auto file = [](const JobRequest& job, int attempt = 1) {
    return condor().file_text(job, "/out/jobs/0-name", attempt, "token-1");
  };
  JobRequest job = make_request(Scheduler::kCondor, {"/bin/p", "50"});
  job.resources.gpus = 2;
  job.resources.cpus = 8;
  job.resources.memory_mb = 1001;
  job.resources.gpu_memory_mb = 60000;
  check_contains(file(job),
                 {"universe = vanilla\n", "executable = /bin/p\n", "arguments = \"50\"\n",
                  "initialdir = /out/jobs/0-name\n", "output = job.out\n", "error = job.err\n",
                  "log = job.log\n", "should_transfer_files = NO\n", "request_cpus = 8\n",
                  "request_memory = 1001\n", "request_gpus = 2\n", "gpus_minimum_memory = 60000\n",
                  "checkpoint_exit_code = 85\n", "+SubmitToken = \"token-1\"\n", "\nqueue\n"});
  for (const char* const part : {"Bid", "accounting_group", "machine_count", "transfer_input_files",
                                 "on_exit_remove", "allowed_execute_duration"}) {
    INFO(part);
    CHECK_FALSE(contains(file(job), part));
  }
  CHECK(contains(file(job, 2), "output = job.2.out\n"));

  job.resources.nodes = 3;
  job.processes_per_node = 2;
  job.several = true;
  job.resources.bid = 100;
  job.resources.account = "group_x.me";
  job.resources.time_s = 3600;
  check_contains(
      file(job),
      {"universe = parallel\n", "machine_count = 6\n",
       "+ParallelShutdownPolicy = \"WAIT_FOR_ALL\"\n", "request_cpus = 4\n",
       "request_memory = 501\n", "request_gpus = 1\n", "output = job.out.$(Node)\n",
       "DDP_JOB_ID=$(ClusterId).$$([NumJobStarts])\"", "on_exit_remove = ExitCode =!= 85\n",
       "+Bid = 100\n", "accounting_group = group_x.me\n", "allowed_execute_duration = 3600\n"});
  CHECK_FALSE(contains(file(job), "checkpoint_exit_code"));

  JobRequest transfers = make_request(Scheduler::kCondor, {"/bin/p"});
  transfers.resources.transfer_files = {"/data/a b.csv", "/data/$(x)"};
  check_contains(file(transfers),
                 {"transfer_input_files = /data/a b.csv,/data/$(DOLLAR)(x)\n",
                  "should_transfer_files = YES\nwhen_to_transfer_output = ON_EXIT_OR_EVICT\n",
                  "transfer_executable = True\n"});
}

TEST_CASE("submit: a Slurm script's directives", "[submit]") {
  JobRequest job = make_request(Scheduler::kSlurm, {"/bin/p", "a'b", "$(x)"});
  job.processes_per_node = 4;
  job.resources = {.nodes = 2,
                   .cpus = 9,
                   .memory_mb = 256000,
                   .gpus = 4,
                   .gpu_memory_mb = {},
                   .time_s = 90061,
                   .account = "def-keli",
                   .partition = "gpu",
                   .constraint = "a100|h100",
                   .bid = {},
                   .transfer_files = {}};
  check_contains(
      slurm().file_text(job, "/out dir/jobs/0-name", 1, "token-1"),
      {"#SBATCH --nodes=2\n", "#SBATCH --ntasks-per-node=4\n", "#SBATCH --cpus-per-task=2\n",
       "#SBATCH --gpus-per-node=4\n", "#SBATCH --mem=256000M\n", "#SBATCH --time=1-01:01:01\n",
       "#SBATCH --account=def-keli\n", "#SBATCH --partition=gpu\n",
       "#SBATCH --constraint=a100|h100\n", "#SBATCH --comment=token-1\n", "#SBATCH --requeue\n",
       "cd -- '/out dir/jobs/0-name' ||", "  /bin/p 'a'\\''b' '$(x)' &\n",
       "\nunset SLURM_GPU_BIND SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_TRES_PER_TASK "
       "SLURM_TRES_BIND\n",
       "srun --kill-on-bad-exit=1 --cpus-per-task=2 --export=ALL \\\n"});
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
  CHECK(parse_id(condor(), "12.0 - 12.0\n") == "12");
  CHECK(parse_id(slurm(), "1234\n") == "1234");
  CHECK(parse_id(slurm(), "1234;gpu-cluster\n") == "1234;gpu-cluster");
  for (const char* const bad :
       {"", "\n", "12", "12.0 - 12.1\n", "12.0 - 13.0\n", "12.0 - 12.0\n13.0 - 13.0\n",
        "WARNING\n12.0 - 12.0\n", ".0 - .0\n", "12.0 - 12.0 \n"}) {
    INFO(bad);
    CHECK_FALSE(parse_id(condor(), bad).has_value());
  }
  for (const char* const bad : {"", "\n", "Submitted batch job 12\n", "12\n13\n", "12;\n", "012\n",
                                "-1\n", "12 \n", "12;a b\n", "12;a;b\n", "12\n\n"}) {
    INFO(bad);
    CHECK_FALSE(parse_id(slurm(), bad).has_value());
  }
}

TEST_CASE("submit: the answer about an array has all its jobs", "[submit]") {
  CHECK(parse_id(condor(), "12.0 - 12.9\n", 10) == "12");
  CHECK_FALSE(parse_id(condor(), "12.0 - 12.8\n", 10).has_value());
  CHECK_FALSE(parse_id(condor(), "12.0 - 12.0\n", 10).has_value());
  CHECK(parse_id(slurm(), "1234;b\n", 10) == "1234;b");
  CHECK(job_id(Scheduler::kSlurm, "1234;b", 7, 10) == "1234_7;b");
  CHECK(job_id(Scheduler::kSlurm, "1234;b", 0, 1) == "1234;b");
  CHECK(job_id(Scheduler::kCondor, "12", 7, 10) == "12.7");
  CHECK(job_id(Scheduler::kCondor, "", 7, 10).empty());
  for (const char* const id : {"1234_7;b", "1234_7", "1234", "12.7"}) {
    const JobId parts = parse_job_id(id);
    const bool is_condor = contains(id, ".");
    CHECK(parts.submission == (is_condor ? "12" : "1234"));
    CHECK(parts.task == (contains(id, "7") ? "7" : ""));
    CHECK(parts.cluster == (contains(id, ";") ? "b" : ""));
  }
  CHECK(slurm().cancel_ids("12", {"0", "1", "2", "5", "7", "8"}) ==
        std::vector<std::string>{"12_[0-2,5,7-8]"});
}

TEST_CASE("submit: HTCondor's log of a job", "[submit]") {
  const std::string submitted = "000 (012.000.000) 2026-01-01 Job submitted from host: <x>\n...\n";
  const std::string runs = submitted + "001 (012.000.000) 2026-01-01 Job executing on host\n...\n";
  const std::string normal = "(012.000.000) x\n\t(1) Normal termination (return value ";
  struct Case {
    std::string text;
    Finding finding;
  };
  for (const Case& one : std::vector<Case>{
           {submitted, {JobState::kPending}},
           {runs, {JobState::kRunning}},
           {runs + "004 (012.000.000) x Job was evicted.\n...\n", {JobState::kPending}},
           {runs + "012 (012.000.000) x Job was held.\n\tno such file\n\tCode 6\n...\n",
            {JobState::kHeld, std::nullopt, "no such file"}},
           {runs + "009 (012.000.000) x Job was aborted.\n...\n", {JobState::kCancelled}},
           {runs + "005 " + normal + "0)\n...\n", {JobState::kDone, 0}},
           {runs + "005 " + normal + "3)\n...\n", {JobState::kFailed, 3}},
           {runs + "005 (012.000.000) x\n\t(0) Abnormal termination (signal 9)\n...\n",
            {JobState::kFailed, std::nullopt, "ended by signal 9"}},
           // An event that is still being written does not count yet, nor one of another job.
           {runs + "005 " + normal + "0)\n", {JobState::kRunning}},
           {runs + "005 (013.000.000) x\n\t(1) Normal termination (return value 0)\n...\n",
            {JobState::kRunning}}}) {
    INFO(one.text);
    const std::optional<CondorLog> log = parse_condor_log(one.text);
    REQUIRE(log.has_value());
    CHECK(log->id == "12");
    CHECK(log->finding == one.finding);
  }
  CHECK_FALSE(parse_condor_log("").has_value());
  CHECK_FALSE(parse_condor_log("000 (012.000.000) half an eve").has_value());
}

TEST_CASE("submit: a time in every form that Slurm has", "[submit]") {
  constexpr int64_t kMinute = 60;
  constexpr int64_t kHour = 3600;
  for (const auto& [text, seconds] :
       std::vector<std::pair<std::string, int64_t>>{{"90", 90 * kMinute},
                                                    {"10080", 168 * kHour},
                                                    {"1:30", 90},
                                                    {"90:00", 90 * kMinute},
                                                    {"6:00:00", 6 * kHour},
                                                    {"06:05:04", 6 * kHour + 5 * kMinute + 4},
                                                    {"72:00:00", 72 * kHour},
                                                    {"1-12", 36 * kHour},
                                                    {"1-06:30", 30 * kHour + 30 * kMinute},
                                                    {"2-0:00:01", 48 * kHour + 1}}) {
    INFO(text);
    CHECK(parse_time("--time", text) == seconds);
    CHECK(parse_settings("s.yaml", kTop + "time: " + text + "\n", "/").resources.time_s == seconds);
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
      {"[1, 2]\n", {"s.yaml:1:1:", "no map"}},
      {"out_dir: /out\n", {"s.yaml:1:1:", "script_path is missing"}},
      {"script_path: /bin/true\n", {"s.yaml:1:1:", "out_dir is missing"}},
      // Bytes.
      {kTop + "account: \xff\n", {"s.yaml:3:10:", "\"\\xff\"", "UTF-8"}},
      {std::string("\xff\xfe"
                   "s\0c\0",
                   6),
       {"s.yaml:1:1:", "UTF-8"}},
      {kTop + std::string("account: a\0b\n", 13), {"s.yaml:3:11:", "control", "\\x00"}},
      {kTop + "account: \x1b[31m\n", {"s.yaml:3:10:", "control", "\\x1b"}},
      {kTop + "local:\n\tdevice: cpu\n", {"s.yaml:4:1:", "tab"}},
      {kTop + "#" + std::string((1 << 20) + 5, 'x'), {"s.yaml:1:1:", "1048576"}},
      // YAML that is none, or more than settings need.
      {"script_path: [/bin/true\n", {"s.yaml:", "not YAML"}},
      {"script_path: \"/bin/true\nout_dir: /o", {"s.yaml:1:14:", "quotation mark"}},
      {"script_path: /bin/true\n out_dir: /out\n", {"s.yaml:2:", "not YAML"}},
      {kTop + "---\nnodes: 2\n", {"s.yaml:3:", "second document"}},
      {"script_path: &a /bin/true\nout_dir: *a\n", {"s.yaml:1:", "anchor"}},
      {kTop + "arguments: &a [*a]\n", {"s.yaml:3:", "anchor"}},
      {kTop + "local:\n  <<: {device: cpu}\n", {"s.yaml:4:3:", "merge key"}},
      {kTop + "nodes: !!int 2\n", {"s.yaml:3:8:", "tag", "int"}},
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
      {kTop + "local: {devise: cpu}\n", {"s.yaml:3:9:", "did you mean local.device?"}},
      {kTop + "scriptpath: /x\n", {"s.yaml:3:1:", "\"scriptpath\"", "did you mean script_path?"}},
      {kTop + "Nodes: 2\n", {"s.yaml:3:1:", "\"Nodes\"", "did you mean nodes?"}},
      {kTop + "color: red\n", {"s.yaml:3:", "\"color\"", "expected account"}},
      {kTop + "device: cuda\n", {"s.yaml:3:", "\"device\"", "expected local.device"}},
      {kTop + "num_gpus: 2\n", {"s.yaml:3:", "\"num_gpus\"", "expected local.condor.num_gpus"}},
      {kTop + "local:\n  num_gpus: 2\n",
       {"s.yaml:4:3:", "\"local.num_gpus\"", "local.condor.num_gpus"}},
      {in_condor("num_gpu: 2"),
       {"s.yaml:5:5:", "local.condor.num_gpu\"", "did you mean local.condor.num_gpus?"}},
      {in_condor("nodes: 2"), {"s.yaml:5:", "nodes at the top"}},
      {kTop + "[a]: 2\n", {"s.yaml:3:1:", "list or a map"}},
      {kTop + "? \n: 2\n", {"s.yaml:4:", "expected a name"}},
      // Numbers.
      {kTop + "nodes: 0\n", {"s.yaml:3:8:", "nodes", "\"0\"", "1 to 65536"}},
      {kTop + "nodes: 65537\n", {"s.yaml:3:8:", "\"65537\"", "1 to 65536"}},
      {kTop + "nodes: 2.0\n", {"s.yaml:3:8:", "\"2.0\"", "plain digits"}},
      {kTop + "nodes:\n", {"s.yaml:3:1:", "nodes", "nothing", "integer"}},
      {kTop + "nodes: [2]\n", {"s.yaml:3:8:", "a list"}},
      {kTop + "nodes: \"2\"\n", {"s.yaml:3:8:", "the text \"2\"", "without quotation marks"}},
      {in_condor("num_cpus: 010"), {"s.yaml:5:15:", "local.condor.num_cpus", "\"010\"", "octal"}},
      {in_condor("num_cpus: 1e3"), {"s.yaml:5:15:", "\"1e3\""}},
      {in_condor("num_cpus: 99999999999999999999"), {"s.yaml:5:15:", "99999999999999999999"}},
      {in_condor("memory_cpus: .nan"), {"s.yaml:5:18:", "\".nan\""}},
      {in_condor("num_gpus: 1000000000"), {"s.yaml:5:15:", "0 to 1024"}},
      {in_condor("memory_gpus: 0"), {"s.yaml:5:18:", "\"0\""}},
      {in_condor("bid: -1"), {"s.yaml:5:10:", "local.condor.bid", "\"-1\""}},
      // Times.
      {kTop + "time: 90s\n", {"s.yaml:3:7:", "time", "\"90s\"", "HH:MM:SS", "MM:SS"}},
      {kTop + "time: 1-\n", {"s.yaml:3:7:", "\"1-\"", "D-HH"}},
      {kTop + "time: 1:60\n", {"s.yaml:3:7:", "\"1:60\"", "59"}},
      {kTop + "time: 10000:00\n", {"s.yaml:3:7:", "HH:MM:SS"}},
      {kTop + "time: 1:00:00:00\n", {"s.yaml:3:7:", "HH:MM:SS"}},
      {kTop + "time: 99999:00:00\n", {"s.yaml:3:7:", "HH:MM:SS"}},
      {kTop + "time: 1:2:3\n", {"s.yaml:3:7:", "HH:MM:SS"}},
      {kTop + "time: 12:60:00\n", {"s.yaml:3:7:", "\"12:60:00\"", "59"}},
      {kTop + "time: 1-24:00:00\n", {"s.yaml:3:7:", "23 hours"}},
      {kTop + "time: 00:00:00\n", {"s.yaml:3:7:", "not zero"}},
      {kTop + "time: 12:00:00 PM\n", {"s.yaml:3:7:", "HH:MM:SS"}},
      {kTop + "time: [12:00:00]\n", {"s.yaml:3:7:", "a list"}},
      // Texts.
      {"script_path: yes\nout_dir: /o\n",
       {"s.yaml:1:14:", "script_path", "\"yes\"", "truth value"}},
      {"script_path: On\nout_dir: /o\n", {"s.yaml:1:14:", "\"On\"", "truth value"}},
      {"script_path: null\nout_dir: /o\n", {"s.yaml:1:1:", "script_path", "nothing"}},
      {"script_path: 12\nout_dir: /o\n", {"s.yaml:1:14:", "\"12\"", "quotation marks"}},
      {"script_path: ''\nout_dir: /o\n", {"s.yaml:1:14:", "empty text"}},
      {"script_path:\n  a: b\nout_dir: /o\n", {"s.yaml:2:3:", "script_path", "a map"}},
      {"script_path: ~/x\nout_dir: /o\n", {"s.yaml:1:14:", "\"~/x\"", "no shell"}},
      {"script_path: \"/a\\nb\"\nout_dir: /o\n", {"s.yaml:1:14:", "\\x0a", "one line"}},
      {"script_path: \"/a\\tb\"\nout_dir: /o\n", {"s.yaml:1:14:", "tabs"}},
      {"script_path: /x\nout_dir: ' /o'\n", {"s.yaml:2:10:", "out_dir", "blanks at its ends"}},
      {kTop + "local:\n  device: gpu\n",
       {"s.yaml:4:11:", "local.device", "\"gpu\"", "auto, cpu or cuda"}},
      {kTop + "local: cuda\n", {"s.yaml:3:8:", "local", "\"cuda\"", "keys and values"}},
      {kTop + "local:\n  condor: [1]\n", {"s.yaml:4:11:", "local.condor", "a list"}},
      {kTop + "account: a b\n", {"s.yaml:3:10:", "account", "\"a b\""}},
      {kTop + "account: -x\n", {"s.yaml:3:10:", "\"-x\""}},
      {kTop + "partition: \"a\\n#SBATCH --wrap=x\"\n", {"s.yaml:3:12:", "\\x0a"}},
      {kTop + "constraint: a100;b\n", {"s.yaml:3:13:", "constraint"}},
      // Arguments.
      {kTop + "arguments: 50 10\n", {"s.yaml:3:12:", "arguments", "\"50 10\"", "a list"}},
      {kTop + "arguments: {lr: 1}\n", {"s.yaml:3:12:", "a map", "a list"}},
      {kTop + "arguments: [50, [10]]\n", {"s.yaml:3:17:", "arguments[1]", "a list"}},
      {kTop + "arguments:\n- 50\n-\n- 3\n", {"arguments[1]", "nothing"}},
      {kTop + "arguments: [\"a\\nb\"]\n", {"s.yaml:3:13:", "arguments[0]", "\\x0a"}},
      {in_condor("transfer_files: x.csv"), {"s.yaml:5:21:", "transfer_files", "list of files"}},
      {in_condor("transfer_files: [1]"), {"s.yaml:5:22:", "transfer_files[0]", "quotation marks"}},
  };
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
  CHECK(contains(lost.failure, "/bin/true: cannot wait for process"));
  CHECK(run_command({"/bin/true"}).ok());
}
