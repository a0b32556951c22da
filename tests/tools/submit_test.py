#!/usr/bin/env python3
"""tools/submit with a fake scheduler: a script as sbatch, squeue, scancel, condor_submit, condor_q and condor_rm in a folder of PATH.
tests/slurm/slurm_test.py and tests/condor/condor_test.py have real ones.

usage: submit_test.py [TEST...]
"""

import errno
import fcntl
import functools
import itertools
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from clusters.stages import wait_until  # noqa: E402
from support.scratch import ROOT, Scratch  # noqa: E402

TUTORIAL = (ROOT / "tests/tools/tutorial.yaml").read_text()
sys.dont_write_bytecode = True  # beside the package
sys.path.insert(0, str(ROOT / "tools"))
from ddp_submit import cli, condor, jobs, settings  # noqa: E402

# A job is a file with its id as name: tag, state and reason. COMMAND.fault beside it holds a fault that happens once:
#   killed-before | killed-after | refused | lost-answer
SCHEDULER = """#!{python} -IS
import os, pathlib, re, signal, sys, time
stub, name = pathlib.Path({stub!r}), pathlib.Path(sys.argv[0]).name
with open(stub / "calls", "a") as calls:
    print(name, file=calls)
if [variable for variable in os.environ if re.match("(SBATCH|SLURM|SQUEUE|SRUN)_", variable)] != ["SLURM_CONF"]:
    sys.exit("error: got variables of another job")
file = stub / (name + ".fault")
fault = file.read_text() if file.exists() else ""
file.unlink(missing_ok=True)
if fault == "killed-before":
    os.kill(os.getppid(), signal.SIGKILL)
if fault in ("killed-before", "refused"):
    os.write(2, b"\\xff\\n")  # Latin-1
    sys.exit(f"{{name}}: error: {{fault}} \\x1b[31m")
if name in ("sbatch", "condor_submit"):
    text = " ".join(sys.argv) if name == "sbatch" else pathlib.Path(sys.argv[-1]).read_text(errors="replace")
    if fault == "killed-after":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(0.3)  # a slow scheduler
    number = str(100 + len((stub / "calls").read_text().splitlines()))
    (stub / number).write_text(re.search(r'(?:--comment=|SubmitTag = ")(\\w+)', text)[1] + "|PENDING|None")
    print("" if fault == "lost-answer" else number if name == "sbatch" else f"{{number}}.0 - {{number}}.0")
    sys.exit(fault == "lost-answer")
for file in sorted(stub.glob("[0-9]*")):
    tag, state, reason = file.read_text().split("|")
    if name == "squeue":
        print(file.name, state, reason, tag, sep="|")
    elif name == "condor_q":
        print(tag, file.name)
    elif file.name in sys.argv:
        file.write_text(tag + "|CANCELLED|None")
"""


