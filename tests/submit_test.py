#!/usr/bin/env python3
"""tools/submit with a fake scheduler: a script as sbatch, squeue, scancel, condor_submit, condor_q and condor_rm in a folder of PATH.
tests/slurm_test.py and tests/condor_test.py have real ones.

usage: submit_test.py [TEST...]
"""

import errno
import itertools
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
import unittest
import unittest.mock

from support.scratch import Scratch

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUBMIT = ROOT / "tools/submit"
sys.dont_write_bytecode = True  # beside the script
sys.path.insert(0, str(SUBMIT.parent))
from ddp_submit import cli, condor, jobs, settings  # noqa: E402
TUTORIAL = ROOT / "tests/data/tutorial_settings.yaml"

# A job is a file with its id as name: tag, state and reason. `fault` in the same folder names a fault that happens once:
#   COMMAND killed-before | killed-after | refused | lost-answer | no-answer
SCHEDULER = """#!{python} -IS
import os, pathlib, re, signal, sys, time
stub = pathlib.Path({stub!r})
name = pathlib.Path(sys.argv[0]).name
with open(stub / "calls", "a") as calls:
    print(*sys.argv[1:], file=calls)
given = [variable for variable in os.environ if re.match("(SBATCH|SLURM|SQUEUE|SRUN)_", variable)]
if given != ["SLURM_CONF"]:
    sys.exit(f"{{name}}: error: got {{given}}")
fault = ""
if (stub / "fault").exists():
    command, fault = (stub / "fault").read_text().split()
    fault = fault if command == name else ""
    if fault and fault != "no-answer":
        (stub / "fault").unlink()
if fault == "killed-before":
    os.kill(os.getppid(), signal.SIGKILL)
    sys.exit(1)
if fault in ("refused", "no-answer"):
    os.write(2, b"\\xff\\n")  # Latin-1
    sys.exit(f"{{name}}: error: {{fault}} \\x1b[31m")
jobs = {{path.name: path.read_text().split("|") for path in sorted(stub.glob("[0-9]*"))}}
if name in ("sbatch", "condor_submit"):
    text = " ".join(sys.argv) if name == "sbatch" else pathlib.Path(sys.argv[-1]).read_text(errors="replace")
    if fault == "killed-after":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(0.3)  # a slow scheduler
    number = str(100 + len((stub / "calls").read_text().splitlines()))
    (stub / number).write_text(re.search(r'(?:--comment=|SubmitTag = ")(\\w+)', text)[1] + "|PENDING|None")
    print("" if fault == "lost-answer" else number if name == "sbatch" else f"{{number}}.0 - {{number}}.0")
    sys.exit(fault == "lost-answer")
elif name == "squeue":
    for number, (tag, state, reason) in jobs.items():
        print(number, state, reason, tag, sep="|")
elif name == "condor_q":
    for number, (tag, *_) in jobs.items():
        print(tag, number)
else:
    for number in sys.argv[1:]:
        (stub / number).write_text(jobs[number][0] + "|CANCELLED|None")
"""


class Case(Scratch):
    def setUp(self):
        super().setUp()
        self.stub = self.folder / "stub"
        for name in ("sbatch", "squeue", "scancel", "condor_submit", "condor_q", "condor_rm"):
            self.script(self.stub / name, SCHEDULER.format(python=sys.executable, stub=str(self.stub)))
        self.out = self.folder / "new/out"
        self.program = self.script(self.folder / "program", "#!/bin/sh\nexit 0\n")

    def settings(self, text="", program=None):
        path = self.folder / "settings.yaml"
        path.write_text(f"script_path: {program or self.program}\nout_dir: new/out\n{text}", errors="surrogateescape")
        path.chmod(0o664)  # as many systems' umask has it
        return path

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

    def jobs(self, action="status", code=0):
        return json.loads(self.submit(action, "--json", self.out, code=code))

    def wait_for(self, condition):
        deadline = time.monotonic() + 30
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def submitted(self):
        """Jobs in the scheduler."""
        return sorted(path.name for path in self.stub.glob("[0-9]*"))

    def change(self, number, state, reason="None"):
        path = self.stub / number
        path.write_text(f"{path.read_text().split('|')[0]}|{state}|{reason}")

    def fault(self, text):
        (self.stub / "fault").write_text(text)


