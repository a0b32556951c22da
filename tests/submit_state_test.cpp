// submit with schedulers that only pretend: its commands, what it refuses, and the state that
// survives whatever happens.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "common/base/hash.hpp"
#include "common/base/scratch_folder.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"
#include "tools/submit/handover.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/text.hpp"

namespace {

namespace fs = std::filesystem;
using namespace ddp::submit;
using ddp::test::contains;
using ddp::test::Program;
using ddp::test::run_program;
using ddp::test::RunOptions;
using ddp::test::RunResult;
using Words = std::vector<std::string>;

std::string read(const fs::path& path) {
  return read_text(path.string()).value_or("");
}

void write(const fs::path& path, const std::string& text, bool executable = false) {
  std::ofstream(path, std::ios::binary) << text;
  if (executable) {
    fs::permissions(path, fs::perms::owner_all);
  }
}

/// Waits at most ten seconds. @return whether it came true
template <typename Condition>
bool wait_until(const Condition& condition) {
  for (int i = 0; i < 1000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

/// A folder with settings, a program, and schedulers that only pretend.
class Workplace {
 public:
  Workplace() {
    fs::create_directory(folder_ / "bin");
    // Nothing else is on PATH: this machine may have a scheduler of its own.
    for (const char* const tool : {"cat", "flock", "mv", "sed", "sleep"}) {
      const fs::path path = fs::path("/usr/bin") / tool;
      fs::create_symlink(fs::exists(path) ? path : fs::path("/bin") / tool, folder_ / "bin" / tool);
    }
    program("exit 0");
    settings("");
  }

  const fs::path& folder() const { return folder_; }
  fs::path out() const { return folder_ / "out"; }
  fs::path job(const std::string& name) const { return out() / "jobs" / name; }

  void settings(const std::string& more, const std::string& program = "program") const {
    write(folder_ / "s.yaml", "script_path: " + program + "\nout_dir: out\n" + more);
  }
  void program(const std::string& script, const std::string& name = "program") const {
    write(folder_ / name, "#!/bin/sh\n" + script + "\n", true);
  }
  /// A program that writes its process id into the file `pid` and ends when there is a file `end`.
  void waiting_program() const { program("echo $$ >pid\nwhile ! [ -e end ]; do sleep 0.05; done"); }
  pid_t wait_for_pid(const std::string& name) const {
    REQUIRE(wait_until([&] { return contains(read(job(name) / "pid"), "\n"); }));
    return std::stoi(read(job(name) / "pid"));
  }
  void end(const std::string& name) const { write(job(name) / "end", ""); }
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
  static Words argv(const Words& arguments) {
    Words argv = {std::string(DDP_BIN_DIR) + "/submit"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return argv;
  }
  static Words with_settings(Words arguments) {
    arguments.insert(arguments.begin(), {"--settings-file", "s.yaml"});
    return arguments;
  }
  RunResult run(const Words& arguments) const { return run_program(argv(arguments), options()); }
  /// What it says, and that it ends with this code.
  RunResult expect(int code, const Words& arguments) const {
    RunResult result = run(arguments);
    INFO(result.out << result.err);
    CHECK(result.exit_code == code);
    return result;
  }
  /// It runs on.
  Program start(const Words& arguments) const { return Program(argv(arguments), options()); }
  RunResult submit(int code, const Words& arguments = {}) const {
    return expect(code, with_settings(arguments));
  }
  /// Refused in one line that names these words.
  void refused(const Words& arguments, const Words& named) const {
    const RunResult result = expect(2, arguments);
    INFO(result.err);
    CHECK(result.out.empty());
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    CHECK(result.err.size() < 500);
    for (const std::string& word : named) {
      INFO(word);
      CHECK(contains(result.err, word));
    }
  }
  nlohmann::json jobs() const {
    return nlohmann::json::parse(expect(0, {"list", "--json", "--out-dir", "out"}).out).at("jobs");
  }
  Words states() const {
    Words states;
    for (const nlohmann::json& job : jobs()) {
      states.push_back(job.at("state").get<std::string>());
    }
    return states;
  }

  /// A Slurm that numbers jobs, remembers them with their comments, and knows their states. In
  /// place of a reason it has "job N", which the submission file or an array's points say. `calls`
  /// gets a line for each command.
  /// @param trouble shell code that runs in sbatch before ($1 = before) and after taking the job
  void make_slurm(const std::string& trouble = ":") const {
    const std::string log = "echo \"${0##*/} $*\" >>\"$WORKPLACE/calls\"\n";
    tool("sbatch", log + R"(trouble() { )" + trouble + R"(; }
[[ $# == 2 || $# == 3 && $2 == --dependency=afterany:* ]] && [[ $1 == --parsable ]] ||
  { echo "unexpected arguments: $*" >&2; exit 9; }
file=${!#}
comment=$(sed -n 's/^#SBATCH --comment=//p' "$file")
last=$(sed -n 's/^#SBATCH --array=0-\([0-9]*\).*/\1/p' "$file")
trouble before
exec 8>"$WORKPLACE/slurm.lock"; flock 8
id=$(($(cat "$WORKPLACE/slurm.last" 2>/dev/null || echo 100) + 1))
if [[ -n $last ]]; then
  mapfile -t points <"${file%/*}/points"
  [[ ${#points[@]} == $((last + 1)) ]] || exit 9
  for i in "${!points[@]}"; do
    point=${points[i]#*/jobs/}
    printf '%s_%s|PENDING|job %s|%s\n' "$id" "$i" "${point%%-*}" "$comment"
  done
else
  job=$(sed -n 's/^# Job \([0-9]*\), made by submit\.$/\1/p' "$file")
  printf '%s|PENDING|job %s|%s\n' "$id" "$job" "$comment"
fi >>"$WORKPLACE/slurm.jobs"
echo "$id" >"$WORKPLACE/slurm.last"
flock -u 8
trouble after
echo "$id"
)");
    tool("squeue", log + "cat \"$WORKPLACE/slurm.jobs\" 2>/dev/null || true\n");
    tool("sacct", log + "echo 'Slurm accounting storage is disabled' >&2; exit 1\n");
    tool("scancel", log + "echo \"$@\" >>\"$WORKPLACE/cancelled\"\n");
  }
  /// So many jobs may be in one array.
  void limit_arrays(int most) const {
    tool("scontrol", "echo 'MaxArraySize            = " + std::to_string(most) + "'\n");
  }
  /// The commands that the pretended scheduler got since the last look.
  Words calls() const {
    Words lines = split(read(folder_ / "calls"), '\n');
    lines.pop_back();
    fs::remove(folder_ / "calls");
    return lines;
  }
  /// "id|state|reason|comment" of every job that the pretended Slurm has taken.
  std::vector<Words> slurm_jobs() const {
    std::vector<Words> jobs;
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
  /// Every job of the state is in Slurm, under the id that the state knows, and no other is.
  void check_each_is_submitted_once(std::size_t count) const {
    const nlohmann::json known = jobs();
    CHECK(known.size() == count);
    CHECK(slurm_jobs().size() == count);
    std::set<std::string> numbers;
    for (const Words& taken : slurm_jobs()) {
      const std::string number = split(taken[2], ' ').at(1);  // job N
      numbers.insert(number);
      CHECK(known.at(static_cast<std::size_t>(std::stoi(number))).at("id") == taken[0]);
    }
    CHECK(numbers.size() == count);
    CHECK(states() == Words(count, "pending"));
  }

 private:
  ddp::ScratchFolder scratch_{"ddp-submit"};
  fs::path folder_ = fs::canonical(scratch_.path());
};

}  // namespace

TEST_CASE("submit: command lines that are refused", "[submit]") {
  using Cases = std::vector<std::pair<Words, Words>>;
  const Workplace place;
  place.tool("sbatch", "");
  for (const auto& [arguments, named] : Cases{
           {{"--settings-file", "s.yaml"}, {"given twice"}},
           {{"--scheduler", "pbs"}, {"--scheduler", "pbs", "condor, slurm"}},
           {{"--nodes", "0"}, {"--nodes", "\"0\""}},
           {{"--nodes", "2", "--nodes", "3"}, {"--nodes was given twice"}},
           {{"--nodes", "-1"}, {"--nodes", "\"-1\""}},
           {{"--gpus", "0", "1", "1"}, {"--gpus", "twice"}},
           {{"--gpus", "all"}, {"--gpus", "\"all\""}},
           {{"--time", "12h"}, {"--time", "\"12h\"", "HH:MM:SS"}},
           {{"--program", "~\n"}, {"--program", "\\x0a"}},
           {{"--account", "a\nb"}, {"--account", "\\x0a"}},
           {{"--partition", "x;y"}, {"--partition", "\"x;y\""}},
           {{"--sweep", "lr"}, {"--sweep", "\"lr\""}},
           {{"--sweep", "lr=1,1"}, {"lr", "twice"}},
           {{"--dry-run=yes"}, {"--dry-run", "expected none"}},
           {{"50", "10"}, {"50"}},
           {{"--sweep", "lr=1", "--", "--lr", "2"}, {"--lr", "once"}},
           {{"--", "a\nb"}, {"program argument 1", "\\x0a"}},
           {{"--", "ok", "\xff"}, {"program argument 2", "\\xff", "UTF-8"}},
           {{"--scheduler", "local", "--nodes", "2"}, {"nodes", "local"}},
           {{"--scheduler", "local", "--gpus", "0"}, {"--gpus", "program"}},
       }) {
    place.refused(Workplace::with_settings(arguments), named);
  }
  for (const auto& [arguments, named] : Cases{
           {{}, {"--settings-file is missing"}},
           {{"--program", "program"}, {"--settings-file is missing", "--program and --out-dir"}},
           {{"--out-dir", "out"}, {"--settings-file is missing", "--program and --out-dir"}},
           {{"--program", "none", "--out-dir", "out"}, {"script_path", "No such file"}},
           {{"--settings-file"}, {"--settings-file has no value"}},
           {{"--settings-file="}, {"--settings-file is empty"}},
           {{"--settings-file", "none.yaml"}, {"none.yaml", "No such file"}},
           {{"--settings-file", "."}, {"folder", "settings file"}},
           {{"--setings-file", "s.yaml"}, {"--setings-file", "did you mean --settings-file?"}},
           {{"lst"}, {"\"lst\"", "did you mean list?"}},
           {{"frobnicate"}, {"\"frobnicate\"", "resubmit"}},
           {{"list"}, {"no submissions in", "out_dir"}},
           {{"list", "nowhere"}, {"no submissions in", "nowhere"}},
           {{"list", "--settings-file", "s.yaml", "x"}, {"one of them"}},
           {{"list", "--", "x"}, {"got -- after submit list"}},
           {{"cancel", "--out-dir", "out"}, {"no job was given", "--all"}},
           {{"resubmit", "--failed", "3"}, {"--failed and job numbers"}},
           {{"resubmit", "3", "1", "3"}, {"job 3 was given twice"}},
           {{"logs", "--lines", "x"}, {"--lines", "\"x\""}},
           {{"status", "--failed"}, {"--failed"}},
       }) {
    place.refused(arguments, named);
  }
  CHECK_FALSE(fs::exists(place.out()));
}

TEST_CASE("submit: settings that no scheduler could carry out are refused", "[submit]") {
  const Workplace place;
  place.program("", "03_ddp_spawn");
  place.program("", "04_ddp_launcher");
  write(place.folder() / "plain.py", "print()\n");
  struct Case {
    std::string scheduler;
    std::string program;
    std::string settings;
    Words named;
  };
  const auto condor = [](const std::string& keys) { return "local: {condor: {" + keys + "}}\n"; };
  for (const Case& bad : std::vector<Case>{
           {"slurm", "missing", "", {"script_path", "missing", "No such file"}},
           {"slurm", "bin", "", {"script_path", "not a folder"}},
           {"slurm", "plain.py", "", {"script_path", "plain.py", "chmod +x"}},
           {"slurm", "03_ddp_spawn", "nodes: 2\n", {"nodes", "03_ddp_spawn", "05_multinode"}},
           {"slurm", "04_ddp_launcher", "nodes: 2\n" + condor("num_gpus: 2"), {"05_multinode"}},
           {"slurm", "program", condor("memory_gpus: 5, num_gpus: 1"), {"memory_gpus", "Slurm"}},
           {"slurm", "program", condor("memory_gpus: 5"), {"memory_gpus", "num_gpus 0"}},
           {"slurm", "program", "local: {device: cuda}\n", {"device", "num_gpus 0"}},
           {"slurm",
            "program",
            "local: {device: cpu, condor: {num_gpus: 1}}\n",
            {"num_gpus", "cpu"}},
           {"slurm", "program", "nodes: 2\n" + condor("num_cpus: 1, num_gpus: 2"), {"at least 2"}},
           {"slurm", "program", condor("transfer_files: [s.yaml]"), {"transfer_files", "slurm"}},
           {"condor", "program", "nodes: 2\n" + condor("transfer_files: [s.yaml]"), {"nodes 2"}},
           {"condor", "program", condor("transfer_files: [\"a,b\"]"), {"commas"}},
           {"condor", "program", condor("transfer_files: [none]"), {"none"}},
       }) {
    INFO(bad.program << "\n" << bad.settings);
    place.settings(bad.settings, bad.program);
    place.refused(Workplace::with_settings({"--scheduler", bad.scheduler}), bad.named);
  }
  CHECK_FALSE(fs::exists(place.out()));
}

TEST_CASE("submit: killed before every step, no job is lost or doubled", "[submit][crash]") {
  // One array, or each job for itself.
  const int most = GENERATE(2, 1);
  bool was_killed = true;
  int step = 0;
  while (was_killed) {
    ++step;
    const Workplace place;
    place.make_slurm();
    place.limit_arrays(most);
    RunOptions killed = place.options();
    killed.environment["LD_PRELOAD"] = DDP_KILL_AT;
    killed.environment["DDP_KILL_AT"] = std::to_string(step);
    INFO("killed before step " << step);
    const Words sweep = Workplace::with_settings({"--sweep", "x=1,2"});
    // Whoever goes on is killed at the same step once, and then may go on to the end.
    for (int start = 0; start < 3; ++start) {
      const RunResult list = place.run({"list", "--json", "out"});
      const bool has_jobs =
          list.exit_code == 0 && !nlohmann::json::parse(list.out).at("jobs").empty();
      CHECK((list.exit_code == 0 || contains(list.err, "no submissions in")));
      const RunResult result =
          run_program(Workplace::argv(has_jobs ? Words{"resubmit", "--failed", "out"} : sweep),
                      start < 2 ? killed : place.options());
      INFO(result.out << result.err);
      CHECK((result.exit_code == 0 || result.signal == SIGKILL));
      was_killed = start == 0 ? result.signal == SIGKILL : was_killed;
    }
    place.check_each_is_submitted_once(2);
  }
  CHECK(step > (most == 1 ? 25 : 15));
}

TEST_CASE("submit: killed while the scheduler takes the job", "[submit][crash]") {
  const std::string until_told = "until [[ -e $WORKPLACE/go ]]; do sleep 0.02; done";
  for (const std::string& trouble :
       {std::string("[[ $1 == before ]] && { kill -9 $PPID; kill -9 $$; }"),
        std::string("[[ $1 == after ]] && { kill -9 $PPID; kill -9 $$; }"),
        // sbatch goes on alone, and takes the job later: nobody may submit it again meanwhile.
        "[[ $1 == before ]] && { kill -9 $PPID; " + until_told + "; }"}) {
    const Workplace place;
    place.make_slurm(trouble);
    INFO(trouble);
    // The shell stays, and with it sbatch.
    const std::string line =
        Workplace::argv({})[0] +
        " --settings-file s.yaml >/dev/null 2>&1; echo ended with $?; exec sleep 100";
    Program shell({"/bin/sh", "-c", line}, place.options());
    REQUIRE(shell.wait_for_output("ended with 137\n"));
    CHECK(place.states() == Words{"maybe-submitted"});
    if (contains(trouble, until_told)) {
      CHECK(place.run({"resubmit", "--failed", "out"}).out == "nothing to resubmit\n");
      place.expect(0, {"status", "out"});
      CHECK(place.states() == Words{"maybe-submitted"});
      write(place.folder() / "go", "");
      REQUIRE(wait_until([&] { return !place.slurm_jobs().empty(); }));
    }
    place.make_slurm();
    REQUIRE(wait_until([&] {
      place.expect(0, {"resubmit", "--failed", "out"});
      return place.states() == Words{"pending"};
    }));
    place.check_each_is_submitted_once(1);
  }
}

TEST_CASE("submit: several at once lose nothing and submit nothing twice", "[submit][crash]") {
  const Workplace place;
  place.make_slurm();
  const auto at_once = [&place](const std::vector<Words>& lines) {
    std::vector<std::thread> threads;
    std::vector<RunResult> results(lines.size());
    for (std::size_t i = 0; i < lines.size(); ++i) {
      threads.emplace_back([&, i] { results[i] = place.run(lines[i]); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (const RunResult& result : results) {
      INFO(result.out << result.err);
      CHECK(result.exit_code == 0);
    }
  };
  at_once(std::vector<Words>(6, Workplace::with_settings({})));
  place.check_each_is_submitted_once(6);
  // Jobs that wait for their turn in a sweep, and whoever comes to help.
  std::vector<Words> lines(3, {"resubmit", "--failed", "out"});
  lines.insert(lines.begin(), Workplace::with_settings({"--sweep", "x=1,2,3,4,5,6,7,8"}));
  at_once(lines);
  place.check_each_is_submitted_once(14);
}

TEST_CASE("submit: nobody waits for a sweep that is being submitted", "[submit]") {
  const Workplace place;
  place.make_slurm("[[ $1 == after ]] || until [[ -e $WORKPLACE/go ]]; do sleep 0.02; done");
  place.limit_arrays(1);
  Program sweep = place.start(Workplace::with_settings({"--sweep", "x=1,2,3"}));
  REQUIRE(wait_until([&] {
    return State::exists(place.out().string()) && !place.jobs().empty() &&
           place.states()[0] == "maybe-submitted";
  }));
  // All of these while sbatch does not answer.
  place.expect(0, {"status", "out"});
  CHECK(place.states() == Words{"maybe-submitted", "planned", "planned"});
  const RunResult early = place.expect(1, {"cancel", "0", "out"});
  CHECK(contains(early.err, "job 0: it is maybe-submitted, expected a known id"));
  CHECK(place.run({"cancel", "1", "out"}).out == "job 1 cancelled\n");
  place.submit(0, {"--dry-run"});
  CHECK(place.slurm_jobs().empty());
  write(place.folder() / "go", "");
  const RunResult result = sweep.wait();
  INFO(result.out << result.err);
  CHECK(result.exit_code == 0);
  CHECK(contains(result.out, "job 1 x-2: left out, it is cancelled by now\n"));
  CHECK(place.states() == Words{"pending", "cancelled", "pending"});
  CHECK(place.slurm_jobs().size() == 2);
}

TEST_CASE("submit: ten thousand jobs are listed", "[submit]") {
  // In memory, where there is some: to have the disk take each record is not what is tested.
  const fs::path home = fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
  std::string out = (home / "ddp-submit-XXXXXX").string();
  REQUIRE(mkdtemp(out.data()) != nullptr);
  const std::unique_ptr<std::string, void (*)(std::string*)> removed(
      &out, [](std::string* folder) { fs::remove_all(*folder); });
  constexpr int kJobs = 10000;
  {
    State state(out);
    std::vector<JobRequest> requests;
    for (int i = 0; i < kJobs; ++i) {
      JobRequest job;
      job.index = i;
      job.name = "x-" + std::to_string(i);
      job.folder = "jobs/" + std::to_string(i) + "-" + job.name;
      job.command = {"/bin/p", "--x", std::to_string(i)};
      requests.push_back(job);
    }
    REQUIRE(state.plan(requests));
    for (int i = 0; i < kJobs; i += 2) {
      REQUIRE(state.begin({i}, {JobState::kSubmitting, std::nullopt, ""}));
      state.submitted(i, std::to_string(i + 100));
    }
  }
  RunOptions options;
  options.cwd = out;
  const RunResult result = run_program(Workplace::argv({"list", "--json"}), options);
  REQUIRE(result.exit_code == 0);
  CHECK(result.cpu_seconds < 5);  // about 0.3
  const nlohmann::json jobs = nlohmann::json::parse(result.out).at("jobs");
  REQUIRE(jobs.size() == kJobs);
  for (int i = 0; i < kJobs; ++i) {
    const nlohmann::json& job = jobs[static_cast<std::size_t>(i)];
    const bool is_right =
        job.at("job") == i && job.at("command").at(2) == std::to_string(i) &&
        (i % 2 == 0 ? job.at("state") == "pending" && job.at("id") == std::to_string(i + 100)
                    : job.at("state") == "planned" && job.at("id").is_null());
    INFO(job.dump());
    REQUIRE(is_right);
  }
}

TEST_CASE("submit: a state that submit did not write is refused, and left alone", "[submit]") {
  const Workplace place;
  place.make_slurm("[[ $1 == before ]] && exit 1");
  place.submit(1);
  const fs::path submissions = place.out() / "submissions";
  const auto check_refused = [&place](const std::string& named) {
    for (const Words& line : {Words{"list", "out"}, Words{"resubmit", "--failed", "out"},
                              Words{"cancel", "--all", "out"}, Workplace::with_settings({})}) {
      place.refused(line, {named, "expected"});
    }
    CHECK(place.slurm_jobs().empty());
  };
  write(place.out() / "submissions.jsonl", "");
  check_refused("submissions.jsonl");
  fs::remove(place.out() / "submissions.jsonl");
  for (const char* const name : {"0.json", "0.1.json"}) {
    const std::string whole = read(submissions / name);
    const std::size_t half = whole.size() / 2;
    struct Change {
      std::size_t at;
      std::size_t length;
      std::string text;
    };
    std::vector<Change> changes = {{0, whole.size(), ""},
                                   {half, whole.size() - half, ""},
                                   {0, whole.find('\n') + 1, ""},
                                   {half, 1, "\x01"},
                                   {whole.size() - 1, 1, ""},
                                   {whole.size(), 0, "{}\n"},
                                   {whole.find("state 4"), 7, "state 3"}};
    // Every number that a scheduler's file is made of is under the checksum.
    for (const auto& [from, to] : std::map<std::string, std::string>{
             {"\"processes_per_node\":1", "\"processes_per_node\":0"},
             {"\"cpus\":1", "\"cpus\":-1"},
             {"jobs/0-program", "../../evil"},
             {"\"scheduler\":1", "\"scheduler\":7"}}) {
      if (const std::size_t at = whole.find(from); at != std::string::npos) {
        changes.push_back({at, from.size(), to});
      }
    }
    CHECK(changes.size() == (name == std::string("0.json") ? 11 : 7));
    for (const Change& change : changes) {
      std::string damaged = whole;
      damaged.replace(change.at, change.length, change.text);
      INFO(name << ": " << change.at << " " << change.length << " " << change.text);
      write(submissions / name, damaged);
      check_refused(std::string("submissions/") + name + ":1:");
      CHECK(read(submissions / name) == damaged);
    }
    write(submissions / name, whole);
  }
  fs::rename(submissions / "0.json", submissions / "1.json");
  check_refused("submissions has job 1, but 0.json is not there");
  fs::rename(submissions / "1.json", submissions / "0.json");
  fs::create_directory(submissions / "0");
  check_refused("submissions/0 is none of this submit's");
  fs::remove(submissions / "0");
  // What a killed submit leaves behind is not in the way.
  write(submissions / ".0.2.json.0123", "half");
  place.make_slurm();
  place.expect(0, {"resubmit", "--failed", "out"});
  CHECK(place.states() == Words{"pending"});
}

TEST_CASE("submit: a dry run prints what a real one does, and does nothing", "[submit]") {
  const Workplace place;
  place.make_slurm();
  place.settings("arguments: [50, 'a b']\n");
  const Words options = {"--scheduler", "slurm", "--time", "01:00:00"};
  Words dry = options;
  dry.emplace_back("--dry-run");
  const RunResult before = place.submit(0, dry);
  CHECK(before.err.empty());
  CHECK_FALSE(fs::exists(place.out()));

  place.submit(0, options);
  const std::string written = read(place.out() / "submission_file.sbatch");
  CHECK(read(place.job("0-program") / "submission_file.sbatch") == written);
  // The same but for the number that the out_dir got.
  std::string expected = before.out;
  const std::string token = place.slurm_jobs().at(0).at(3);
  expected.replace(expected.find("submit-NEW-0-1"), std::string("submit-NEW-0-1").size(), token);
  CHECK(contains(expected, written));
  CHECK(contains(expected, "\nsbatch --parsable " +
                               (place.job("0-program") / "submission_file.sbatch").string()));

  // From now on it is exact: the next job, with its number.
  dry.insert(dry.end(), {"--sweep", "x=1,2"});
  const RunResult after = place.submit(0, dry);
  CHECK(contains(after.out, token.substr(0, token.size() - 3) + "1-1"));
  CHECK(contains(after.out, "jobs/2-x-2"));
  CHECK_FALSE(fs::exists(place.job("1-x-1")));
}

TEST_CASE("submit: a program's arguments in a sweep on Slurm, and everything after", "[submit]") {
  const Workplace place;
  place.make_slurm();
  place.program("exit 0", "01_single_gpu");
  place.settings("arguments: [50, 10]\nlocal: {device: cpu}\n", "01_single_gpu");
  place.submit(0,
               {"--sweep", "lr=0.1,0.01", "--sweep", "seed=1,2", "--", "5", "1", "--snapshot=x"});
  nlohmann::json jobs = place.jobs();
  place.check_each_is_submitted_once(4);
  CHECK(jobs[1].at("name") == "lr-0.1_seed-2");
  CHECK(jobs[1].at("command") == Words{(place.folder() / "01_single_gpu").string(), "5", "1",
                                       "--snapshot=x", "--lr", "0.1", "--seed", "2", "--device",
                                       "cpu", "--metrics", "metrics.jsonl", "--resume", "auto"});
  Words folders;
  for (const nlohmann::json& job : jobs) {
    folders.push_back(job.at("folder"));
  }
  CHECK(fs::exists(place.out() / "arrays/0.1/submission_file.sbatch"));
  CHECK(std::set<std::string>(folders.begin(), folders.end()).size() == 4);
  CHECK_FALSE(fs::exists(place.out() / "submission_file.sbatch"));

  // status asks: the queue, then what the job's script left, then nobody knows.
  place.set_slurm_state("101_0", "RUNNING");
  place.set_slurm_state("101_1", "COMPLETED");
  place.set_slurm_state("101_2", "FAILED");
  fs::create_directories(folders[2]);
  write(folders[2] + "/exit_code", "101_2 7\n");
  RunResult status = place.expect(0, {"status", "out"});
  CHECK(place.states() == Words{"running", "done", "failed", "pending"});
  CHECK(place.jobs()[2].at("exit_code") == 7);
  CHECK(contains(status.out, "exit code 7"));

  // Without an answer the last known states stay, and the exit code says so.
  place.tool("squeue",
             "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1\n");
  status = place.expect(75, {"status", "--json", "--out-dir", "out"});
  CHECK(contains(status.err, "Unable to contact"));
  const nlohmann::json document = nlohmann::json::parse(status.out);
  CHECK(document.at("unreachable").size() == 1);
  CHECK(document.at("jobs")[0].at("state") == "running");
  place.make_slurm();

  // What failed is submitted again, as the same job in the same folder.
  place.expect(0, {"resubmit", "--failed", "out"});
  jobs = place.jobs();
  CHECK(jobs[2].at("state") == "pending");
  CHECK(jobs[2].at("attempt") == 2);
  CHECK(jobs[2].at("id") == "102");
  CHECK(place.slurm_jobs().size() == 5);
  place.expect(0, {"resubmit", "--failed", "out"});
  CHECK(place.slurm_jobs().size() == 5);
  place.expect(2, {"resubmit", "0", "out"});  // it runs

  fs::create_directory(folders[0]);
  write(folders[0] + "/job-101_0.out", "one\ntwo\nthree\n");
  const RunResult tail = place.run({"logs", "0", "out", "--lines", "2"});
  CHECK(contains(tail.out, "<==\ntwo\nthree\n"));
  CHECK_FALSE(contains(tail.out, "one"));
  place.expect(1, {"logs", "3", "out"});

  place.expect(0, {"cancel", "0", "3", "out"});
  CHECK(read(place.folder() / "cancelled") == "101\n");  // all of it that was not over
  CHECK(place.states()[3] == "cancelled");
  place.expect(2, {"cancel", "9", "out"});

  // What the user has cancelled comes back only by its number.
  CHECK(contains(place.run({"resubmit", "--failed", "out"}).out, "nothing to resubmit"));
  CHECK(place.slurm_jobs().size() == 5);
  place.expect(0, {"resubmit", "3", "out"});
  CHECK(place.states()[3] == "pending");
  CHECK(place.slurm_jobs().size() == 6);
}

TEST_CASE("submit: what an earlier attempt of a job left is not taken for the next one's",
          "[submit]") {
  const Workplace place;
  place.make_slurm();
  place.submit(0);
  const std::string folder = place.jobs()[0].at("folder");
  write(folder + "/job-101.out", "of the first\n");
  write(folder + "/exit_code", "101 7\n");
  place.set_slurm_state("101", "FAILED");
  place.expect(0, {"status", "out"});
  CHECK(place.jobs()[0].at("exit_code") == 7);
  place.expect(0, {"resubmit", "--failed", "out"});

  // list, logs and status are about the new one.
  CHECK(place.jobs()[0].at("id") == "102");
  CHECK(place.jobs()[0].at("exit_code").is_null());
  CHECK(contains(place.expect(0, {"list", "out"}).out, " 102 "));
  place.expect(1, {"logs", "0", "out"});
  CHECK(place.expect(0, {"logs", "out"}).out.empty());
  write(folder + "/job-102.out", "of the second\n");
  CHECK(contains(place.expect(0, {"logs", "0", "out"}).out, "of the second"));
  CHECK_FALSE(contains(place.run({"logs", "0", "out"}).out, "of the first"));
  place.set_slurm_state("101", "COMPLETED");
  place.expect(0, {"status", "out"});
  CHECK(place.states() == Words{"pending"});
  write(place.folder() / "slurm.jobs", "");  // the queue forgets both
  place.expect(0, {"status", "out"});
  CHECK(place.jobs()[0].at("exit_code").is_null());
  CHECK(contains(place.jobs()[0].at("reason"), "it left no exit code"));

  // The third dies before Slurm has it. Neither output in the folder is its own.
  place.make_slurm("[[ $1 == before ]] && { kill -9 $PPID; kill -9 $$; }");
  CHECK(place.run({"resubmit", "0", "out"}).signal == SIGKILL);
  CHECK(place.states() == Words{"maybe-submitted"});
  place.make_slurm();
  REQUIRE(wait_until([&] {
    place.expect(0, {"status", "out"});
    return place.states() != Words{"maybe-submitted"};
  }));
  CHECK(contains(place.jobs()[0].at("reason"), "before the scheduler had it"));
  CHECK(place.jobs()[0].at("exit_code").is_null());
  place.expect(0, {"resubmit", "--failed", "out"});
  CHECK(place.jobs()[0].at("id") == "103");
  place.check_each_is_submitted_once(1);
}

TEST_CASE("submit: the accounting knows more than the queue's \"failed\"", "[submit]") {
  const Workplace place;
  place.make_slurm();
  place.submit(0);
  place.set_slurm_state("101", "FAILED");
  place.tool("sacct", "echo '101|CANCELLED by 0|0:15'\n");
  place.expect(0, {"status", "out"});
  CHECK(place.states() == Words{"cancelled"});
}

TEST_CASE("submit: HTCondor is asked for jobs, and its log where it does not answer", "[submit]") {
  const Workplace place;
  place.tool("condor_submit", "[[ $1 == -terse && $# == 2 ]] || exit 9\necho '7.0 - 7.0'\n");
  place.tool("condor_q", "[[ $1 == 7 ]] && cat \"$WORKPLACE/queue\"\n");
  place.tool("condor_history", "cat \"$WORKPLACE/history\"\n");
  write(place.folder() / "queue", "7 5 The job has no legs\n");
  write(place.folder() / "history", "");
  place.submit(0);
  CHECK(fs::exists(place.out() / "submission_file.sub"));
  place.expect(0, {"status", "out"});
  CHECK(place.states()[0] == "held");
  CHECK(place.jobs()[0].at("reason") == "The job has no legs");
  write(place.folder() / "queue", "");
  write(place.folder() / "history", "7 4 3 undefined\n");
  place.expect(0, {"status", "out"});
  CHECK(place.states()[0] == "failed");
  CHECK(place.jobs()[0].at("exit_code") == 3);

  place.tool("condor_submit", "echo '8.0 - 8.0'\n");
  place.submit(0);
  place.tool("condor_q", "echo 'Failed to connect to the schedd' >&2; exit 1\n");
  write(place.job("1-program") / "job.log",
        "000 (008.000.000) x\n...\n005 (008.000.000) x\n\t(1) Normal termination (return value "
        "0)\n...\n");
  const RunResult status = place.expect(75, {"status", "out"});
  CHECK(contains(status.err, "Failed to connect"));
  CHECK(place.states()[1] == "done");
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
      // Taken, and a connection stays open that holds the output.
      {"[[ $1 == after ]] && { sleep 1000 & }", true, 0, "pending", ""},
      // Nobody knows.
      {"[[ $1 == after ]] && exit 1", false, 75, "maybe-submitted", "not known"},
  };
  for (const Case& one : cases) {
    const Workplace place;
    place.make_slurm(one.trouble);
    if (!one.answers) {
      place.tool("squeue", "echo 'no controller' >&2; exit 1\n");
    }
    INFO(one.trouble);
    CHECK(contains(place.submit(one.code).err, one.named));
    CHECK(place.states() == Words{one.state});
    if (one.state != "refused") {
      // The one that nobody knew is found as soon as squeue answers.
      place.make_slurm();
      place.expect(0, {"resubmit", "--failed", "out"});
      place.check_each_is_submitted_once(1);
    }
  }
  const Workplace none;
  CHECK(contains(none.submit(2, {"--scheduler", "slurm"}).err, "sbatch is not on PATH"));
  none.submit(2);
}

TEST_CASE("submit: local jobs run here, one after another", "[submit]") {
  const Workplace place;
  place.program(
      "for a in \"$@\"; do printf '[%s]' \"$a\"; done\necho \" in ${PWD##*/}\"\n"
      "n=$(cat runs 2>/dev/null || echo 0); echo $((n + 1)) >runs\n"
      "[ \"$2\" != 2 ] || exit 3\n[ \"$2\" != 3 ] || [ $n -ge 2 ] || exit 85");
  place.submit(1, {"--scheduler", "local", "--sweep", "x=1,2,3"});
  // The third one is done in its third start, after two that ended with 85.
  CHECK(place.states() == Words{"done", "failed", "done"});
  CHECK(place.jobs()[1].at("exit_code") == 3);
  CHECK(read(place.job("0-x-1") / "job.out") == "[--x][1] in 0-x-1\n");
  CHECK(read(place.job("2-x-3") / "runs") == "3\n");
  CHECK(contains(place.run({"logs", "0", "out"}).out, "[--x][1]"));

  // A job whose submit is gone is lost, not running for ever; its process is gone with it.
  place.program("echo $$ >pid\nexec sleep 100");
  {
    Program program = place.start(Workplace::with_settings({"--scheduler", "local"}));
    const pid_t child = place.wait_for_pid("3-program");
    place.expect(0, {"status", "out"});
    CHECK(place.states()[3] == "running");
    kill(program.pid(), SIGKILL);
    program.wait();
    CHECK(wait_until([child] { return kill(child, 0) != 0; }));
  }
  place.expect(0, {"status", "out"});
  CHECK(place.states()[3] == "lost");

  // Ctrl-C ends the job that runs and keeps the others for later.
  Program program =
      place.start(Workplace::with_settings({"--scheduler", "local", "--sweep", "y=1,2"}));
  place.wait_for_pid("4-y-1");
  kill(program.pid(), SIGINT);
  CHECK(program.wait().exit_code == 1);
  CHECK(place.states()[4] == "failed");
  CHECK(place.states()[5] == "planned");
}

TEST_CASE("submit: what happens to a local job whose turn has not come counts", "[submit]") {
  const Workplace place;
  place.waiting_program();
  Program first =
      place.start(Workplace::with_settings({"--scheduler", "local", "--sweep", "x=1,2,3"}));
  place.wait_for_pid("0-x-1");

  SECTION("cancelled: it does not run") {
    place.expect(0, {"cancel", "1", "out"});
    place.end("0-x-1");
    place.wait_for_pid("2-x-3");
    place.end("2-x-3");
    const RunResult result = first.wait();
    CHECK(result.exit_code == 1);
    CHECK(contains(result.out, "job 1 (2 of 3) x-2: left out, it is cancelled by now\n"));
    CHECK(place.states() == Words{"done", "cancelled", "done"});
    CHECK_FALSE(fs::exists(place.job("1-x-2")));
  }
  SECTION("submitted by another: it runs there, and the ones behind it run") {
    Program second = place.start({"resubmit", "--failed", "out"});
    place.wait_for_pid("1-x-2");
    place.end("0-x-1");
    place.wait_for_pid("2-x-3");
    place.end("2-x-3");
    const RunResult result = first.wait();
    INFO(result.out << result.err);
    CHECK(result.err.empty());
    CHECK(contains(result.out, "job 1 (2 of 3) x-2: left out, it is running by now\n"));
    CHECK(result.exit_code == 1);  // not all are done yet
    place.end("1-x-2");
    const RunResult others = second.wait();
    INFO(others.out << others.err);
    CHECK(others.exit_code == 0);
    CHECK(contains(others.out, "job 2 (2 of 2) x-3: left out, it is done by now\n"));
    for (const nlohmann::json& job : place.jobs()) {
      CHECK(job.at("state") == "done");
      CHECK(job.at("attempt") == 1);
    }
  }
}

TEST_CASE("submit: a running local job is cancelled, and the next one's turn comes", "[submit]") {
  const Workplace place;
  // It takes its time to end: until then its folder is in use.
  place.program(
      "trap 'while ! [ -e end ]; do sleep 0.05; done; exit 9' TERM\necho $$ >pid\n"
      "while ! [ -e end ]; do sleep 0.05; done");
  Program program =
      place.start(Workplace::with_settings({"--scheduler", "local", "--sweep", "x=1,2"}));
  const pid_t child = place.wait_for_pid("0-x-1");
  const RunResult cancel = place.expect(0, {"cancel", "0", "out"});
  CHECK(cancel.out == "job 0 cancelled\n");
  CHECK(place.states()[0] == "cancelled");
  CHECK(contains(place.run({"resubmit", "0", "out"}).out,
                 "job 0 (1 of 1) x-1: left out, its last start has not ended yet\n"));
  place.end("0-x-1");
  CHECK(wait_until([child] { return kill(child, 0) != 0; }));
  place.wait_for_pid("1-x-2");
  place.end("1-x-2");
  const RunResult result = program.wait();
  CHECK(result.exit_code == 1);
  CHECK(contains(result.out, "job 0 (1 of 2) x-1: cancelled, "));
  CHECK(contains(result.out, "job 1 (2 of 2) x-2: done, "));
  CHECK(place.states() == Words{"cancelled", "done"});
  CHECK(contains(place.run({"resubmit", "--failed", "out"}).out, "nothing to resubmit"));
}

TEST_CASE("submit: whoever starts it may ignore the ends of its children", "[submit]") {
  const Workplace place;
  place.program("exit 3");
  place.tool("condor_submit", "echo 'no schedd' >&2; exit 1\n");
  place.tool("condor_q", "exit 0\n");
  place.tool("condor_history", "exit 0\n");
  const auto deaf = [&](const std::string& scheduler) {
    Words argv = Workplace::argv(Workplace::with_settings({"--scheduler", scheduler}));
    argv.insert(argv.begin(), {"env", "--ignore-signal=CHLD"});
    return run_program(argv, place.options());
  };
  const RunResult local = deaf("local");
  INFO(local.out << local.err);
  CHECK(local.exit_code == 1);
  CHECK(place.states() == Words{"failed"});
  CHECK(place.jobs()[0].at("exit_code") == 3);
  const RunResult condor = deaf("condor");
  CHECK(condor.exit_code == 1);
  CHECK(contains(condor.err, "no schedd"));
  CHECK(place.states() == Words{"failed", "refused"});
}

TEST_CASE("submit: what cannot be printed is no success", "[submit]") {
  const Workplace place;
  place.make_slurm();
  place.submit(0);
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

TEST_CASE("submit: ranks of several nodes get a key for their store, which is not the last one's",
          "[submit]") {
  const Workplace place;
  fs::create_directories(place.job("0-name"));
  place.tool("srun", "echo \"${DDP_STORE_KEY:-none}\" >>\"$WORKPLACE/keys\"\n");
  JobRequest job;
  job.name = "name";
  job.folder = "jobs/0-name";
  job.scheduler = Scheduler::kSlurm;
  job.command = {"/bin/true"};
  const auto keys_with = [&](int nodes, const std::optional<std::string>& key) {
    job.resources.nodes = nodes;
    const std::string script = (place.folder() / "script").string();
    write(script, slurm().file_text(job, place.job("0-name").string(), 1, "token"));
    RunOptions options = place.options();
    options.environment["SLURM_JOB_ID"] = "7";
    options.environment["DDP_STORE_KEY"] = key;
    options.environment["PATH"] = *options.environment["PATH"] + ":/usr/bin:/bin";
    write(place.folder() / "keys", "");
    for (int start = 0; start < 2; ++start) {
      CHECK(run_program({"/bin/bash", script}, options).err.empty());
    }
    return split(read(place.folder() / "keys"), '\n');
  };
  const std::vector<std::string> drawn = keys_with(2, std::nullopt);
  REQUIRE(drawn.size() >= 2);
  for (const std::string& key : {drawn[0], drawn[1]}) {
    CHECK(key.size() == 32);
    CHECK(key.find_first_not_of("0123456789abcdef") == std::string::npos);
  }
  CHECK(drawn[0] != drawn[1]);
  CHECK(keys_with(2, "given")[0] == "given");
  CHECK(keys_with(1, std::nullopt)[0] == "none");
}

TEST_CASE("submit: a Slurm script asks to be started again as often as allowed", "[submit]") {
  const Workplace place;
  fs::create_directories(place.job("0-name"));
  place.tool("srun", "exit 85\n");
  place.tool("scontrol",
             "echo \"$*\" >>\"$WORKPLACE/asked\"\n[[ $1 != --oneliner ]] || echo 'x "
             "JobState=RUNNING y'\n");
  JobRequest job;
  job.name = "name";
  job.folder = "jobs/0-name";
  job.scheduler = Scheduler::kSlurm;
  job.command = {"/bin/true"};
  const std::string script = (place.folder() / "script").string();
  write(script, slurm().file_text(job, place.job("0-name").string(), 1, "token"));
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
    // Of preemptions and lost nodes: these do not count.
    options.environment["SLURM_RESTART_COUNT"] = "5000";
    write(place.job("0-name") / "requeues", "7 " + one.restarts + "\n");
    options.environment["DDP_MAX_REQUEUES"] = one.most;
    write(place.folder() / "asked", "");
    const RunResult result = run_program({"/bin/bash", script}, options);
    INFO(one.most.value_or("unset") << " " << one.restarts << ": " << result.err);
    CHECK(result.exit_code == 85);
    CHECK(contains(read(place.folder() / "asked"), "requeue 7\n") == one.again);
    CHECK(read(place.job("0-name") / "requeues") ==
          fmt::format("7 {}\n", std::stoi(one.restarts) + (one.again ? 1 : 0)));
    CHECK(fs::exists(place.job("0-name") / "exit_code") == !one.again);
    CHECK(result.err.empty());
    fs::remove(place.job("0-name") / "exit_code");
  }
  // What another job of this folder asked for does not count either, nor is it needed.
  for (const std::string other : {"", "17 1000\n", "rubbish", "7 x\n"}) {
    fs::remove(place.job("0-name") / "requeues");
    if (!other.empty()) {
      write(place.job("0-name") / "requeues", other);
    }
    RunOptions options = place.options();
    options.environment["SLURM_JOB_ID"] = "7";
    const RunResult result = run_program({"/bin/bash", script}, options);
    INFO(other << ": " << result.err);
    CHECK(result.err.empty());
    CHECK(read(place.job("0-name") / "requeues") == "7 1\n");
  }
  for (const std::string bad : {"x", "-1", "3 ", "1e3", "99999999999999999999"}) {
    RunOptions options = place.options();
    options.environment["DDP_MAX_REQUEUES"] = bad;
    const RunResult result = run_program({"/bin/bash", script}, options);
    CHECK(result.exit_code == 2);
    CHECK(result.err == "DDP_MAX_REQUEUES: got \"" + bad + "\", expected a number\n");
  }
}

TEST_CASE("submit: what lies in the way is not overwritten", "[submit]") {
  const Workplace place;
  place.make_slurm();
  fs::create_directories(place.job("0-program"));
  place.refused(Workplace::with_settings({}), {"jobs/0-program"});
  fs::remove_all(place.out() / "jobs");
  write(place.out() / "submission_file.sbatch", "precious\n");
  for (const Words& arguments : {Words{}, Words{"--dry-run"}}) {
    place.refused(Workplace::with_settings(arguments), {"submission_file.sbatch"});
  }
  CHECK(read(place.out() / "submission_file.sbatch") == "precious\n");
  CHECK(place.slurm_jobs().empty());
  CHECK_FALSE(State::exists(place.out().string()));  // nor is it planned
  // Nor is there a state where no folder can be.
  fs::remove_all(place.out());
  for (const fs::path& file : {place.out() / "submissions", place.out()}) {
    fs::remove_all(place.out());
    fs::create_directories(file.parent_path());
    write(file, "precious\n");
    place.refused(Workplace::with_settings({}), {"expected"});
    CHECK(read(file) == "precious\n");
  }
  write(place.folder() / "s.yaml", "script_path: program\nout_dir: /proc/none/out\n");
  place.refused(Workplace::with_settings({}), {"cannot make /proc/none/out/submissions: "});
}

TEST_CASE("submit: a sweep is an array, its tasks take their points", "[submit]") {
  const Workplace place;
  place.make_slurm();
  place.settings("arguments: [\"it's $HOME\"]\n");
  place.submit(0, {"--sweep", "x=1,a b\\,`c`,3", "--sweep-limit", "2"});
  const fs::path array = place.out() / "arrays/0.1";
  const std::string script = read(array / "submission_file.sbatch");
  CHECK(contains(script, "#SBATCH --array=0-2%2\n"));
  CHECK(contains(script, "#SBATCH --output=job-%A_%a.out\n"));
  CHECK(place.calls() == Words{"sbatch --parsable " + (array / "submission_file.sbatch").string()});
  place.tool("srun", "printf '[%s]' \"$@\" >argv; exit $((SLURM_ARRAY_TASK_ID == 1 ? 85 : 3))\n");
  place.tool("scontrol",
             "echo \"$*\" >>\"$WORKPLACE/asked\"\n[[ $1 != --oneliner ]] || echo 'x "
             "JobState=RUNNING y'\n");
  fs::create_symlink("/bin/mkdir", place.folder() / "bin/mkdir");
  fs::create_symlink("/bin/ln", place.folder() / "bin/ln");
  const Words values = {"1", "a b,`c`", "3"};
  const Words names = {"0-x-1", "1-x-a-b--c-", "2-x-3"};
  for (int task = 0; task < 3; ++task) {
    const std::string id = "101_" + std::to_string(task);
    const auto at = static_cast<std::size_t>(task);
    RunOptions options = place.options();
    // The last task's own id is the array's, so a command about it would be about all.
    options.environment["SLURM_JOB_ID"] = task == 2 ? "101" : std::to_string(102 + task);
    options.environment["SLURM_ARRAY_JOB_ID"] = "101";
    options.environment["SLURM_ARRAY_TASK_ID"] = std::to_string(task);
    const RunResult result =
        run_program({"/bin/bash", (array / "submission_file.sbatch").string()}, options);
    INFO(result.err);
    CHECK(result.exit_code == (task == 1 ? 85 : 3));
    CHECK(result.err.empty());
    const fs::path folder = place.job(names[at]);
    CHECK(read(folder / "argv") == "[--kill-on-bad-exit=1][--cpus-per-task=1][--export=ALL][" +
                                       (place.folder() / "program").string() +
                                       "][it's $HOME][--x][" + values[at] + "]");
    CHECK(fs::read_symlink(folder / ("job-" + id + ".out")) == array / ("job-" + id + ".out"));
    CHECK(read(folder / "exit_code") == (task == 1 ? "" : id + " 3\n"));
  }
  CHECK(read(place.folder() / "asked") == "--oneliner show job 101_1\nrequeue 101_1\n");
  // Logs are found where they are, and each task has its exit code.
  write(array / "job-101_2.out", "of the third\n");
  CHECK(contains(place.expect(0, {"logs", "2", "out"}).out, "of the third\n"));
  write(place.folder() / "slurm.jobs", "");
  place.calls();
  place.expect(0, {"status", "out"});
  CHECK(place.states() == Words{"failed", "lost", "failed"});
  CHECK(place.jobs()[2].at("exit_code") == 3);
  CHECK(place.calls() ==
        Words{"squeue --me --noheader --array --states=all --format=%i|%T|%r|%k",
              "sacct --noheader --parsable2 --allocations --array --format=JobID,State,ExitCode "
              "--jobs=101"});

  // Those that failed are an array of their own, in the same folders.
  place.set_slurm_state("101_0", "FAILED");
  place.expect(0, {"resubmit", "0", "2", "out"});
  CHECK(place.jobs()[2].at("id") == "102_1");
  CHECK(place.jobs()[2].at("attempt") == 2);
  CHECK(contains(read(place.out() / "arrays/0.2/submission_file.sbatch"), "--array=0-1%2\n"));
  CHECK(contains(read(place.out() / "arrays/0.2/points"), "/jobs/2-x-3 "));
}

TEST_CASE("submit: a sweep beyond the site's arrays is several, one after another if limited",
          "[submit]") {
  const Workplace place;
  place.make_slurm();
  place.limit_arrays(4);
  const auto dependencies = [&place] {
    Words found;
    for (const std::string& call : place.calls()) {
      found.push_back(split(call, ' ')[2].starts_with("--dep") ? split(call, ' ')[2] : "");
    }
    return found;
  };
  place.submit(0, {"--sweep", "x=1,2,3,4,5,6,7,8,9", "--sweep-limit", "3"});
  CHECK(dependencies() == Words{"", "--dependency=afterany:101", "--dependency=afterany:102"});
  place.check_each_is_submitted_once(9);
  CHECK(place.jobs()[8].at("id") == "103");  // alone
  place.submit(0, {"--sweep", "x=1,2,3,4,5"});
  CHECK(dependencies() == Words{"", ""});
  place.check_each_is_submitted_once(14);

  // All of them in one call, whatever they are, and only what is named.
  place.expect(0, {"cancel", "1", "2", "4", "8", "9", "out"});
  CHECK(place.calls() == Words{"squeue --me --noheader --array --states=all --format=%i|%T|%r|%k",
                               "scancel 101_[1-2] 102_[0] 103 104_[0]"});
  CHECK(place.states()[3] == "pending");
  CHECK(place.states()[9] == "cancelled");
  place.refused(Workplace::with_settings({"--sweep-limit", "2"}), {"--sweep-limit 2", "--sweep"});
  const RunResult local =
      place.submit(0, {"--scheduler", "local", "--sweep", "y=1,2", "--sweep-limit", "2"});
  CHECK(contains(local.err, "--sweep-limit"));
}

TEST_CASE("submit: ten thousand points are submitted, asked for and cancelled in a few calls",
          "[submit]") {
  const Workplace place;
  place.make_slurm();
  place.limit_arrays(5000);
  std::string axis = "0";
  for (int i = 1; i < 100; ++i) {
    axis += "," + std::to_string(i);
  }
  place.submit(0, {"--sweep", "x=" + axis, "--sweep", "y=" + axis, "--sweep-limit", "50"});
  CHECK(place.calls().size() == 2);
  std::size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(place.out())) {
    files += entry.is_regular_file() ? 1U : 0U;
  }
  CHECK(files == 3 + 4);  // the state, and for each array its script and its points
  place.set_slurm_state("101_7", "COMPLETED");
  place.calls();
  const RunResult status = place.expect(0, {"status", "--json", "--out-dir", "out"});
  CHECK(place.calls().size() == 1);
  const nlohmann::json jobs = nlohmann::json::parse(status.out).at("jobs");
  REQUIRE(jobs.size() == 10000);
  CHECK(jobs[9999].at("id") == "102_4999");
  CHECK(jobs[9999].at("folder") == place.job("9999-x-99_y-99").string());
  CHECK(jobs[7].at("state") == "done");
  place.expect(0, {"cancel", "--all", "out"});
  CHECK(place.calls() == Words{"squeue --me --noheader --array --states=all --format=%i|%T|%r|%k",
                               "scancel 101 102"});
  CHECK(place.states()[7] == "done");
  CHECK(place.states()[9999] == "cancelled");
}

TEST_CASE("submit: a sweep is one cluster of HTCondor", "[submit]") {
  const Workplace place;
  const std::string log = "echo \"${0##*/} $*\" >>\"$WORKPLACE/calls\"\n";
  place.tool("condor_submit", log + "echo '7.0 - 7.3'\n");
  place.tool("condor_q", log +
                             "if [[ \"$*\" == *-factory* ]]; then echo '7 3'; else cat "
                             "\"$WORKPLACE/queue\"; fi\n");
  place.tool("condor_history", log + "cat \"$WORKPLACE/history\"\n");
  place.tool("condor_rm", log);
  place.submit(0,
               {"--scheduler", "condor", "--sweep", "x=1,a 'b' $(HOME),3,4", "--sweep-limit", "2"});
  const fs::path array = place.out() / "arrays/0.1";
  const std::string text = read(array / "submission_file.sub");
  for (const std::string part :
       {"arguments = \"$(ddp_arguments)\"\n", "DDP_JOB_ID=$(ClusterId).$(ProcId)\"\n",
        "max_materialize = 2\n", "\nqueue ddp_folder,ddp_arguments from points\n"}) {
    INFO(text);
    CHECK(contains(text, part));
  }
  CHECK(contains(text, "initialdir = " + place.out().string() + "/$(ddp_folder)\n"));
  CHECK(contains(read(array / "points"),
                 "\njobs/1-x-a--b----HOME- --x 'a ''b'' $(DOLLAR)(HOME)'\njobs/2-x-3 --x 3\n"));
  CHECK(fs::is_directory(place.job("2-x-3")));  // HTCondor looks whether they are there
  CHECK(place.jobs()[2].at("id") == "7.2");
  CHECK(place.calls() == Words{"condor_submit -terse " + (array / "submission_file.sub").string()});

  // The fourth is not in the queue yet, and that is no reason to submit it again.
  write(place.folder() / "queue", "7.0 2 undefined\n7.2 1 undefined\n");
  write(place.folder() / "history", "7.1 4 3 undefined\n");
  place.expect(0, {"status", "out"});
  CHECK(place.states() == Words{"running", "failed", "pending", "pending"});
  CHECK(place.jobs()[1].at("exit_code") == 3);
  CHECK(place.calls() == Words{"condor_q 7 -factory -af ClusterId JobMaterializeNextProcId",
                               "condor_q 7 -af:j JobStatus HoldReason",
                               "condor_history 7 -limit 4 -af:j JobStatus ExitCode ExitSignal"});
  place.expect(0, {"cancel", "0", "2", "out"});
  CHECK(place.calls().back() == "condor_rm 7.0 7.2");
  place.expect(0, {"cancel", "--all", "out"});
  CHECK(place.calls().back() == "condor_rm 7");
  CHECK(place.states() == Words{"cancelled", "failed", "cancelled", "cancelled"});

  // On several nodes the jobs of a cluster are one job: there each has its own.
  place.tool("condor_submit", log + "echo '8.0 - 8.0'\n");
  const Words on_two = {"--scheduler", "condor", "--nodes", "2", "--sweep", "y=1,2"};
  Words limited = Workplace::with_settings(on_two);
  limited.insert(limited.end(), {"--sweep-limit", "1"});
  place.refused(limited, {"--sweep-limit 1", "nodes 2"});
  place.submit(0, on_two);
  CHECK(place.calls().size() == 2);
  CHECK(place.jobs()[5].at("id") == "8");
  // Part of a cluster is no answer.
  place.tool("condor_submit", "echo '9.0 - 9.0'\n");
  place.tool("condor_q", "exit 0\n");
  CHECK(contains(place.submit(1, {"--scheduler", "condor", "--sweep", "z=1,2"}).err, "9.0 - 9.0"));
}

TEST_CASE("submit: Slurm's commands do not inherit the options of a job around them", "[submit]") {
  const Workplace place;
  place.make_slurm();
  place.tool("sbatch",
             "for name in ${!SLURM_@} ${!SBATCH_@} ${!SRUN_@} ${!SQUEUE_@} "
             "${!SCANCEL_@}; do echo \"$name=${!name}\"; done >\"$WORKPLACE/seen\"\n"
             "umask >\"$WORKPLACE/umask\"\necho 101\n");
  RunOptions options = place.options();
  for (const char* const name :
       {"SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_EXPORT_ENV", "SBATCH_PARTITION", "SBATCH_EXPORT",
        "SRUN_DEBUG", "SQUEUE_PARTITION", "SCANCEL_STATE"}) {
    options.environment[name] = "of the caller";
  }
  options.environment["SLURM_CONF"] = "/etc/here";
  options.environment["SLURM_CLUSTERS"] = "b";
  options.environment["DDP_MAX_REQUEUES"] = "12";
  const RunResult result = run_program(Workplace::argv(Workplace::with_settings({})), options);
  INFO(result.out << result.err);
  CHECK(result.exit_code == 0);
  CHECK(read(place.folder() / "seen") == "SLURM_CLUSTERS=b\nSLURM_CONF=/etc/here\n");
  // A site may keep variables from the job: then the file has what was said here.
  const std::string script = read(place.out() / "submission_file.sbatch");
  CHECK(contains(script, "most=${DDP_MAX_REQUEUES:-12}\n"));
  CHECK(contains(script, " --export=ALL \\\n"));
  options.environment["DDP_MAX_REQUEUES"] = "many";
  const RunResult bad = run_program(Workplace::argv(Workplace::with_settings({})), options);
  CHECK(bad.exit_code == 2);
  CHECK(contains(bad.err, "DDP_MAX_REQUEUES"));
}

TEST_CASE("submit: a federation's cluster is asked, and its jobs are cancelled there", "[submit]") {
  const Workplace place;
  place.make_slurm();
  place.tool("sbatch", "echo '123;b'\n");
  write(place.folder() / "slurm.jobs", "CLUSTER: b\n123|RUNNING|None|x\n");
  place.submit(0);
  CHECK(place.jobs()[0].at("id") == "123;b");
  place.submit(0, {"--sweep", "x=1,2"});
  CHECK(place.jobs()[2].at("id") == "123_1;b");
  place.expect(0, {"status", "out"});
  CHECK(place.states()[0] == "running");
  CHECK(place.calls() ==
        Words{"squeue --me --noheader --array --states=all --format=%i|%T|%r|%k --clusters=b",
              "sacct --noheader --parsable2 --allocations --array --format=JobID,State,ExitCode "
              "--jobs=123 --clusters=b"});
  place.expect(0, {"cancel", "0", "out"});
  CHECK(read(place.folder() / "cancelled") == "--clusters=b 123\n");
}

TEST_CASE("submit: what is over is not cancelled", "[submit]") {
  const Workplace place;
  place.make_slurm();
  place.submit(0, {"--sweep", "x=1,2,3"});
  place.set_slurm_state("101_0", "COMPLETED");
  place.set_slurm_state("101_1", "RUNNING");
  CHECK(place.expect(0, {"cancel", "0", "1", "out"}).out ==
        "job 0 is done already\njob 1 cancelled\n");
  CHECK(read(place.folder() / "cancelled") == "101_[1]\n");
  CHECK(place.states() == Words{"done", "cancelled", "pending"});
  // Where nobody can tell, nothing is.
  place.tool("squeue", "echo 'no controller' >&2; exit 1\n");
  CHECK(contains(place.expect(75, {"cancel", "2", "out"}).err, "none was cancelled"));
  CHECK(place.states()[2] == "pending");
  // It ended between the two: scancel says so, and so does the next look.
  place.make_slurm();
  place.tool("scancel",
             "sed -i 's/^101_2|PENDING/101_2|COMPLETED/' \"$WORKPLACE/slurm.jobs\"\n"
             "echo 'Job/step already completing or completed' >&2; exit 1\n");
  CHECK(place.expect(0, {"cancel", "2", "out"}).out == "job 2 is done already\n");
}

TEST_CASE("submit: an id that is none never reaches a scheduler", "[submit]") {
  for (const auto& [scheduler, good] :
       {std::pair<std::string, std::string>{"slurm", "101"}, {"condor", "7"}}) {
    const Workplace place;
    place.make_slurm();
    place.tool("condor_submit", "echo '7.0 - 7.0'\n");
    for (const char* const tool : {"scancel", "condor_rm", "squeue", "condor_q", "sacct"}) {
      place.tool(tool, "touch \"$WORKPLACE/asked\"\n");
    }
    place.submit(0, {"--scheduler", scheduler});
    const fs::path file = place.out() / "submissions/0.1.json";
    const std::string whole = read(file);
    for (const std::string bad : {"123; rm", "-u root", "--all", "*", "0", "1 2", "../x", "12;",
                                  "12;-M", "12;a b", "1e9", "$(id)", "12_[0-9]", "99999999999"}) {
      std::string body = whole.substr(whole.find('\n') + 1);
      body.replace(body.find("\"" + good + "\""), good.size() + 2, nlohmann::json(bad).dump());
      write(file, "submit state 4, checksum " + ddp::Hash().update(body).hex() + "\n" + body);
      for (const Words& line : {Words{"cancel", "0", "out"}, Words{"cancel", "--all", "out"},
                                Words{"status", "out"}, Words{"resubmit", "0", "out"}}) {
        INFO(scheduler << ": " << bad);
        place.refused(line, {"0.1.json", "the id", "expected"});
      }
    }
    CHECK_FALSE(fs::exists(place.folder() / "asked"));
  }
}

TEST_CASE("submit: only its user may write the state, and read what may hold secrets", "[submit]") {
  const Workplace place;
  place.make_slurm();
  place.tool("sbatch", "umask >\"$WORKPLACE/umask\"\necho 101\n");
  const mode_t before = umask(0027);
  place.submit(0, {"--", "--token", "secret"});
  place.submit(0, {"--sweep", "x=1,2"});
  place.submit(0, {"--scheduler", "local"});
  umask(before);
  const auto mode = [](const fs::path& path) { return fs::status(path).permissions(); };
  const fs::perms secret = fs::perms::owner_read | fs::perms::owner_write;
  const fs::path submissions = place.out() / "submissions";
  CHECK(mode(submissions) == fs::perms::owner_all);
  CHECK(mode(place.out() / "arrays/1.1") == fs::perms::owner_all);
  for (const fs::path& file :
       {submissions / "0.json", submissions / "0.1.json", place.out() / "submission_file.sbatch",
        place.job("0-program") / "submission_file.sbatch", place.out() / "arrays/1.1/points",
        place.job("3-program") / "job.out", place.job("3-program") / "job.err"}) {
    INFO(file);
    CHECK(mode(file) == secret);
  }
  // Slurm makes the output with sbatch's mask; the program has the user's.
  CHECK(read(place.folder() / "umask") == "0077\n");
  CHECK(contains(read(place.out() / "submission_file.sbatch"), "\numask 0027\n"));

  const auto check_refused = [&](const fs::path& path, const std::string& named) {
    INFO(path);
    for (const Words& line : {Words{"list", "out"}, Words{"cancel", "--all", "out"}}) {
      place.refused(line, {path.filename(), named, "expected"});
    }
  };
  for (const fs::path& path : {submissions / "0.1.json", submissions / "0.json", submissions}) {
    const fs::perms good = mode(path);
    for (const fs::perms bad : {fs::perms::group_write, fs::perms::others_write}) {
      fs::permissions(path, bad, fs::perm_options::add);
      check_refused(path, "mode 0");
      fs::permissions(path, good);
    }
    if (geteuid() == 0) {
      REQUIRE(chown(path.c_str(), 65534, static_cast<gid_t>(-1)) == 0);
      check_refused(path, "user 65534");
      REQUIRE(chown(path.c_str(), 0, static_cast<gid_t>(-1)) == 0);
    }
  }
  // Nor is a link followed out of the folder.
  fs::rename(submissions / "0.1.json", place.folder() / "elsewhere");
  fs::create_symlink(place.folder() / "elsewhere", submissions / "0.1.json");
  place.refused({"list", "out"}, {"0.1.json", "expected"});
}

TEST_CASE("submit: the first tutorial's settings work word for word, whatever the scheduler",
          "[submit]") {
  const Workplace place;
  std::string settings = read(fs::path(DDP_SOURCE_DIR) / "tests/data/tutorial_settings.yaml");
  for (const char* const folder : {"/path/to/your/script", "/your/output/dir"}) {
    const size_t at = settings.find(folder);
    REQUIRE(at != std::string::npos);
    settings.replace(at, std::string(folder).size(), place.folder().string());
  }
  write(place.folder() / "local_settings.yaml", settings);
  write(place.folder() / "multi-GPU-training-torch.py", "print()\n");  // no #! line, not executable
  const std::string script = (place.folder() / "multi-GPU-training-torch.py").string();
  const Words arguments = {"--settings_file", "local_settings.yaml", "--dry-run"};
  place.refused(arguments, {"script_path", "python3 on PATH", "chmod +x"});

  place.tool("python3", "printf '%s\\n' \"$@\"");
  const std::string python = (place.folder() / "bin/python3").string();
  place.tool("condor_submit", "");
  const RunResult condor = place.expect(0, arguments);
  for (const std::string& line :
       {"executable = " + python, "arguments = \"" + script + "\"", std::string("request_cpus = 8"),
        std::string("request_memory = 256000"), std::string("request_gpus = 2"),
        std::string("gpus_minimum_memory = 60000")}) {
    INFO(line);
    CHECK(contains(condor.out, "\n" + line + "\n"));
  }
  CHECK(condor.err.empty());

  // Slurm, which nobody asked for, has no word for the GPUs' memory; asked for, it says so.
  fs::remove(place.folder() / "bin/condor_submit");
  place.make_slurm();
  const RunResult slurm = place.expect(0, arguments);
  CHECK(contains(slurm.out, "#SBATCH --mem=256000M\n"));
  CHECK(contains(slurm.out, "#SBATCH --gpus-per-node=2\n"));
  CHECK(contains(slurm.out, "\n    " + python + " " + script + " &\n"));
  CHECK(slurm.err ==
        "submit: note: memory_gpus in the settings is not used with --scheduler slurm\n");
  place.refused({"--settings_file", "local_settings.yaml", "--scheduler", "slurm"},
                {"memory_gpus"});

  // Here it runs, and where the settings say by what, by that.
  place.expect(0, {"--settings_file", "local_settings.yaml", "--scheduler", "local", "--", "a b"});
  const fs::path out = place.folder() / "multi-GPU-output";
  CHECK(read(out / "jobs/0-multi-GPU-training-torch.py/job.out") == script + "\na b\n");
  place.tool("other", "echo other \"$@\"");
  write(place.folder() / "local_settings.yaml", "interpreter: bin/other\n" + settings);
  place.expect(0, {"--settings_file", "local_settings.yaml", "--scheduler", "local"});
  CHECK(read(out / "jobs/1-multi-GPU-training-torch.py/job.out") == "other " + script + "\n");
  write(place.folder() / "local_settings.yaml", "interpreter: none\n" + settings);
  place.refused(arguments, {"interpreter", "none", "can be run"});
}

TEST_CASE("submit: a script with a #! line that may be executed runs itself", "[submit]") {
  const Workplace place;
  place.tool("python3", "echo python");
  for (const auto& [text, executable, expected] :
       std::vector<std::tuple<std::string, bool, std::string>>{
           {"#!/bin/sh\necho itself", true, "itself\n"},
           {"#!/bin/sh\necho itself", false, "python\n"},
           {"print()", true, "python\n"}}) {
    INFO(text << executable);
    const fs::path out = place.out() / std::to_string(executable) / std::to_string(text.size());
    fs::remove(place.folder() / "script.py");
    write(place.folder() / "script.py", text, executable);
    place.expect(0, {"--program", "script.py", "--out-dir", out.string(), "--scheduler", "local"});
    CHECK(read(out / "jobs/0-script.py/job.out") == expected);
  }
  place.make_slurm();
  write(place.folder() / "x.yaml",
        "script_path: script.py\nout_dir: out\nlocal: {condor: {transfer_files: [s.yaml]}}\n");
  place.refused({"--settings-file", "x.yaml", "--scheduler", "condor"},
                {"transfer_files", "python3", "#! line"});
  CHECK(contains(place.expect(0, {"--settings-file", "x.yaml", "--dry-run"}).err,
                 "transfer_files in the settings is not used"));
}

TEST_CASE("submit: no settings file is needed", "[submit]") {
  const Workplace place;
  place.make_slurm();
  const Words line = {"--program", "./program", "--out-dir", "new/out"};
  Words arguments = line;
  arguments.insert(arguments.end(), {"--time", "6:00:00", "--account", "def-keli", "--nodes", "2",
                                     "--gpus", "0", "1", "--dry-run", "--", "50", "--lr", "0.1"});
  const RunResult dry = place.expect(0, arguments);
  for (const std::string& text :
       {std::string("#SBATCH --time=06:00:00\n"), std::string("#SBATCH --account=def-keli\n"),
        std::string("#SBATCH --nodes=2\n"), std::string("#SBATCH --gpus-per-node=2\n"),
        (place.folder() / "program").string() + " 50 --lr 0.1 &\n",
        "cd -- " + (place.folder() / "new/out/jobs/0-program").string() + " ||"}) {
    INFO(text);
    CHECK(contains(dry.out, text));
  }
  place.expect(0, line);
  CHECK(contains(place.expect(0, {"list", "new/out"}).out, "pending"));
  // What the line says replaces what the file says.
  place.program("echo another", "another");
  place.expect(0, Workplace::with_settings(
                      {"--program", "another", "--out-dir", "elsewhere", "--scheduler", "local"}));
  CHECK(read(place.folder() / "elsewhere/jobs/0-another/job.out") == "another\n");
  CHECK_FALSE(fs::exists(place.out()));
}

TEST_CASE("submit: fewer processors than GPUs are worth a warning", "[submit]") {
  const Workplace place;
  place.make_slurm();
  const auto said = [&place](int cpus, const std::string& scheduler = "slurm") {
    place.settings(fmt::format("local: {{condor: {{num_cpus: {}, num_gpus: 8}}}}\n", cpus));
    return place.submit(0, {"--dry-run", "--scheduler", scheduler}).err;
  };
  CHECK(contains(said(2), "WARNING: num_cpus: got 2 for 8 GPUs of each node, expected"));
  CHECK(contains(said(2, "condor"), "WARNING: num_cpus: got 2 for 8 GPUs"));
  CHECK_FALSE(contains(said(8), "WARNING"));
}