class Case(Scratch):
    wait_for = staticmethod(functools.partial(wait_until, seconds=30, complaint=lambda: "what the test waits for", pause_s=0.02))

    def setUp(self):
        super().setUp()
        self.stub = self.folder / "stub"
        for name in ("sbatch", "squeue", "scancel", "condor_submit", "condor_q", "condor_rm"):
            self.script(self.stub / name, SCHEDULER.format(python=sys.executable, stub=str(self.stub)))
        self.out = self.folder / "new/out"
        self.program = self.script("program", "#!/bin/sh\nexit 0\n")

    def settings(self, text="", program=None):
        text = text if "script_path" in text else f"script_path: {program or self.program}\nout_dir: new/out\n{text}"
        return self.write("settings.yaml", text.encode(errors="surrogateescape"), 0o664)  # as many systems' umask has it

    def start(self, *arguments):
        """Starts submit as a fork of this process, because Python's start takes longer than submit. @return its process id"""
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)  # as a shell does
            for number, name in ((1, "stdout"), (2, "stderr")):
                os.dup2(os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            os.environ |= {"PATH": f"{self.stub}:{os.environ['PATH']}", "SLURM_CONF": "/a/file"}
            os.environ |= {f"{prefix}_PARTITION": "of another job" for prefix in ("SBATCH", "SLURM", "SQUEUE", "SRUN")}
            os.chdir(self.folder)
            code = 99
            try:
                code = cli.run([str(word) for word in arguments])
            finally:
                sys.stdout.flush()
                os._exit(code)
        return pid

    def wait(self, pid, code):
        got = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out, err = ((self.folder / name).read_text() for name in ("stdout", "stderr"))
        self.assertEqual(got, code, out + err)
        return out, err

    def submit(self, *arguments, code=0):
        """Its standard output or, if the exit code is not 0, its line on standard error."""
        out, err = self.wait(self.start(*arguments), code)
        if code > 0:
            self.assertRegex(err, r"\Asubmit: .*\n\Z")
            self.assertTrue(err.rstrip("\n").isprintable(), err)
        return err if code else out

    def new(self, scheduler, *words, text="", program=None, code=0):
        return self.submit("--settings-file", self.settings(text, program), "--scheduler", scheduler, *words, code=code)

    def jobs(self, action="status"):
        return json.loads(self.submit(action, "--json", self.out))

    def states(self, action="status"):
        return [job["state"] for job in self.jobs(action)]

    def ends(self, action="status"):
        return [(job["state"], job["exit_code"], job["reason"]) for job in self.jobs(action)]

    def submitted(self):
        """Jobs in the scheduler."""
        return sorted(path.name for path in self.stub.glob("[0-9]*"))

    def change(self, number, state, reason="None"):
        path = self.stub / number
        path.write_text(f"{path.read_text().split('|')[0]}|{state}|{reason}")


class Settings(Case):
    def test_what_schedulers_are_given(self):
        stage4, stage5, script, module = (str(self.write(name, "", mode)) for name, mode in (
            ("04_ddp_launcher", 0o755), ("05_multinode", 0o755), ("a.py", 0o755), ("b.py", 0o644)))
        program, more = str(self.program), "--snapshot snapshot.safetensors --metrics metrics.jsonl --resume auto".split()
        tutorial, example = TUTORIAL, (ROOT / "condor/settings.yaml").read_text()
        full = ("time: 12:00:00\nnodes: 3\naccount: physics\npartition: long\narguments: [010, 1e-3, yes, a b]\n"
                "local: {device: cuda, condor: {num_cpus: 9, num_gpus: 4, memory_cpus: 5}}\n")
        two_gpus, few_cpus = "local: {condor: {num_gpus: 2}}\n", "local: {condor: {num_cpus: 1, num_gpus: 2}}\n"
        for scheduler, start, text, words, expected, command in (
                ("condor", "", tutorial, [], (
                    "universe = vanilla;request_cpus = 8;request_memory = 256000;request_gpus = 2;gpus_minimum_memory = 60000;"
                    "initialdir = /your/output/dir/multi-GPU-output/job-0-multi-GPU-training-torch.py;"
                    "arguments = \"'/path/to/your/script/multi-GPU-training-torch.py'\";"
                    "on_exit_remove = !((ExitCode =?= 75 && NumJobStarts <= 3) || (ExitCode =?= 85 && NumJobStarts <= 100))"), []),
                ("condor", "", tutorial.replace("# bid: 100 #", "bid: 100 #"), [], "+Bid = 100", []),
                ("local", "", example, [], "", [f"{self.folder.parent}/build/bin/03_ddp_spawn", *"50 10 --dataset digits --nprocs 2".split(), *more]),
                ("slurm", stage5, full, ["--nodes", "2", "--time=1-12"], (
                    "--nodes=2;--ntasks-per-node=4;--cpus-per-task=2;--mem=5M;--gpus-per-node=4;--time=1-12;--account=physics;--partition=long;"
                    f"--chdir={self.out}/job-0-05_multinode;--output=job-%j.out"), [stage5, "010", "1e-3", "yes", "a b", *more, "--device", "cuda"]),
                ("slurm", stage5, full, ["--"], "", [stage5, *more, "--device", "cuda"]),  # none, instead of the file's
                ("slurm", stage5, few_cpus, [], "--ntasks-per-node=2;--cpus-per-task=1", [stage5, *more]),
                ("slurm", program, few_cpus, [], "--ntasks-per-node=1;--cpus-per-task=1", [program]),  # starts its processes itself
                ("condor", stage5, "nodes: 2\naccount: physics\ntime: 1-02:03:04\nlocal: {condor: {num_cpus: 8, num_gpus: 2, memory_cpus: 101}}\n",
                 ["--", "--snapshot=it's", 'a"b', "$(x)$$y"], (
                     "universe = parallel;machine_count = 4;request_cpus = 4;request_gpus = 1;request_memory = 51;accounting_group = physics;"
                     '+ParallelShutdownPolicy = "WAIT_FOR_ALL";environment = "DDP_JOB_ID=$(ClusterId).$$([NumJobStarts])";allowed_execute_duration = 93784;'
                     "output = job-$(ClusterId).$(Node).out;error = job-$(ClusterId).$(Node).err;"
                     "arguments = \"'--snapshot=it''s' 'a\"\"b' '$(DOLLAR)(x)$$(DOLLARDOLLAR)y' '--metrics' 'metrics.jsonl' '--resume' 'auto'\""), []),
                ("condor", stage5, "nodes: 2\n" + few_cpus, [], "request_cpus = 1", []),
                ("condor", stage5, "nodes: 2\nlocal: {device: cpu, condor: {num_gpus: 0, bid: 0}}", [],
                 "machine_count = 2;+Bid = 0;arguments = \"'" + "' '".join([*more, "--device", "cpu"]) + "'\"", []),
                ("local", stage4, two_gpus, [], "", ["torchrun", "--standalone", "--nproc-per-node=2", "--no-python", stage4, *more]),
                ("local", stage4, "", [], "", [stage4, *more]),
                ("local", script, two_gpus, [], "", [script]), ("local", module, two_gpus, [], "", ["python3", module])):
            said = self.new(scheduler, "--dry-run", *words, text=text, program=start)
            self.assertNotRegex(said, "None" if "bid" in text.replace("# bid", "") else "None|Bid")
            options, _, rest = said.rpartition({"slurm": f" {ROOT}/slurm/job.sh ", "condor": "\nqueue\n", "local": "\0"}[scheduler])
            given = options.splitlines() if scheduler == "condor" else shlex.split(options)
            self.assertEqual(set(expected.split(";")) - {"", *given}, set(), said)
            self.assertEqual(shlex.split(re.sub(r"\A/\S*/(torchrun|python3) ", r"\1 ", rest)), command)
        self.assertFalse(self.out.exists())
        self.assertIn("nodes: got 2, expected 1 with 04_ddp", self.new("condor", "--nodes=2", program=stage4, code=2))
        self.new("condor", text=tutorial, code=2)  # there is no such program
        self.new("condor", "--", "\udcff")
        self.assertIn(b" \"'\xff'\"", (self.out / "submission_file.sub").read_bytes())  # a name in Latin-1
        self.assertEqual([condor.seconds(time) for time in ("90", "1:30", "12:00:00", "1-12")], [5400, 90, 43200, 129600])

    def test_the_program_itself(self):
        door = self.folder / "door"
        door.symlink_to(ROOT / "tools/submit")
        tutorial = self.write("tutorial.yaml", TUTORIAL)
        said = subprocess.run([door, "--settings_file", tutorial, "--scheduler", "condor", "--dry_run"], env={**os.environ, "PYTHONSAFEPATH": "1"},
                              capture_output=True, text=True, check=True).stdout
        without_folder = functools.partial(re.sub, "= .*/python3", "= python3")  # which python3 may be the front of several
        self.assertEqual(without_folder(said), without_folder(self.submit("--settings-file", tutorial, "--dry-run")))

    def test_paths(self):
        """Home folders and variables are replaced; what stays of them, and a URL, would become a folder of that name."""
        for path in ("a\\", "'a\\'", r'"a\nb"', r'"a\u200e"', '""', "s3://bucket/out", "S3://b", "$(HOME)/out", "$NO_SUCH_VARIABLE/out", "~no-such-user/out"):
            said = self.new("condor", "--dry-run", text=f"script_path: {self.program}\nout_dir: {path}\n", code=2)
            self.assertRegex(said, 'settings.yaml:2: out_dir: got ".*", expected a path')
        for path in ("~/out", "$HOME/out", "${HOME}/out"):
            said = self.new("condor", "--dry-run", text=(
                f"\ufeffscript_path: {self.program}\nout_dir: {path}  # a no-break\u00a0space\nlocal: {{condor: {{memory_gpus: 9}}}}\n"))
            self.assertRegex(said, rf"\A(?s:(?!.*gpus).*)\ninitialdir = {pathlib.Path.home()}/out/job-0-")

    def test_a_relative_path_in_the_arguments(self):
        for name in ("a b.txt", "stub/beside"):
            self.write(name, "")
        here = self.settings()
        beside = self.write("stub/settings.yaml", here.read_text())
        for file, words, named in ((here, ("--", "--data", "a b.txt"), "a b.txt"), (here, ("--", "--data=a b.txt"), "a b.txt"),
                                   (here, ("--sweep", "data=none,a b.txt"), "a b.txt"), (here, ("--", "stub"), "stub"),
                                   (here, ("--", "none", f"{self.folder}/a b.txt"), ""), (beside, ("--", "beside"), "beside")):
            said = self.wait(self.start("--settings-file", file, "--dry-run", *words), 0)[1]
            self.assertRegex(said, rf"\Asubmit: note: {named}: .* below {file.parent}/new/out, not here; .*\n\Z" if named else r"\A\Z")

    def test_refused_settings(self):
        deep, place = 100_000, "settings.yaml:3: "
        for text, message in (
                ("nodes:\u00a02", place + "got the invisible character U+00A0, expected a space"), ("account: \udcff", "U+DCFF"),
                ("nodes: 2\r\ntime: 1\u200e", "settings.yaml:4: got the invisible character U+200E"), ("\x07: 1", "character U+0007"),
                ("nodez: 2", place + "unknown key: got nodez, expected nodes"), ("nodes: 1\nnodes: 2", "settings.yaml:4: nodes: got the key twice"),
                ("local:\n  condor:\n    num_cpu: 2", "settings.yaml:5: unknown key: got local.condor.num_cpu, expected local.condor.num_cpus"),
                ("num_gpus: 2", place + "unknown key: got num_gpus, expected local.condor.num_gpus"),
                ("zzz: 1", place + "unknown key: got zzz, expected one of script_path, out_dir,"), ("nodes: [1]", "nodes: got keys or a list"),
                ("nodes: two", 'nodes: got "two", expected a number from 1 on'), ("nodes: 010", 'nodes: got "010"'), ("nodes:", 'nodes: got ""'),
                ("account:", 'account: got ""'), ('account: "a b"', 'account: got "a b"'), ('account: "\\e[31m"', r'account: got "\x1b[31m"'),
                ("time: 1:3", 'time: got "1:3"'), ("local: {device: gpu}", 'local.device: got "gpu", expected auto, cpu or cuda'),
                ("arguments: 50 10", "arguments: got something else, expected a list of words"), ("arguments: [{a: b}]", "arguments: got"),
                ('arguments: ["\\0"]', "arguments: got"), ("a: [", place + "got "), ("local: 3", "local: got no keys"),
                ("local: {device: cpu, condor: {num_gpus: 1}}", "num_gpus: got 1"), *((text, "settings.yaml") for text in (
                    "[" * deep, f"arguments: {'[' * deep}", f"local: {'{local: ' * deep}", "arguments: &a [*a]", "arguments: &a {a: *a}",
                    "? &a [*a]\n: 1", "arguments: [&a [&b [*a, *b]]]"))):
            self.assertIn(message, self.new("slurm", text=text, code=2), text[:30])
        for text, message in (("", "an empty file"), ("[1]", "settings: got no keys"), ("out_dir: x", "no script_path")):
            self.write("settings.yaml", text)
            self.assertIn(message, self.submit("--settings-file", "settings.yaml", code=2))

    def test_refused_command_lines(self):
        self.settings()
        file = "--settings-file settings.yaml"
        for line, message in (
                ("", "--settings-file"), ("lst", "command: got lst"), ("--settings-file none.yaml", "none.yaml"), (f"{file} --scheduler pbs", "invalid choice"),
                (f"{file} --dryrun", "did you mean --dry-run?"), (f"{file} --nodes 0", '--nodes: got "0"'),
                (f"{file} --nodes=2 --scheduler=local", "nodes: got 2, expected 1 with --scheduler local;"), (f"{file} --sweep lr", '--sweep: got "lr"'),
                (f"{file} --sweep lr=", '--sweep: got "lr="'), (f"{file} --scheduler=condor -- 'a\nb'", r'got "a\nb"'),
                (f"{file} --scheduler=condor -- '$(Dollar)'", "got"), ("list nowhere", "out_dir"), ("list a b", "out_dir: got a and b"),
                (f"list a {file}", "out_dir: got a and /"), ("cancel 0 . --all", "numbers and all"), ("resubmit --failed 0 .", "numbers and all"),
                ("logs --lines 0", '--lines: got "0"'), ("logs --lines -3", '--lines: got "-3"'), ("cancel .", "no job"), ("cancel 7 .", "JOB: got 7"),
                (f"list {'1' * 5000}", "out_dir: got"), (f"list . {'1' * 5000}", "out_dir: got"), ("list ٣ .", "out_dir: got ٣")):
            self.assertIn(message, self.submit(*shlex.split(line), code=2), line[:60])
        self.assertEqual(json.loads(self.submit("list", "--json", self.folder)), [])
        self.program.chmod(0o644)
        for program in (self.program, self.folder, self.folder / "none.py"):
            self.assertIn("chmod +x", self.new("slurm", program=program, code=2))
        self.assertEqual(self.submitted(), [])
        words = ("--settings-file", self.settings(program="/bin/sh"))
        self.assertRegex(self.submit(*words, "--dry-run"), "^# Job 0,")  # both schedulers are there
        (self.stub / "condor_submit").unlink()
        self.assertRegex(self.submit(*words, "--dry-run"), "^sbatch ")
        self.assertIn("PATH: got no condor_submit, expected it, or --scheduler slurm or local", self.submit(*words, "--scheduler=condor", code=2))
        self.out.parent.write_text("a file")
        self.assertIn("expected a folder that is there or can be made", self.submit(*words, code=2))


class Schedulers(Case):
    def test_a_sweep_from_submission_to_resubmission(self):
        for scheduler, remove in (("slurm", "scancel"), ("condor", "condor_rm")):
            self.setUp()
            self.new(scheduler, "--sweep", "a=1,2\\,3", "--sweep=--b=x")
            first, second = self.jobs("list")
            self.assertEqual([first["id"], second["id"]], self.submitted())
            self.assertEqual([(job["command"][1:], pathlib.Path(job["folder"]).name) for job in (first, second)],
                             [(["--a", "1", "--b", "x"], "job-0-a-1_b-x"), (["--a", "2,3", "--b", "x"], "job-1-a-2-3_b-x")])
            self.assertEqual((self.out / "submission_file.sub").exists(), scheduler == "condor")
            self.write(f"stub/{remove}.fault", "refused")
            self.submit("cancel", "1", self.out, code=1)
            self.assertEqual(self.states(), ["pending", "pending"])
            self.submit("cancel", "1", "--settings-file", "settings.yaml")
            self.assertIn("|CANCELLED|", (self.stub / second["id"]).read_text())
            self.assertEqual(self.states(), ["pending", "cancelled"])
            self.assertEqual({self.submit("resubmit", chosen, self.out) for chosen in ("--failed", "0")}, {"nothing to resubmit\n"})  # job 0 is pending
            self.submit("resubmit", "1", self.out)
            again = self.jobs()[1]
            self.assertEqual((again["state"], again["attempt"], again["earlier_ids"], len(self.submitted())), ("pending", 2, [second["id"]], 3))
            self.assertEqual(self.submit("list", self.out).splitlines()[2].split(), ["1", "pending", again["id"], "2", "a-2-3_b-x"])
            output = self.write(f"new/out/job-0-a-1_b-x/job-{first['id']}.out", "one\ntwo\x1b\n")
            file = self.out / "job-0.json"
            file.write_text(file.read_text().replace('"earlier_ids": []', '"earlier_ids": ["1"]'))  # as this one's id begins
            self.assertEqual(self.submit("logs", "0", self.out, "--lines", "1"), f"==> {output}\ntwo\\x1b\n")

    def test_killed_at_any_moment(self):
        """No job is lost and no job is submitted twice, whatever call comes next."""
        for scheduler, command, fault, following, calls in (
                ("slurm", "squeue", "killed-before", "the same", 2), ("slurm", "sbatch", "killed-before", "status", 3),
                ("slurm", "sbatch", "killed-after", "resubmit", 2), ("condor", "condor_q", "killed-before", "the same", 2),
                ("condor", "condor_submit", "killed-before", "the same", 3), ("condor", "condor_submit", "killed-after", "status", 2)):
            self.setUp()
            self.write(f"stub/{command}.fault", fault)
            self.new(scheduler, "--sweep", "x=1,2", code=-signal.SIGKILL)
            self.assertEqual(self.states("list"), ["new"] * 2)
            self.submit(*{"the same": ("--settings-file", "settings.yaml", "--scheduler", scheduler, "--sweep", "x=1,2"),
                          "status": ("status", self.out), "resubmit": ("resubmit", "--failed", self.out)}[following])
            self.assertEqual([(job["state"], job["id"]) for job in self.jobs("list")], [("pending", number) for number in self.submitted()], (command, fault))
            self.assertEqual(len(re.findall("sbatch|condor_submit", (self.stub / "calls").read_text())), calls, (command, fault))
        for scheduler, command, output in (
                ("slurm", "sbatch", "job-{}.out"), ("condor", "condor_submit", "job-{}.log"), ("condor", "condor_submit", "job-{}.1.out")):
            self.setUp()  # the job has ended, and the scheduler has forgotten it
            self.write(f"stub/{command}.fault", "killed-after")
            self.new(scheduler, code=-signal.SIGKILL)
            self.wait_for(self.submitted)
            number, = self.submitted()
            self.write(f"new/out/job-0-program/{output.format(number)}", "")
            (self.stub / number).unlink()
            self.assertEqual((self.jobs()[0]["id"], self.submitted()), (number, []), output)
        again = ("condor", "--sweep", f"x=1,\u00e9{'.' * 300}")
        self.new(*again)
        self.new(*again)  # a second submission on purpose
        (self.out / "job-0.json").unlink()
        self.new(*again)  # takes no number that is in use
        self.assertEqual((len(self.submitted()), [job["number"] for job in self.jobs()]), (6, [1, 2, 3, 4, 5, 6]))

    def test_refused_unanswered_and_answered_too_late(self):
        run = subprocess.run

        def hangs(command, **options):
            if command[0] == "sbatch":
                raise subprocess.TimeoutExpired(command, options["timeout"])
            return run(command, **options)

        with unittest.mock.patch("os.fsync", lambda file: settings.refuse("disk", os.fstat(file).st_size, "more space")):
            self.assertRegex(self.new("slurm", code=2), "disk: got [1-9]")  # a job is on the disk before it is submitted
        self.assertEqual(self.submitted(), [])
        self.write("stub/sbatch.fault", "refused")
        for said in self.new("slurm", code=1), self.submit("list", self.out):
            self.assertIn(r"refused: sbatch: error: refused \x1b[31m", said)
        self.write("stub/100", f"{self.jobs('list')[0]['tag']}|PENDING|None")  # it has the job all the same
        self.submit("resubmit", "--failed", self.out)
        self.assertEqual(self.ends("list"), [("pending", None, "")])
        self.write("stub/sbatch.fault", "lost-answer")
        self.new("slurm")
        self.assertEqual([job["id"] for job in self.jobs()], self.submitted())
        self.write("stub/squeue.fault", "refused")
        self.assertIn("squeue gave no answer", self.new("slurm", code=75))
        with unittest.mock.patch("subprocess.run", side_effect=FileNotFoundError("squeue")):
            self.submit("status", self.out, code=75)
        self.assertEqual([job["id"] for job in self.jobs()], self.submitted())
        self.assertEqual(len(self.submitted()), 3)
        with unittest.mock.patch("subprocess.run", hangs):
            self.assertIn("sbatch timed out", self.new("slurm", code=75))
        self.assertEqual(self.states("list")[3], "new")

    def check_states(self, rows, say):
        """`say(number, *row)` makes the scheduler say the row's first values; the last three are state, exit code and reason."""
        for *said, state, code, reason in rows:
            if self.states("list")[0] in jobs.OVER:
                self.submit("resubmit", "0", self.out)
            say(self.jobs("list")[0]["id"], *said)
            if state in jobs.OVER:
                self.submit("cancel", "0", self.out)  # too late
            self.assertEqual(self.ends(), [(state, code, reason)], said)

    def test_what_slurm_says(self):
        def say(number, word, reason, output):
            self.change(number, word, reason) if word else (self.stub / number).unlink()
            self.write(f"new/out/job-0-program/job-{number}.out", output)

        self.new("slurm")
        body = "program: exit code "
        failed = "TIMEOUT OUT_OF_MEMORY NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE LAUNCH_FAILED REVOKED FAILED"
        self.check_states((
            ("PENDING", "Priority", "", "pending", None, "Priority"), ("PENDING", "JobHeldAdmin", "", "held", None, "JobHeldAdmin"),
            *((word, "None", "", state, None, "") for state, words in (
                ("pending", "CONFIGURING REQUEUED"), ("held", "REQUEUE_HOLD SPECIAL_EXIT"), ("running", "COMPLETING RESIZING STOPPED NEWER")) for word in words.split()),
            ("RUNNING", "None", f"{body}85, asking Slurm to start the job again (1 of at most 100 times)\n", "running", None, ""),
            ("FAILED", "NonZeroExitCode", f"{body}3\n", "failed", 3, ""), *((word, "None", "", "failed", None, f"Slurm says {word}") for word in failed.split()),
            ("COMPLETED", "None", "", "done", None, ""), ("CANCELLED", "None", "", "cancelled", None, ""), ("CANCELLED", "None", f"{body}143\n", "cancelled", None, ""),
            ("", "", f"{body}3\n{body}0\n--\nUsed: 3 h, exit code 9\n", "done", 0, ""), ("", "", "", "lost", None, "")), say)
        self.submit("resubmit", "--failed", self.out)  # it is lost
        self.change(self.jobs("list")[0]["id"], "RUNNING")
        self.assertEqual(self.states(), ["running"])
        self.new("slurm")  # a second submission on purpose
        self.assertEqual(self.states("list"), ["running", "pending"])

    def test_what_condor_s_log_says(self):
        self.new("condor")
        submitted, held = "000 (100.000.000) 2026-01-31 10:00:00 Job submitted\n...\n", "012 (100.000.000) Job was held.\n\tFailed to execute\n\tCode 6\n...\n"
        running = submitted + "001 (100.000.000) Job executing on host\n...\n"
        self.check_states((
            ("", "pending", None, ""), (submitted + "001 (100.000.000) half", "pending", None, ""), (running, "running", None, ""),
            (running + held, "held", None, "Failed to execute"), (running + held + "013 (100.000.000) Job was released.\n...\n", "pending", None, ""),
            (running + "004 (100.000.000) Job was evicted.\n...\n", "pending", None, ""),
            (running + "005 (100.000.000) Job terminated.\n\t(1) Normal termination (return value 7)\n...\n", "failed", 7, ""),
            ("005 (1) x\n\t(0) Abnormal termination (signal 9)\n...\n", "failed", None, "signal 9"), ("009 (1) Job was aborted\n...\n", "cancelled", None, ""),
            ("005 (1) x\n\t(1) Normal termination (return value 0)\n...\n", "done", 0, "")),
            lambda number, log: self.write(f"new/out/job-0-program/job-{number}.log", log))


class Local(Case):
    def start_local(self, text, *arguments):
        self.script("program", f"#!/bin/bash\n{text}\n")
        return self.start("--settings-file", self.settings(), "--scheduler", "local", *arguments)

    def test_exit_codes_that_ask_for_another_start(self):
        for codes, starts, expected in (("85 75 85 0", 4, 0), ("75 75 75 75", 4, 75), ("3", 1, 3), ("0", 1, 0)):
            self.setUp()
            self.wait(self.start_local(f"codes=({codes}); n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) | tee n >&2; exit ${{codes[n]}}"), int(expected > 0))
            self.assertEqual(self.ends("list"), [("failed" if expected else "done", expected, "")])
            self.assertEqual(self.submit("logs", self.out).splitlines(), [f"==> {self.out}/job-0-program/job-local.out", *map(str, range(1, starts + 1))])
        self.setUp()  # each job of a sweep has its own restarts
        self.wait(self.start_local("echo >>n; (($(wc -l <n) > 3)) || exit 75", "--sweep", "x=1,2"), 0)
        self.assertEqual(self.states("list"), ["done", "done"])
        self.program.write_text("no script")
        self.wait(self.start("resubmit", "0", "1", self.out), 1)
        self.assertEqual(self.ends("list"), [("failed", None, "Exec format error")] * 2)

    # It takes a while to stop, and the next start has to wait for that.
    WAITS = "trap 'sleep 0.5; echo end >>starts; exit 85' TERM; echo start >>starts; [[ ! -e go ]] || exit 0; echo $$ >pid; mv pid ready; while :; do sleep 0.02; done"

    def test_cancelled(self):
        """`cancel` stops only that job. Ctrl-C loses no job, and resubmit goes on."""
        process = self.start_local(self.WAITS, "--sweep", "x=1,2,3")
        self.wait_for((self.out / "job-0-x-1/ready").exists)
        self.assertEqual(self.states(), ["running", "new", "new"])
        os.kill(int((self.out / "job-0-x-1/ready").read_text()), signal.SIGSTOP)
        self.submit("cancel", "0", self.out)
        self.wait_for((self.out / "job-1-x-2/ready").exists)
        os.killpg(process, signal.SIGINT)
        self.wait(process, 130)
        self.submit("cancel", "2", self.out)
        (self.out / "job-1-x-2/go").touch()
        self.submit("resubmit", "1", self.out)
        self.assertEqual(self.ends(), [("cancelled", 85, ""), ("done", 0, ""), ("cancelled", None, "")])
        self.assertEqual((self.out / "job-1-x-2/starts").read_text(), "start\nend\nstart\n")  # it was asked to stop, as by `cancel`

    def test_killed(self):
        """Its program ends too. The same call again, or resubmit, runs the remaining jobs, also if the last one was running."""
        same = ("--settings-file", "settings.yaml", "--scheduler", "local", "--sweep")
        for words, points in (((*same, "x=1,2"), 2), ((*same, "x=1"), 1), (("resubmit", "0", "new/out"), 2)):
            self.setUp()
            process = self.start_local(self.WAITS, "--sweep", "x=1,2" if points == 2 else "x=1")
            self.wait_for((self.out / "job-0-x-1/ready").exists)
            os.kill(process, signal.SIGKILL)
            self.wait(process, -signal.SIGKILL)
            self.write("new/out/job-0-x-1/go", "")
            self.write("new/out/job-1-x-2/go", "")
            self.submit(*words)
            self.assertEqual(self.states(), ["done"] * points)
            self.assertEqual([(self.out / f"job-{point}-x-{point + 1}/starts").read_text() for point in range(points)],
                             ["start\nend\nstart\n", "start\n"][:points])
        self.program.write_text("#!/bin/sh\n")
        self.submit(*same, "x=1,2")  # all are done: a new sweep, on purpose
        self.assertEqual(len(self.jobs()), 4)


class Others(Case):
    """Who may write a file of submit's, may run commands as its user."""

    def refused(self, path, *words):
        before = self.submitted()
        self.assertRegex(self.submit(*words, code=2), rf"submit: {re.escape(str(path))}: got [-dl]\S{{9}} of user \d+, expected", words)
        self.assertEqual(self.submitted(), before)

    def test_files(self):
        self.addCleanup(os.umask, os.umask(0))
        self.new("slurm")
        folder, file, lock, running, aside = (*(self.out / name for name in ("job-0-program", "job-0.json", ".lock", ".running")), self.folder / "aside")
        self.assertEqual([path.stat().st_mode & 0o777 for path in (self.out, folder, file, lock)], [0o700, 0o700, 0o600, 0o600])
        number, = self.submitted()
        self.change(number, "COMPLETED")
        log = self.write(folder / f"job-{number}.out", "program: exit code 0\n")
        reading, submission = [("list", self.out), ("logs", self.out)], ("--settings-file", self.settings(), "--scheduler", "slurm")
        changing = [("status", self.out), ("cancel", "0", self.out), ("resubmit", "0", self.out), submission]
        harms = [lambda path: path.chmod(0o720), lambda path: path.chmod(0o702), lambda path: (path.rename(aside), path.symlink_to(aside)),
                 *[lambda path: os.chown(path, 1, -1, follow_symlinks=False)] * (os.geteuid() == 0)]
        for path, calls, good in ((self.out, reading + changing, 0o755), (file, reading + changing, 0o644), (folder, reading + changing, 0o755),
                                  (lock, changing, 0o644), (log, [changing[0], reading[1]], 0o644)):
            path.chmod(good)
            for harm, words in zip(harms[:2] + harms[2 + (path == self.out):], itertools.cycle(calls)):  # a link to out_dir may be one's own
                harm(path)
                self.refused(path, *words)
                if path.is_symlink():
                    path.unlink()
                    aside.rename(path)
                os.chown(path, os.geteuid(), -1)
                path.chmod(good)
        folder.chmod(0o700)
        log.chmod(0o666)  # nobody gets to it
        self.assertEqual(self.states(), ["done"])
        self.stub.chmod(0o777)
        self.refused(self.stub, "cancel", "0", self.stub)
        self.assertFalse((self.stub / ".lock").exists())
        aside.symlink_to(self.out)
        self.submit("status", aside)  # a link of one's own
        running.symlink_to(self.folder / "elsewhere")
        self.refused(running, *submission[:3], "local")
        self.settings().chmod(0o666)
        self.refused(submission[1], "status", "--settings-file", submission[1])
        if os.geteuid() == 0:
            for path, words in (aside, ("status", aside)), (self.settings(), submission):
                os.chown(path, 1, -1, follow_symlinks=False)
                self.refused(path, *words)

    def test_damaged_job_files(self):
        self.new("slurm")
        job = json.loads((self.out / "job-0.json").read_text())
        for text in (*(json.dumps(job | change) for change in (
                {"id": "0"}, {"id": "-1"}, {"id": "1 2"}, {"id": "\u0663"}, {"id": 7}, {"id": "1\n"}, {"name": "a/b"}, {"name": "a\0"}, {"name": "\u00e9"},
                {"number": 1}, {"scheduler": "pbs"}, {"command": "sh"}, {"command": [1]}, {"command": []}, {"earlier_ids": [7]}, {"state": None}, {"new": 1},
                {"settings": []}, {"settings": {}})),
                     "", "{", "null", "[]", "[" * 100_000, '{"a":' * 100_000, json.dumps(job).replace('"tag": "', '"tag": "\\ud800"'), "9" * 5000):
            self.write("new/out/job-0.json", text)
            self.assertIn("job-0.json: got something else, expected a job", self.submit("status", self.out, code=2), text[:500])

    def test_locks(self):
        self.new("slurm")
        held = os.open(self.out / ".lock", os.O_RDWR)
        fcntl.flock(held, fcntl.LOCK_EX)
        self.addCleanup(fcntl.flock, held, fcntl.LOCK_UN)  # of the child's copy, too
        process = self.start("status", self.out)
        self.wait_for(lambda: (self.folder / "stderr").read_text())
        fcntl.flock(held, fcntl.LOCK_UN)
        self.assertEqual(self.wait(process, 0)[1], f"submit: waiting for another submit in {self.out}\n")
        for number in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL):
            with unittest.mock.patch.object(fcntl, "flock", side_effect=OSError(number, os.strerror(number))):
                self.assertIn(f"{self.out}/.lock: got {os.strerror(number)}, expected a file system", self.submit("status", self.out, code=2))


if __name__ == "__main__":
    unittest.main()