class Settings(Case):
    def test_the_tutorial_s_file_word_for_word(self):
        text = subprocess.run([SUBMIT, "--settings_file", TUTORIAL, "--scheduler", "condor", "--dry_run"], capture_output=True, text=True,
                              check=True).stdout
        for line in ("universe = vanilla", "request_cpus = 8", "request_memory = 256000", "request_gpus = 2",
                     "gpus_minimum_memory = 60000", "initialdir = /your/output/dir/multi-GPU-output/job-0-multi-GPU-training-torch.py",
                     "arguments = \"'/path/to/your/script/multi-GPU-training-torch.py'\"", "queue",
                     "on_exit_remove = !((ExitCode =?= 75 && NumJobStarts <= 3) || (ExitCode =?= 85 && NumJobStarts <= 100))"):
            self.assertIn(f"\n{line}\n", text)
        self.assertNotIn("Bid", text)
        bid = self.folder / "bid.yaml"
        bid.write_text(TUTORIAL.read_text().replace("# bid: 100 #", "bid: 100 #"))
        self.assertIn("\n+Bid = 100\n", self.submit("--settings-file", bid, "--dry-run", "--scheduler", "condor"))
        self.submit("--settings-file", TUTORIAL, "--scheduler", "condor", code=2)  # there is no such program
        own = self.submit("--settings-file", ROOT / "condor/settings.yaml", "--scheduler=local", "--dry-run")
        self.assertIn("/03_ddp_spawn 50 10 --dataset digits --nprocs 2 --snapshot ", own)

    def test_what_slurm_is_given(self):
        stage = self.script(self.folder / "05_multinode", "#!/bin/sh\n")
        settings = self.settings("time: 12:00:00\nnodes: 3\naccount: physics\npartition: long\narguments: [010, 1e-3, yes, a b]\n"
                                 "local: {device: cuda, condor: {num_cpus: 9, num_gpus: 4, memory_cpus: 5}}\n", stage)
        words = shlex.split(self.submit("--settings-file", settings, "--scheduler", "slurm", "--dry-run", "--nodes", "2", "--time=1-12"))
        wanted = {"--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=2", "--mem=5M", "--gpus-per-node=4", "--time=1-12",
                  "--account=physics", "--partition=long", f"--chdir={self.out}/job-0-05_multinode", "--output=job-%j.out"}
        self.assertLessEqual(wanted, set(words))
        self.assertEqual(words[words.index(str(ROOT / "slurm/job.sh")):], [
            str(ROOT / "slurm/job.sh"), str(stage), "010", "1e-3", "yes", "a b", "--snapshot", "snapshot.safetensors",
            "--metrics", "metrics.jsonl", "--resume", "auto", "--device", "cuda"])
        self.assertFalse(self.out.exists())
        self.assertNotIn("010", self.submit("--settings-file", settings, "--scheduler", "slurm", "--dry-run", "--"))  # none, instead of the file's
        for program, tasks in (stage, 2), (self.program, 1):  # which starts its processes itself
            self.settings("local: {condor: {num_cpus: 1, num_gpus: 2}}\n", program)
            self.assertRegex(self.submit("--settings-file", settings, "--scheduler", "slurm", "--dry-run"), rf"\A(?!.*None).* --ntasks-per-node={tasks} --cpus-per-task=1 ")

    def test_several_nodes_on_condor(self):
        stage = self.script(self.folder / "05_multinode", "#!/bin/sh\n")
        settings = self.settings("nodes: 2\naccount: physics\ntime: 1-02:03:04\nlocal: {condor: {num_cpus: 8, num_gpus: 2, memory_cpus: 101}}\n", stage)
        text = self.submit("--settings-file", settings, "--scheduler", "condor", "--dry-run", "--", "--snapshot=it's", 'a"b', "$(x)$$y")
        for line in ("universe = parallel", "machine_count = 4", "request_cpus = 4", "request_gpus = 1", "request_memory = 51", "accounting_group = physics",
                     '+ParallelShutdownPolicy = "WAIT_FOR_ALL"', 'environment = "DDP_JOB_ID=$(ClusterId).$$([NumJobStarts])"',
                     "output = job-$(ClusterId).$(Node).out", "error = job-$(ClusterId).$(Node).err", "allowed_execute_duration = 93784",
                     "arguments = \"'--snapshot=it''s' 'a\"\"b' '$(DOLLAR)(x)$$(DOLLARDOLLAR)y' '--metrics' 'metrics.jsonl' "
                     "'--resume' 'auto'\""):
            self.assertIn(f"\n{line}\n", text)
        self.assertIn("\nrequest_cpus = 1\n", self.submit("--settings-file", self.settings("nodes: 2\nlocal: {condor: {num_cpus: 1, num_gpus: 2}}", stage), "--scheduler=condor", "--dry-run"))
        settings = self.settings("nodes: 2\nlocal: {device: cpu, condor: {num_gpus: 0, bid: 0}}", stage)
        self.assertRegex(self.submit("--settings-file", settings, "--scheduler=condor", "--dry-run"), r"(?s)'--device' 'cpu'.*\nmachine_count = 2\n.*\n\+Bid = 0\n")
        self.submit("--settings-file", self.settings(), "--scheduler", "condor", "--", "\udcff")
        self.assertIn(b" \"'\xff'\"", (self.out / "submission_file.sub").read_bytes())  # a name in Latin-1
        self.assertEqual([condor.seconds(time) for time in ("90", "1:30", "12:00:00", "1-12")], [5400, 90, 43200, 129600])

    def test_what_starts_a_program(self):
        stage, script, module = (self.write(self.folder / name, "", mode) for name, mode in (("04_ddp_launcher", 0o755), ("a.py", 0o755), ("b.py", 0o644)))
        for program, gpus, start in ((stage, 2, rf"\S*torchrun --standalone --nproc-per-node=2 --no-python {stage} "), (stage, 1, f"{stage} "),
                                     (script, 2, f"{script}\n"), (module, 2, rf"\S*python3 {module}\n")):
            self.assertRegex(self.submit("--settings-file", self.settings(f"local: {{condor: {{num_gpus: {gpus}}}}}", program), "--scheduler=local", "--dry-run"), rf"\A{start}")
        self.assertIn("nodes: got 2, expected 1 with 04_ddp", self.submit("--settings-file", self.settings(program=stage), "--nodes=2", "--dry-run", code=2))

    def test_paths(self):
        """Home folders and variables are replaced; what stays of them, and a URL, would become a folder of that name."""
        file = self.folder / "paths.yaml"
        for path in ("a\\", "'a\\'", r'"a\nb"', r'"a\u200e"', '""',
                     "s3://bucket/out", "S3://b", "$(HOME)/out", "$NO_SUCH_VARIABLE/out", "~no-such-user/out"):
            file.write_text(f"script_path: {self.program}\nout_dir: {path}\n")
            self.assertRegex(self.submit("--settings-file", file, "--dry-run", code=2), 'paths.yaml:2: out_dir: got ".*", expected a path')
        for path in ("~/out", "$HOME/out", "${HOME}/out"):
            file.write_text(f"\ufeffscript_path: {self.program}\nout_dir: {path}  # a no-break\u00a0space\nlocal: {{condor: {{memory_gpus: 9}}}}\n")
            text = self.submit("--settings-file", file, "--scheduler=condor", "--dry-run")
            self.assertIn(f"initialdir = {pathlib.Path.home()}/out/job-0-", text)
            self.assertNotIn("gpus", text)

    def test_a_relative_path_in_the_arguments(self):
        (self.folder / "a b.txt").touch()
        for words in (("--", "--data", "a b.txt"), ("--", "--data=a b.txt"), ("--sweep", "data=none,a b.txt"), ("--", "stub")):
            err = self.wait(self.start("--settings-file", self.settings(), "--dry-run", *words), 0)[1]
            self.assertRegex(err, rf"\Asubmit: note: (a b.txt|stub): .* below {self.out}, not here; .*\n\Z")
        self.assertEqual(self.wait(self.start("--settings-file", self.settings(), "--dry-run", "--", "none", f"{self.folder}/a b.txt"), 0)[1], "")
        (self.stub / "beside").touch()
        settings = self.settings().rename(self.stub / "settings.yaml")
        self.assertIn("note: beside:", self.wait(self.start("--settings-file", settings, "--dry-run", "--", "beside"), 0)[1])

    def test_refused(self):
        for text, message in (
                ("nodes:\u00a02", "settings.yaml:3: got the invisible character U+00A0, expected a space"),
                ("nodes: 2\r\ntime: 1\u200e", "settings.yaml:4: got the invisible character U+200E"), ("account: \udcff", "U+DCFF"),
                ("nodez: 2", "settings.yaml:3: unknown key: got nodez, expected nodes"),
                ("local:\n  condor:\n    num_cpu: 2", "settings.yaml:5: unknown key: got local.condor.num_cpu, expected local.condor.num_cpus"),
                ("num_gpus: 2", "settings.yaml:3: unknown key: got num_gpus, expected local.condor.num_gpus"),
                ("zzz: 1", "settings.yaml:3: unknown key: got zzz, expected one of script_path, out_dir,"),
                ("nodes: 1\nnodes: 2", "settings.yaml:4: nodes: got the key twice"),
                ("nodes: two", 'nodes: got "two", expected a number from 1 on'), ("nodes: 010", 'nodes: got "010"'),
                ("nodes:", 'nodes: got ""'), ("account:", 'account: got ""'), ("nodes: [1]", "nodes: got keys or a list"), ("local: 3", "local: got no keys"),
                ("time: 1:3", 'time: got "1:3"'), ("local: {device: gpu}", 'local.device: got "gpu", expected auto, cpu or cuda'),
                ("arguments: 50 10", "arguments: got something else, expected a list of words"), ("arguments: [{a: b}]", "arguments: got"),
                ('account: "a b"', 'account: got "a b"'), ("a: [", "settings.yaml:3: got "), ("\x07: 1", "character U+0007"), ('arguments: ["\\0"]', "arguments: got"),
                ('account: "\\e[31m"', r'account: got "\x1b[31m"'), ("local: {device: cpu, condor: {num_gpus: 1}}", "num_gpus: got 1")):
            with self.subTest(text=text):
                self.assertIn(message, self.submit("--settings-file", self.settings(text), "--scheduler", "slurm", code=2))
        deep = 100_000
        for text in ("[" * deep, f"arguments: {'[' * deep}", f"local: {'{local: ' * deep}", "arguments: &a [*a]", "arguments: &a {a: *a}",
                     "? &a [*a]\n: 1", "arguments: [&a [&b [*a, *b]]]"):
            with self.subTest(text=text[:30]):
                self.assertIn("settings.yaml", self.submit("--settings-file", self.settings(text), code=2))
        for text, message in (("", "an empty file"), ("[1]", "settings: got no keys"), ("out_dir: x", "no script_path")):
            (self.folder / "settings.yaml").write_text(text)
            self.assertIn(message, self.submit("--settings-file", "settings.yaml", code=2))
        self.settings()
        mine = "--settings-file settings.yaml"
        for line, message in (("", "--settings-file"), ("lst", "command: got lst"), ("--settings-file none.yaml", "none.yaml"),
                              (f"{mine} --scheduler pbs", "invalid choice"), (f"{mine} --dryrun", "did you mean --dry-run?"),
                              (f"{mine} --nodes 0", '--nodes: got "0"'), (f"{mine} --nodes=2 --scheduler=local", "nodes: got 2"),
                              (f"{mine} --sweep lr", '--sweep: got "lr"'), (f"{mine} --sweep lr=", '--sweep: got "lr="'), (f"{mine} --scheduler=condor -- 'a\nb'", r'got "a\nb"'),
                              (f"{mine} --scheduler=condor -- '$(Dollar)'", "got"), ("list nowhere", "out_dir"), ("list a b", "out_dir: got a and b"),
                              (f"list a {mine}", "out_dir: got a and /"), ("cancel 0 . --all", "numbers and all"), ("resubmit --failed 0 .", "numbers and all"),
                              ("logs --lines 0", '--lines: got "0"'), ("logs --lines -3", '--lines: got "-3"'), ("cancel .", "no job"), ("cancel 7 .", "JOB: got 7"),
                              (f"list {'1' * 5000}", "out_dir: got"), (f"list . {'1' * 5000}", "out_dir: got"), ("list ٣ .", "out_dir: got ٣")):
            with self.subTest(line=line):
                self.assertIn(message, self.submit(*shlex.split(line), code=2))
        self.assertEqual(json.loads(self.submit("list", "--json", self.folder)), [])
        self.program.chmod(0o644)
        for program in (self.program, self.folder, self.folder / "none.py"):
            self.assertIn("chmod +x", self.submit("--settings-file", self.settings(program=program), "--scheduler=slurm", code=2))
        self.assertEqual(self.submitted(), [])
        self.assertRegex(self.submit("--settings-file", self.settings(), "--dry-run"), "^# Job 0,")  # both schedulers are there
        (self.stub / "condor_submit").unlink()
        self.assertRegex(self.submit("--settings-file", self.settings(), "--dry-run"), "^sbatch ")
        self.assertIn("PATH: got no condor_submit", self.submit("--settings-file", self.settings(program="/bin/sh"), "--scheduler=condor", code=2))
        self.out.parent.write_text("a file")
        self.assertIn("expected a folder that is there or can be made", self.submit("--settings-file", self.settings(program="/bin/sh"), code=2))


class Schedulers(Case):
    def test_a_sweep_from_submission_to_resubmission(self):
        for scheduler in ("slurm", "condor"):
            with self.subTest(scheduler=scheduler):
                self.setUp()
                self.submit("--settings-file", self.settings(), "--scheduler", scheduler, "--sweep", "a=1,2\\,3", "--sweep=--b=x")
                jobs = self.jobs("list")
                self.assertEqual([job["id"] for job in jobs], self.submitted())
                self.assertEqual([job["command"][1:] for job in jobs], [["--a", "1", "--b", "x"], ["--a", "2,3", "--b", "x"]])
                self.assertEqual([pathlib.Path(job["folder"]).name for job in jobs], ["job-0-a-1_b-x", "job-1-a-2-3_b-x"])
                self.assertEqual((self.out / "submission_file.sub").exists(), scheduler == "condor")
                self.fault({"slurm": "scancel refused", "condor": "condor_rm refused"}[scheduler])
                self.submit("cancel", "1", self.out, code=1)
                self.assertEqual(self.jobs()[1]["state"], "pending")
                self.submit("cancel", "1", "--settings-file", "settings.yaml")
                self.assertEqual(self.stub.joinpath(jobs[1]["id"]).read_text().split("|")[1], "CANCELLED")
                self.assertEqual([job["state"] for job in self.jobs()], ["pending", "cancelled"])
                self.assertEqual({self.submit("resubmit", chosen, self.out) for chosen in ("--failed", "0")}, {"nothing to resubmit\n"})  # job 0 is pending
                self.submit("resubmit", "1", self.out)
                again = self.jobs()[1]
                self.assertEqual((again["state"], again["attempt"], again["earlier_ids"]), ("pending", 2, [jobs[1]["id"]]))
                self.assertEqual(len(self.submitted()), 3)
                table = self.submit("list", self.out).splitlines()
                self.assertEqual(table[2].split(), ["1", "pending", again["id"], "2", "a-2-3_b-x"])
                output = self.out / "job-0-a-1_b-x" / f"job-{jobs[0]['id']}.out"
                output.write_text("one\ntwo\x1b\n")
                self.write("new/out/job-0.json", (self.out / "job-0.json").read_text().replace('"earlier_ids": []', '"earlier_ids": ["1"]'))  # as this one's id begins
                self.assertEqual(self.submit("logs", "0", self.out, "--lines", "1"), f"==> {output}\ntwo\\x1b\n")

    def test_killed_at_any_moment(self):
        """No job is lost and no job is submitted twice, whatever call comes next."""
        faults = {"slurm": ("squeue killed-before", "sbatch killed-before", "sbatch killed-after"),
                  "condor": ("condor_q killed-before", "condor_submit killed-before", "condor_submit killed-after")}
        following = itertools.cycle(("the same", "status", "resubmit", "the same"))
        for scheduler in faults:
            for fault in faults[scheduler]:
                with self.subTest(fault=fault):
                    self.setUp()
                    words = ("--settings-file", self.settings(), "--scheduler", scheduler, "--sweep", "x=1,2")
                    self.fault(fault)
                    self.submit(*words, code=-signal.SIGKILL)
                    self.assertEqual([job["state"] for job in self.jobs("list")], ["new"] * 2)
                    again = {"the same": words, "status": ("status", self.out), "resubmit": ("resubmit", "--failed", self.out)}
                    self.submit(*again[next(following)])
                    jobs = self.jobs("list")
                    self.assertEqual([job["state"] for job in jobs], ["pending"] * 2)
                    self.assertEqual((len(jobs), sorted(job["id"] for job in jobs)), (2, self.submitted()))
        for scheduler, output in (("slurm", "job-{}.out"), ("condor", "job-{}.log"), ("condor", "job-{}.1.out")):
            with self.subTest(output=output):  # the job has ended, and the scheduler has forgotten it
                self.setUp()
                self.fault(faults[scheduler][2])
                self.submit("--settings-file", self.settings(), "--scheduler", scheduler, code=-signal.SIGKILL)
                self.wait_for(self.submitted)
                number, = self.submitted()
                (self.out / "job-0-program" / output.format(number)).touch()
                (self.stub / number).unlink()
                self.assertEqual((self.jobs()[0]["id"], self.submitted()), (number, []))
        words = ("--settings-file", self.settings(), "--scheduler", "condor", "--sweep", f"x=1,\u00e9{'.' * 300}")
        self.submit(*words)
        self.submit(*words)  # a second submission on purpose
        (self.out / "job-0.json").unlink()
        self.submit(*words)  # takes no number that is in use
        self.assertEqual((len(self.submitted()), [job["number"] for job in self.jobs()]), (6, [1, 2, 3, 4, 5, 6]))

    def test_refused_unanswered_and_answered_too_late(self):
        words = ("--settings-file", self.settings(), "--scheduler", "slurm")
        with unittest.mock.patch("os.fsync", lambda file: settings.refuse("disk", os.fstat(file).st_size, "more space")):
            self.assertRegex(self.submit(*words, code=2), "disk: got [1-9]")  # a job is on the disk before it is submitted
        self.assertEqual(self.submitted(), [])
        self.fault("sbatch refused")
        self.assertIn(r"refused: sbatch: error: refused \x1b[31m", self.submit(*words, code=1))
        self.write("stub/100", f"{self.jobs('list')[0]['tag']}|PENDING|None")  # it has the job all the same
        self.submit("resubmit", "--failed", self.out)
        self.fault("sbatch lost-answer")
        self.submit(*words)
        self.assertEqual([job["id"] for job in self.jobs()], self.submitted())
        self.fault("squeue no-answer")
        self.assertIn("squeue gave no answer", self.submit(*words, code=75))
        (self.stub / "fault").unlink()
        with unittest.mock.patch("subprocess.run", side_effect=FileNotFoundError("squeue")):
            self.submit("status", self.out, code=75)
        self.assertEqual([job["id"] for job in self.jobs()], self.submitted())
        self.assertEqual(len(self.submitted()), 3)
        run = subprocess.run

        def hangs(command, **options):
            if command[0] == "sbatch":
                raise subprocess.TimeoutExpired(command, options["timeout"])
            return run(command, **options)

        with unittest.mock.patch("subprocess.run", hangs):
            self.assertIn("sbatch timed out", self.submit(*words, code=75))
        self.assertEqual(self.jobs("list")[3]["state"], "new")

    def test_what_slurm_says(self):
        self.submit("--settings-file", self.settings(), "--scheduler", "slurm")
        number, = self.submitted()
        output = self.out / f"job-0-program/job-{number}.out"
        waiting = {"pending": ("CONFIGURING", "REQUEUED"), "held": ("REQUEUE_HOLD", "SPECIAL_EXIT")}
        for state, reason, said, expected in (
                ("PENDING", "Priority", "", ("pending", None, "Priority")), ("PENDING", "JobHeldAdmin", "", ("held", None, "JobHeldAdmin")),
                *((word, "None", "", (state, None, "")) for state in ("pending", "held") for word in waiting[state]),
                ("RUNNING", "None", "program: exit code 85, asking Slurm to start the job again (1 of at most 100 times)\n", ("running", None, "")),
                *((word, "None", "", ("running", None, "")) for word in ("COMPLETING", "RESIZING", "STOPPED", "NEWER")), ("FAILED", "NonZeroExitCode", "program: exit code 3\n", ("failed", 3, ""))):
            self.change(number, state, reason)
            output.write_text(said)
            job, = self.jobs()
            self.assertEqual((job["state"], job["exit_code"], job["reason"]), expected)
        failed = ("TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "LAUNCH_FAILED", "REVOKED", "FAILED")
        for state, said, expected in (*((word, "", ("failed", f"Slurm says {word}")) for word in failed),
                                      ("COMPLETED", "", ("done", "")), ("CANCELLED", "", ("cancelled", "")), ("CANCELLED", "program: exit code 143\n", ("cancelled", "")),
                                      (None, "program: exit code 3\nprogram: exit code 0\n--\nUsed: 3 h, exit code 9\n", ("done", "")),
                                      (None, "", ("lost", ""))):
            self.submit("resubmit", "0", self.out)
            number = self.jobs()[0]["id"]
            self.change(number, state) if state else (self.stub / number).unlink()
            (self.out / f"job-0-program/job-{number}.out").write_text(said)
            self.submit("cancel", "0", self.out)  # too late
            job, = self.jobs()
            self.assertEqual((job["state"], job["reason"], job["exit_code"]), (*expected, 0 if said and state != "CANCELLED" else None))
        self.submit("resubmit", "--failed", self.out)  # it is lost
        self.assertEqual(self.jobs("list")[0]["state"], "pending")

    def test_what_condor_s_log_says(self):
        self.submit("--settings-file", self.settings(), "--scheduler", "condor")
        number, = self.submitted()
        submitted = "000 (100.000.000) 2026-01-31 10:00:00 Job submitted\n...\n"
        running = submitted + "001 (100.000.000) Job executing on host\n...\n"
        for text, expected in (
                ("", ("pending", None, "")), (submitted + "001 (100.000.000) half", ("pending", None, "")), (running, ("running", None, "")),
                (running + "012 (100.000.000) Job was held.\n\tFailed to execute\n\tCode 6\n...\n", ("held", None, "Failed to execute")),
                (running + "012 (100.000.000) Job was held.\n\tx\n...\n013 (100.000.000) Job was released.\n...\n", ("pending", None, "")),
                (running + "004 (100.000.000) Job was evicted.\n...\n", ("pending", None, "")),
                (running + "005 (100.000.000) Job terminated.\n\t(1) Normal termination (return value 7)\n...\n", ("failed", 7, ""))):
            (self.out / f"job-0-program/job-{number}.log").write_text(text)
            job, = self.jobs()
            self.assertEqual((job["state"], job["exit_code"], job["reason"]), expected)
        for text, state in (("005 (1) x\n\t(0) Abnormal termination (signal 9)", "failed"), ("009 (1) Job was aborted", "cancelled"),
                            ("005 (1) x\n\t(1) Normal termination (return value 0)", "done")):
            self.submit("resubmit", "0", self.out)
            (self.out / f"job-0-program/job-{self.jobs()[0]['id']}.log").write_text(text + "\n...\n")
            self.assertEqual(self.jobs()[0]["state"], state)


class Local(Case):
    def start_local(self, text, *arguments):
        self.script(self.program, f"#!/bin/bash\n{text}\n")
        return self.start("--settings-file", self.settings(), "--scheduler", "local", *arguments)

    def test_exit_codes_that_ask_for_another_start(self):
        for codes, starts, expected in (("85 75 85 0", 4, 0), ("75 75 75 75", 4, 75), ("3", 1, 3), ("0", 1, 0)):
            self.setUp()
            self.wait(self.start_local(f"codes=({codes}); n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) | tee n >&2; exit ${{codes[n]}}"), int(expected > 0))
            job, = self.jobs("list")
            self.assertEqual((job["state"], job["exit_code"]), ("failed" if expected else "done", expected))
            self.assertEqual((self.out / "job-0-program/job-local.out").read_text(), "".join(f"{start}\n" for start in range(1, starts + 1)))
        self.setUp()  # each job of a sweep has its own restarts
        self.wait(self.start_local("echo >>n; (($(wc -l <n) > 3)) || exit 75", "--sweep", "x=1,2"), 0)
        self.assertEqual([job["state"] for job in self.jobs("list")], ["done", "done"])
        self.program.write_text("no script")
        self.wait(self.start("resubmit", "0", "1", self.out), 1)
        self.assertEqual([(job["state"], job["reason"]) for job in self.jobs("list")], [("failed", "Exec format error")] * 2)

    # It takes a while to stop, and the next start has to wait for that.
    WAITS = "trap 'sleep 0.5; echo end >>starts; exit 85' TERM; echo start >>starts; [[ ! -e go ]] || exit 0; touch ready; while :; do sleep 0.02; done"

    def test_cancelled(self):
        """`cancel` stops only that job. Ctrl-C loses no job, and resubmit goes on."""
        process = self.start_local(self.WAITS, "--sweep", "x=1,2,3")
        self.wait_for((self.out / "job-0-x-1/ready").exists)
        self.assertEqual([job["state"] for job in self.jobs()], ["running", "new", "new"])
        os.kill(int(self.jobs()[0]["id"]), signal.SIGSTOP)
        self.submit("cancel", "0", self.out)
        self.wait_for((self.out / "job-1-x-2/ready").exists)
        os.killpg(process, signal.SIGINT)
        self.wait(process, 130)
        self.submit("cancel", "2", self.out)
        (self.out / "job-1-x-2/go").touch()
        self.submit("resubmit", "1", self.out)
        self.assertEqual([(job["state"], job["exit_code"]) for job in self.jobs()], [("cancelled", 85), ("done", 0), ("cancelled", None)])
        self.assertEqual((self.out / "job-1-x-2/starts").read_text(), "start\nend\nstart\n")  # it was asked to stop, as by `cancel`

    def test_killed(self):
        """Its program ends too. The same call again, or resubmit, runs the remaining jobs, also if the last one was running."""
        same = ("--settings-file", "settings.yaml", "--scheduler", "local", "--sweep")
        for words, points in (((*same, "x=1,2"), 2), ((*same, "x=1"), 1), (("resubmit", "0", "."), 2)):
            self.setUp()
            process = self.start_local(self.WAITS, *(["--sweep", "x=1,2"] if points == 2 else ["--sweep", "x=1"]))
            self.wait_for((self.out / "job-0-x-1/ready").exists)
            os.kill(process, signal.SIGKILL)
            self.wait(process, -signal.SIGKILL)
            (self.out / "job-0-x-1/go").touch()
            (self.out / "job-1-x-2").mkdir(exist_ok=True)
            (self.out / "job-1-x-2/go").touch()
            self.submit(*[self.out if word == "." else word for word in words])
            self.assertEqual([job["state"] for job in self.jobs()], ["done"] * points)
            self.assertEqual([(self.out / f"job-{point}-x-{point + 1}/starts").read_text() for point in range(points)],
                             ["start\nend\nstart\n", "start\n"][:points])
        self.program.write_text("#!/bin/sh\n")
        self.submit(*same, "x=1,2")  # all are done: a new sweep, on purpose
        self.assertEqual(len(self.jobs()), 4)

    def test_cancel_signals_nobody_else(self):
        """A number is another process on another host, in another container, after a reboot, or later."""
        process = self.start_local(self.WAITS)
        self.wait_for((self.out / "job-0-program/ready").exists)
        innocent = subprocess.Popen(["sleep", "100"])
        self.addCleanup(innocent.wait)
        self.addCleanup(innocent.kill)
        file = self.out / "job-0.json"
        self.assertEqual(self.jobs()[0]["state"], "running")  # it waits until that is written
        job = json.loads(file.read_text())
        words = job["process"].split()
        for number in range(5):  # 4: it has ended
            other = words[:number] + ["elsewhere"] + words[number + 1:]
            file.write_text(json.dumps(job | {"id": str(innocent.pid) if number < 4 else "999999999", "process": " ".join(other)}))
            if number < 3:
                self.assertIn(f"where the job runs, {other[0]}\n", self.submit("cancel", "0", self.out, code=2))
            else:
                self.submit("cancel", "0", self.out)
            self.assertIsNone(innocent.poll())
        os.kill(int(job["id"]), signal.SIGKILL)
        self.wait(process, 1)
        self.assertEqual([(job["exit_code"], job["reason"]) for job in self.jobs()], [(None, "signal 9")])


class Others(Case):
    """Who may write a file of submit's, may run commands as its user."""

    def refused(self, path, *words):
        before = self.submitted()
        self.assertRegex(self.submit(*words, code=2), rf"submit: {re.escape(str(path))}: got [-dl]\S{{9}} of user \d+, expected")
        self.assertEqual(self.submitted(), before)

    def test_files(self):
        submission = ("--settings-file", self.settings(), "--scheduler", "slurm")
        self.addCleanup(os.umask, os.umask(0))
        self.submit(*submission)
        folder, file, lock, running = (self.out / name for name in ("job-0-program", "job-0.json", ".lock", ".running"))
        aside = self.folder / "aside"
        self.assertEqual([path.stat().st_mode & 0o777 for path in (self.out, folder, file, lock)], [0o700, 0o700, 0o600, 0o600])
        number, = self.submitted()
        self.change(number, "COMPLETED")
        log = folder / f"job-{number}.out"
        log.write_text("program: exit code 0\n")
        changing = [("status", self.out), ("cancel", "0", self.out), ("resubmit", "0", self.out), submission]
        every = [("list", self.out), ("logs", self.out), *changing]
        harms = {"g+w": lambda path: path.chmod(0o720), "o+w": lambda path: path.chmod(0o702),
                 "link": lambda path: (path.rename(aside), path.symlink_to(aside)),
                 "owner": lambda path: os.chown(path, 1, -1, follow_symlinks=False)}
        for path, calls, good in ((self.out, every, 0o755), (file, every, 0o644), (folder, every, 0o755), (lock, changing, 0o644),
                                  (log, [("status", self.out), ("logs", self.out)], 0o644)):
            path.chmod(good)
            for (name, harm), words in zip(harms.items(), itertools.cycle(calls)):
                if (name, path) == ("link", self.out) or (name == "owner" and os.geteuid() != 0):
                    continue
                with self.subTest(path=path.name, harm=name, words=words):
                    harm(path)
                    self.refused(path, *words)
                    if path.is_symlink():
                        path.unlink()
                        aside.rename(path)
                    os.chown(path, os.geteuid(), -1)
                    path.chmod(good)
        folder.chmod(0o700)
        log.chmod(0o666)  # nobody gets to it
        self.assertEqual(self.jobs()[0]["state"], "done")
        self.stub.chmod(0o777)
        self.refused(self.stub, "cancel", "0", self.stub)
        self.assertFalse((self.stub / ".lock").exists())
        aside.symlink_to(self.out)
        self.submit("status", aside)  # a link of one's own
        running.symlink_to(self.folder / "elsewhere")
        self.refused(running, "--settings-file", self.settings(), "--scheduler", "local")
        self.settings().chmod(0o666)
        self.refused(self.folder / "settings.yaml", "status", "--settings-file", self.folder / "settings.yaml")
        if os.geteuid() == 0:
            os.chown(aside, 1, -1, follow_symlinks=False)
            self.refused(aside, "status", aside)
            os.chown(self.settings(), 1, -1)
            self.refused(self.folder / "settings.yaml", *submission)

    def test_damaged_job_files(self):
        self.submit("--settings-file", self.settings(), "--scheduler", "slurm")
        file = self.out / "job-0.json"
        job = json.loads(file.read_text())
        for change in ({"id": "0"}, {"id": "-1"}, {"id": "1 2"}, {"id": "\u0663"}, {"id": 7}, {"id": "1\n"}, {"name": "a/b"}, {"name": "a\0"}, {"number": 1},
                       {"scheduler": "pbs"}, {"command": "sh"}, {"command": [1]}, {"earlier_ids": [7]}, {"state": None}, {"new": 1}, {"settings": []},
                       {"settings": {}}, {"command": []}):
            file.write_text(json.dumps(job | change))
            with self.subTest(change=change):
                self.assertIn("job-0.json: got something else, expected a job", self.submit("status", self.out, code=2))
        for text in ("", "{", "null", "[]", "[" * 100_000, '{"a":' * 100_000, json.dumps(job).replace('"tag": "', '"tag": "\\ud800"'), "9" * 5000):
            file.write_text(text)
            with self.subTest(text=text[:20]):
                self.assertIn("job-0.json: got something else", self.submit("list", self.out, code=2))

    def test_locks(self):
        self.submit("--settings-file", self.settings(), "--scheduler", "slurm")
        holder = subprocess.Popen(["flock", "--close", self.out / ".lock", "sleep", "100"], start_new_session=True)
        self.addCleanup(holder.wait)
        self.addCleanup(lambda: holder.poll() is None and os.killpg(holder.pid, signal.SIGKILL))
        self.wait_for(lambda: subprocess.run(["flock", "--nonblock", self.out / ".lock", "true"]).returncode == 1)
        process = self.start("status", self.out)
        self.wait_for(lambda: (self.folder / "stderr").read_text())
        os.killpg(holder.pid, signal.SIGKILL)
        self.assertEqual(self.wait(process, 0)[1], f"submit: waiting for another submit in {self.out}\n")
        for number in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL):
            with unittest.mock.patch.object(jobs.fcntl, "flock", side_effect=OSError(number, os.strerror(number))):
                self.assertIn(f"{self.out}/.lock: got {os.strerror(number)}, expected a file system", self.submit("status", self.out, code=2))


if __name__ == "__main__":
    unittest.main()
