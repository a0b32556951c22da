#!/usr/bin/env python3
"""The batch scripts on a real Slurm cluster of two nodes: submitted, run to the end, broken off and started again.

usage: slurm_test.py BUILD_DIR [TEST...]     as root; see tests/clusters/slurm_fixture.py
"""

import contextlib
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "clusters"))
import stages  # noqa: E402
from namespaces import run  # noqa: E402
from slurm_fixture import SlurmCluster  # noqa: E402
from stages import agrees, last_line  # noqa: E402

BUILD = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve()
BIN = BUILD / "bin"
DIGITS = stages.WORKLOAD
FINAL_STATES = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}
JOB_SECONDS = 300
RANK_GONE_S = 2  # from kill -9 of a rank to the last one's end, in the median
LOST_NODE_S = 30  # from the loss of a node to the last rank's end

cluster = None


class Job:
    """A submitted batch job. `output` is what it wrote so far."""

    def __init__(self, script, *arguments, options=(), folder=None, environment=None, output=None):
        self.folder = folder or cluster.folder
        self.script = script
        command = ["sbatch", "--parsable", *options, script if "/" in str(script) else ROOT / "slurm" / f"{script}.sh", *arguments]
        self.id = run(*command, cwd=self.folder, env=dict(os.environ, **environment or {})).strip()
        self._output = self.folder / (output or f"{pathlib.Path(script).stem}-{self.id}.out")

    @property
    def output(self):
        return self._output.read_text() if self._output.exists() else ""

    def facts(self):
        return dict(re.findall(r"(\S+?)=(\S*)", run("scontrol", "--oneliner", "show", "job", self.id)))

    def state(self):
        return self.facts()["JobState"]

    def exit_code(self):
        return int(self.facts()["ExitCode"].split(":")[0])

    def wait_for(self, condition, seconds=JOB_SECONDS):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or self.state() in FINAL_STATES and not condition():
                raise AssertionError(f"job {self.id} is {self.state()} after {seconds} s at most; it wrote:\n{self.output}")
            time.sleep(0.05)

    def wait_for_output(self, text):
        self.wait_for(lambda: text in self.output)

    def wait(self, seconds=JOB_SECONDS):
        self.wait_for(lambda: self.state() in FINAL_STATES, seconds)
        return self

    def finished(self):
        """Waits for its success. Returns moved and digest."""
        self.wait()
        if self.state() != "COMPLETED":
            raise AssertionError(f"job {self.id} is {self.state()}, exit code {self.exit_code()}; it wrote:\n{self.output}")
        return last_line(self.output)


class Known(Job):
    """One that is submitted already, by its id or, a task of an array, as ARRAY_TASK."""

    def __init__(self, name):
        self.id = name

    @property
    def output(self):
        path = pathlib.Path(self.facts()["StdOut"])
        return path.read_text() if path.exists() else ""


def ranks_of(program):
    """Process ids by global rank."""
    ranks = {}
    for process in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and os.readlink(process / "exe") == str(BIN / program):
                environment = dict(item.split("=", 1) for item in (process / "environ").read_text().split("\0") if "=" in item)
                if environment != {}:  # as of one that ends just now
                    ranks[int(environment["SLURM_PROCID"])] = int(process.name)
    return ranks


def name_of(process):
    with contextlib.suppress(OSError):
        return (process / "comm").read_text().strip()
    return ""


def repeats(default):
    """How often a test of something random tries it."""
    return int(os.environ.get("DDP_TEST_REPEATS", default))


def random_moments():
    """Other ones in every run; DDP_TEST_SEED repeats them."""
    seed = int(os.environ.get("DDP_TEST_SEED", time.time_ns() % 10**6))
    print(f"DDP_TEST_SEED={seed}", file=sys.stderr)
    return random.Random(seed)


def wildcard_listeners(pid):
    """Sockets of the process that listen on all addresses of its host."""
    inodes = set()
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
    found, listening = [], 0
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                listening += 1
                found += [fields[1]] if set(fields[1].split(":")[0]) == {"0"} else []
    return listening, found


def has_pending(pid, number):
    """Whether a stopped process will get the signal when it goes on; false if it is gone."""
    with contextlib.suppress(OSError):
        pending = re.search(r"^ShdPnd:\s*(\w+)$", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1]
        return bool(int(pending, 16) >> number - 1 & 1)
    return False


def start_now(job):
    """Slurm waits two minutes before it starts a requeued job, so that the nodes have cleaned up; this is called when they have."""
    time.sleep(2)
    run("scontrol", "update", f"JobId={job.id}", "StartTime=now", "TimeLimit=10")


@contextlib.contextmanager
def mounted_on(node, source, target):
    """Bind-mounts a file where only the programs of one node see it."""
    for process in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if process.name.isdigit() and words[0].endswith(b"slurmd") and node.encode() in words:
                enter = ("nsenter", f"--mount=/proc/{process.name}/ns/mnt")
    run(*enter, "mount", "--bind", source, target)
    try:
        yield
    finally:
        run(*enter, "umount", target)


class Stages(unittest.TestCase):
    def test_every_script_runs_and_ends_on_the_same_weights(self):
        """World size 2: bit for bit, however the two processes were started and wherever they are. World size 4: to 1e-4."""
        reference, _ = last_line(run(BIN / "01_single_gpu", *DIGITS, cwd=cluster.folder))
        accelerated = cluster.folder / "accelerated.sh"  # no script of its own: srun in one of the user's
        accelerated.write_text(f'#!/bin/bash\nsrun {BIN / "04_ddp_launcher_accelerated"} "$@"\n')
        jobs = {"spawn": Job("03_ddp_spawn", *DIGITS),
                "accelerated": Job(accelerated, *DIGITS, options=["--nodes=1", "--ntasks=2", "--output=accelerated-%j.out"]),
                "one node": Job("04_ddp_launcher", *DIGITS),
                "two nodes": Job("05_multinode", *DIGITS, options=["--ntasks-per-node=1"])}
        outcomes = {name: job.finished() for name, job in jobs.items()}
        for name, (moved, _) in outcomes.items():
            self.assertTrue(agrees(moved, reference), (name, moved, reference))
        self.assertEqual({digest for _, digest in outcomes.values()}, {stages.spawned(BIN, 2)[1]}, outcomes)
        four = Job("05_multinode", *DIGITS)
        moved, _ = four.finished()
        for expected in (reference, stages.spawned(BIN, 4)[0]):
            self.assertTrue(agrees(moved, expected), (moved, expected))
        for rank in range(4):
            for epoch in range(4):
                self.assertIn(f"[CPU{rank}] Epoch {epoch} | Batchsize: 16 | Steps: ", four.output)
        self.assertIn("node[1-2] | nodes 2 | tasks 4 | GPUs per node 0 | rank 0 on node1", four.output)
        self.assertTrue((cluster.folder / "05_multinode.safetensors").exists())
        self.assertEqual(cluster.processes_on_nodes(), [])

    def test_without_arguments_it_is_50_10(self):
        job = Job("05_multinode")
        job.finished()
        self.assertEqual(job.output.count("Epoch 49 "), 4)
        self.assertNotIn("Epoch 50 ", job.output)

    def test_ranks_that_go_uneven(self):
        job = Job("05_multinode", "2", "2", "--global-batch", "48", options=["--ntasks=3"])
        job.finished()
        self.assertEqual(job.output.count("Epoch 1 "), 3)

    def test_output_of_each_task(self):
        job = Job("05_multinode", "2", "2", environment={"DDP_TASK_LOGS": "1"})
        job.wait()
        self.assertEqual(job.state(), "COMPLETED")
        for rank in range(4):
            text = (cluster.folder / f"05_multinode-{job.id}-{rank}.out").read_text()
            self.assertEqual(text.count(f"[CPU{rank}] Epoch"), 2)

    def test_a_checkout_with_a_blank_in_its_name_and_a_submission_from_elsewhere(self):
        checkout = cluster.folder / "my slurm" / "a checkout"
        folder = cluster.folder / "elsewhere"
        folder.mkdir()
        shutil.copytree(ROOT / "slurm", checkout / "slurm")
        (checkout / "build").symlink_to(BUILD)
        job = Job(checkout / "slurm" / "04_ddp_launcher.sh", "2", "2", "--snapshot", "a b.safetensors", folder=folder)
        job.finished()
        self.assertTrue((folder / "a b.safetensors").exists())

    def test_what_is_missing_is_said_in_one_line(self):
        alone = cluster.folder / "alone"
        alone.mkdir()
        shutil.copy(ROOT / "slurm" / "05_multinode.sh", alone)
        job = Job(alone / "05_multinode.sh", folder=alone).wait()
        self.assertEqual(job.exit_code(), 2)
        self.assertRegex(job.output, r"\A05_multinode: error: found no checkout, expected .*DDP_ROOT=.*\n\Z")

        shutil.copytree(ROOT / "slurm", alone / "slurm")
        job = Job(alone / "05_multinode.sh", folder=alone).wait()
        self.assertEqual(job.exit_code(), 2)
        self.assertRegex(job.output, r"\A05_multinode: error: .*/build/bin/05_multinode is not there, expected a build: .*\n\Z")

        job = Job("03_ddp_spawn", options=["--nodes=2"]).wait()
        self.assertEqual(job.exit_code(), 2)
        self.assertIn("error: --nodes=2: expected 1", job.output)

        by_hand = subprocess.run([ROOT / "slurm" / "05_multinode.sh"], capture_output=True, text=True)
        self.assertEqual(by_hand.returncode, 2)
        self.assertRegex(by_hand.stderr, r"\A05_multinode: error: SLURM_JOB_ID is not set, .*\n\Z")


class StoppedJobs(unittest.TestCase):
    # Long enough to be broken off on any machine; saved by itself only at the end.
    LONG = ["--layers", "64,64,10", "--dataset-size", "1024", "--global-batch", "64", "--optimizer", "adam"]

    def assert_nothing_runs(self):
        deadline = time.monotonic() + 10
        while cluster.processes_on_nodes() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertEqual(cluster.processes_on_nodes(), [])

    def pause_until_it_is_signalled(self, job, restarts):
        """The signal comes after 30 to 60 s. A fast machine would be done by then: the ranks pause until they have it."""
        job.wait_for_output("Epoch 0 ")
        ranks = ranks_of("05_multinode").values()
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + 90
        job.wait_for(lambda: restarts() or all(has_pending(pid, signal.SIGUSR1) for pid in ranks) or time.monotonic() > deadline)
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


class Stopping(StoppedJobs):
    def submit(self, *arguments, epochs=100000, **settings):
        self.folder = cluster.folder / self.id().rsplit(".", 1)[1]
        self.folder.mkdir()
        return Job("05_multinode", str(epochs), str(epochs), *self.LONG, *arguments, folder=self.folder, **settings)

    def test_the_time_limit_comes_and_slurm_starts_it_again(self):
        epochs, folder = 40, cluster.folder / "unbroken"
        folder.mkdir()
        one_each = ["--ntasks-per-node=1"]
        unbroken = Job("05_multinode", str(epochs), str(epochs), *self.LONG, folder=folder, options=one_each)
        expected = unbroken.finished()

        job = self.submit(epochs=epochs, options=[*one_each, "--time=2", "--signal=B:USR1@60"])

        def restarts():
            return job.facts()["Restarts"] == "1" and job.state() == "PENDING"

        self.pause_until_it_is_signalled(job, restarts)
        job.wait_for(lambda: restarts() and not cluster.steps_on_nodes())
        start_now(job)
        self.assertEqual(job.finished(), expected)
        self.assertEqual(job.facts()["Restarts"], "1")
        self.assertEqual(job.output.count("05_multinode: stopped on request after epoch "), 1)
        self.assertEqual(job.output.count("asking Slurm to start the job again (1 of at most 3 times)"), 1)
        for epoch in range(epochs):  # none left out, none twice
            self.assertEqual(job.output.count(f"[CPU0] Epoch {epoch} |"), 1, epoch)
        self.assertEqual((self.folder / "05_multinode.safetensors").read_bytes(),
                         (folder / "05_multinode.safetensors").read_bytes())

    def test_not_more_often_than_allowed(self):
        job = self.submit(environment={"DDP_MAX_REQUEUES": "0"})
        job.wait_for_output("Epoch 1 ")
        run("scancel", "--batch", "--signal=USR1", job.id)
        job.wait()
        self.assertEqual((job.state(), job.exit_code()), ("FAILED", 85))
        self.assertIn("started again 0 times already (DDP_MAX_REQUEUES=0), so not once more", job.output)
        self.assertTrue((self.folder / "05_multinode.safetensors").exists())
        self.assert_nothing_runs()

    def test_one_task_is_asked_and_all_stop(self):
        job = self.submit(environment={"DDP_MAX_REQUEUES": "0"})
        job.wait_for_output("Epoch 1 ")
        os.kill(ranks_of("05_multinode")[3], signal.SIGTERM)
        job.wait()
        self.assertEqual((job.state(), job.exit_code()), ("FAILED", 85))
        self.assertEqual(job.output.count("stopped on request"), 1)
        self.assertNotIn("error: [rank", job.output)

    def test_stage_03_in_the_batch_step(self):
        folder = cluster.folder / "stopped03"
        folder.mkdir()
        job = Job("03_ddp_spawn", "100000", "100000", *self.LONG, folder=folder, environment={"DDP_MAX_REQUEUES": "0"})
        job.wait_for_output("Epoch 1 ")
        run("scancel", "--batch", "--signal=USR1", job.id)
        job.wait()
        self.assertEqual((job.state(), job.exit_code()), ("FAILED", 85))
        self.assertTrue((folder / "03_ddp_spawn.safetensors").exists())
        self.assert_nothing_runs()

    def test_a_cancelled_job_is_not_started_again(self):
        job = self.submit()
        job.wait_for_output("Epoch 1 ")
        run("scancel", job.id)
        job.wait()
        self.assertEqual(job.state(), "CANCELLED")
        self.assert_nothing_runs()
        self.assertTrue((self.folder / "05_multinode.safetensors").exists())  # stopped in time
        time.sleep(2)
        self.assertEqual(job.facts()["Restarts"], "0")
        self.assertEqual(job.state(), "CANCELLED")


    def test_requeues_of_others_do_not_count(self):
        job = self.submit(environment={"DDP_MAX_REQUEUES": "1"}, options=["--comment=from Ann"])
        for restarts, own in ((1, False), (2, False), (3, True)):
            job.wait_for_output(f"[CPU0] Epoch {1 + self.epochs(job)} |")
            if own:
                run("scancel", "--batch", "--signal=USR1", job.id)
            else:
                run("scontrol", "requeue", job.id)
            job.wait_for(lambda: job.facts()["Restarts"] == str(restarts) and job.state() == "PENDING" and not cluster.steps_on_nodes())
            self.assertEqual(re.findall("Comment=(.*) ", run("scontrol", "show", "job", job.id)),
                             ["from Ann ddp_requeues=1" if own else "from Ann"])
            start_now(job)
        job.wait_for_output(f"[CPU0] Epoch {1 + self.epochs(job)} |")
        run("scancel", "--batch", "--signal=USR1", job.id)
        job.wait()
        self.assertEqual((job.state(), job.exit_code()), ("FAILED", 85), job.output)
        self.assertEqual(job.output.count("asking Slurm to start the job again (1 of at most 1 times)"), 1)
        self.assertIn("started again 1 times already (DDP_MAX_REQUEUES=1), so not once more", job.output)

    def epochs(self, job):
        """The last epoch that it wrote down."""
        return max(map(int, re.findall(r"\[CPU0\] Epoch (\d+) ", job.output)), default=-1)


class Arrays(StoppedJobs):
    """Here as nowhere else a job's number may be that of others."""

    def submit(self, *arguments, **settings):
        self.folder = cluster.folder / self.id().rsplit(".", 1)[1]
        self.folder.mkdir()
        array = Job("04_ddp_launcher", *arguments, options=["--array=1-3%3"], folder=self.folder, **settings)
        return [Known(f"{array.id}_{task}") for task in (1, 2, 3)]

    def test_each_task_has_its_own_files(self):
        tasks = self.submit("2", "2", environment={"DDP_TASK_LOGS": "1"})
        for task in tasks:
            task.wait()
            self.assertEqual(task.state(), "COMPLETED", task.output)
        jobs = [task.facts()["JobId"] for task in tasks]
        self.assertIn(tasks[0].id.split("_")[0], jobs)  # one has the number of all
        names = {f"04_ddp_launcher-{number}.safetensors" for number in (1, 2, 3)}
        names |= {f"04_ddp_launcher-{job}{task}.out" for job in jobs for task in ("", "-0", "-1")}
        self.assertEqual({path.name for path in self.folder.iterdir()}, names)

    def test_one_task_is_started_again_and_goes_on_from_its_own_snapshot(self):
        tasks = self.submit("100000", "100000", *self.LONG)
        for task in tasks:
            task.wait_for_output("[CPU0] Epoch 1 |")
        leader, = (task for task in tasks if task.facts()["JobId"] == task.id.split("_")[0])
        others = [task for task in tasks if task is not leader]
        run("scancel", "--batch", "--signal=USR1", leader.id)
        leader.wait_for(lambda: leader.facts()["Restarts"] == "1" and leader.state() == "PENDING")
        self.assertEqual([(task.facts()["Restarts"], task.state()) for task in others], [("0", "RUNNING")] * 2)
        self.assertEqual([path.name for path in self.folder.glob("*.safetensors")],
                         [f"04_ddp_launcher-{leader.id.split('_')[1]}.safetensors"])
        done = max(map(int, re.findall(r"\[CPU0\] Epoch (\d+) ", leader.output)))
        start_now(leader)
        leader.wait_for_output(f"[CPU0] Epoch {done + 1} |")
        self.assertEqual(leader.output.count("[CPU0] Epoch 0 |"), 1)
        run("scancel", leader.id.split("_")[0])
        for task in tasks:
            task.wait()


class Submitted(Job):
    """A job of `submit`. What it is called there is in `record`."""

    def __init__(self, record):
        self.id, self.record = record["id"], record
        self.folder = pathlib.Path(record["folder"])
        self._output = self.folder / f"job-{self.id}.out"


class Submit(StoppedJobs):
    """The tool, where a real Slurm answers."""

    def setUp(self):
        self.folder = cluster.folder / f"submit-{self.id().rsplit('.', 1)[1]}"
        self.folder.mkdir()

    def settings(self, program, more=""):
        path = self.folder / "settings.yaml"
        path.write_text(f"script_path: {program}\nout_dir: out\n{more}")
        return path

    def tool(self, *arguments, code=0):
        result = subprocess.run([BIN / "submit", *map(str, arguments)], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(result.returncode, code, (arguments, result.stdout, result.stderr))
        return result.stdout

    def submit(self, settings, *arguments):
        self.tool("--settings-file", settings, "--scheduler", "slurm", *arguments)
        return [Submitted(record) for record in self.records("list")]

    def records(self, action="status"):
        return json.loads(self.tool(action, "--json", "--out-dir", self.folder / "out"))["jobs"]

    def wait_for_state(self, state, number=0):
        deadline = time.monotonic() + JOB_SECONDS
        while True:
            record = self.records()[number]
            if record["state"] == state:
                return Submitted(record)
            over = record["state"] in ("done", "failed", "cancelled", "lost", "refused", "held")
            if over or time.monotonic() > deadline:
                self.fail(f"job {number} is {record}, expected {state}; it wrote:\n{Submitted(record).output}")
            time.sleep(0.2)

    def test_two_nodes(self):
        job, = self.submit(self.settings(BIN / "05_multinode"), "--nodes", "2", "--", *DIGITS)
        self.assertIn(self.records()[0]["state"], ("pending", "running", "done"))
        job = self.wait_for_state("done")
        self.assertEqual(job.record["exit_code"], 0)
        self.assertEqual(self.records("list")[0], job.record)
        self.assertEqual(last_line(job.output)[1], stages.spawned(BIN, 2)[1])
        self.assertEqual(job.facts()["NodeList"], "node[1-2]")
        files = {path.name for path in job.folder.iterdir()}
        self.assertLessEqual({"snapshot.safetensors", "metrics.jsonl", f"job-{job.id}.out"}, files)
        self.assertIn(str(job.folder / f"job-{job.id}.out"), self.tool("logs", "--out-dir", "out"))
        self.assertIn("moved ", self.tool("logs", "0", "--out-dir", "out", "--lines", "1"))

    def test_a_sweep(self):
        jobs = self.submit(self.settings(BIN / "04_ddp_launcher"), "--sweep", "lr=0.1,0.01", "--sweep", "seed=1,2", "--", *DIGITS)
        self.assertEqual(len(jobs), 4)
        ends = {}
        for number, job in enumerate(jobs):
            done = self.wait_for_state("done", number)
            ends[pathlib.Path(done.record["folder"]).name] = last_line(done.output)[1]
        self.assertEqual(len(set(ends.values())), 4, ends)
        self.assertEqual(list(ends), ["0-lr-0.1_seed-1", "1-lr-0.1_seed-2", "2-lr-0.01_seed-1", "3-lr-0.01_seed-2"])
        with open(self.folder / "alone.out", "w+") as alone:
            subprocess.run([BIN / "04_ddp_launcher", *DIGITS, "--lr", "0.01", "--seed", "2"], cwd=self.folder, stdout=alone, check=True)
            alone.seek(0)
            self.assertEqual(last_line(alone.read())[1], ends["3-lr-0.01_seed-2"])

    def test_points_that_run_again_are_not_the_whole_array(self):
        """Two at a time. Each asks once to be started again, the last one, whose id is the array's, too."""
        program = self.folder / "again"
        program.write_text('#!/bin/bash\necho "$*" >>starts; (($(wc -l <starts) == 2)) || exit 85\n')
        program.chmod(0o755)
        jobs = self.submit(self.settings(program), "--sweep-limit", "2", "--sweep", "x=1,b c\\,$HOME,3")
        self.assertEqual(len({job.id.split("_")[0] for job in jobs}), 1)
        for job in jobs:
            job.wait_for(lambda job=job: job.facts()["Restarts"] == "1" and job.state() == "PENDING")
            start_now(job)
        for number, value in enumerate(("1", "b c,$HOME", "3")):
            done = self.wait_for_state("done", number)
            self.assertEqual((done.folder / "starts").read_text(), f"--x {value}\n" * 2)
            self.assertEqual((done.folder / "requeues").read_text(), f"{done.id} 1\n")
            self.assertEqual(done.folder.joinpath(f"job-{done.id}.out").stat().st_mode & 0o777, 0o600)
        self.assertEqual(self.tool("resubmit", "--failed", "--out-dir", "out"), "nothing to resubmit\n")

    def test_a_part_of_an_array_is_cancelled(self):
        program = self.folder / "sleeper"
        program.write_text("#!/bin/bash\nexec sleep 1000\n")
        program.chmod(0o755)
        self.submit(self.settings(program), "--sweep-limit", "2", "--sweep", "x=1,2,3,4")
        self.wait_for_state("running", 1)
        self.tool("cancel", "0", "3", "--out-dir", "out")
        self.wait_for_state("running", 2)
        self.assertEqual([record["state"] for record in self.records()], ["cancelled", "running", "running", "cancelled"])
        self.tool("cancel", "--all", "--out-dir", "out")
        self.assertEqual({record["state"] for record in self.records()}, {"cancelled"})
        self.assert_nothing_runs()

    def test_cancelled_is_cancelled(self):
        self.submit(self.settings(BIN / "05_multinode"), "--nodes", "2", "--", "100000", "100000", *self.LONG)
        job = self.wait_for_state("running")
        job.wait_for_output("Epoch 1 ")
        self.tool("cancel", "0", "--out-dir", "out")
        self.assertEqual(self.records()[0]["state"], "cancelled")
        job.wait()
        self.assert_nothing_runs()
        time.sleep(2)
        self.assertEqual((job.state(), job.facts()["Restarts"]), ("CANCELLED", "0"), job.output)

    def test_failed_ones_again(self):
        program = self.folder / "third"
        program.write_text("#!/bin/bash\necho start >>starts; n=$(wc -l <starts); echo $n\n((n < 3)) && exit $((40 + n)); exit 0\n")
        program.chmod(0o755)
        self.submit(self.settings(program), "--", "x")
        for attempt in (1, 2):
            job = self.wait_for_state("failed")
            self.assertEqual((job.record["exit_code"], job.record["attempt"]), (40 + attempt, attempt))
            self.tool("resubmit", "--failed", "--out-dir", "out")
        done = self.wait_for_state("done")
        self.assertEqual((done.record["attempt"], done.output), (3, "3\n"))
        self.assertEqual(self.tool("resubmit", "--failed", "--out-dir", "out"), "nothing to resubmit\n")

    def test_a_port_that_was_taken(self):
        """Exit code 75: again, at once, in a step whose port is another."""
        program = self.folder / "busy"
        program.write_text("#!/bin/bash\necho $SLURM_STEP_ID >>steps; (($(wc -l <steps) == 3)) || exit 75\n")
        program.chmod(0o755)
        self.submit(self.settings(program))
        job = self.wait_for_state("done")
        self.assertEqual((job.folder / "steps").read_text(), "0\n1\n2\n")

    def test_the_time_limit_comes_and_slurm_starts_it_again(self):
        epochs = 40
        expected = last_line(run(BIN / "03_ddp_spawn", epochs, epochs, *self.LONG, "--nprocs", "2", cwd=self.folder))
        # Slurm signals two minutes before the limit: now.
        self.submit(self.settings(BIN / "05_multinode", "time: 00:02:00\n"), "--nodes", "2", "--", epochs, epochs, *self.LONG)
        job = self.wait_for_state("running")

        def restarts():
            return job.facts()["Restarts"] == "1" and job.state() == "PENDING"

        self.pause_until_it_is_signalled(job, restarts)
        job.wait_for(lambda: restarts() and not cluster.steps_on_nodes())
        self.assertEqual(self.records()[0]["state"], "pending")
        start_now(job)
        done = self.wait_for_state("done")
        self.assertEqual((done.id, done.record["attempt"], done.facts()["Restarts"]), (job.id, 1, "1"))
        self.assertEqual(last_line(done.output), expected)
        self.assertEqual(done.output.count("05_multinode: stopped on request after epoch "), 1)
        for epoch in range(epochs):  # none left out, none twice
            self.assertEqual(done.output.count(f"[CPU0] Epoch {epoch} |"), 1, epoch)


class Failures(StoppedJobs):
    EPOCHS = 100

    def ends_quickly(self, job, started, *codes):
        job.wait(60)
        seconds = time.monotonic() - started
        self.assertEqual(job.state(), "FAILED", job.output)
        self.assertIn(job.exit_code(), codes, job.output)
        self.assertLess(seconds, 20)

    def in_training(self, folder, chance, *arguments):
        """A job of 4 ranks on 2 nodes at a random moment, with its ranks."""
        job = Job("05_multinode", str(self.EPOCHS), "5", *Stopping.LONG, *arguments, folder=folder)
        job.wait_for_output(f"[CPU0] Epoch {chance.randrange(self.EPOCHS // 2)} |")
        time.sleep(chance.uniform(0, 0.02))
        return job, ranks_of("05_multinode")

    def test_a_killed_rank(self):
        """Named, the others end with it, and a restart ends on the bits of a run that nothing disturbed."""
        chance = random_moments()
        folders = [cluster.folder / f"killed{number}" for number in range(1 + repeats(5))]
        for folder in folders:
            folder.mkdir()
        expected = Job("05_multinode", str(self.EPOCHS), "5", *Stopping.LONG, folder=folders[0]).finished()
        seconds = []
        for folder in folders[1:]:
            job, ranks = self.in_training(folder, chance)
            rank = chance.randrange(4)
            started = time.monotonic()
            os.kill(ranks[rank], signal.SIGKILL)
            job.wait_for(lambda: not ranks_of("05_multinode"))
            gone_s = time.monotonic() - started
            seconds.append(gone_s)
            self.ends_quickly(job, started, 137)
            print(f"srun: rank {rank} of {sorted(ranks)} is killed, the last one is gone after {gone_s:.2f} s", file=sys.stderr)
            self.assertRegex(job.output, rf"srun: error: node{1 + rank // 2}: task {rank}: Killed")
            self.assert_nothing_runs()
            again = Job("05_multinode", str(self.EPOCHS), "5", *Stopping.LONG, "--resume", "auto", folder=folder)
            self.assertEqual(again.finished(), expected)
        self.assertLess(statistics.median(seconds), RANK_GONE_S)

    def test_a_killed_srun(self):
        chance = random_moments()
        for number in range(repeats(5)):
            folder = cluster.folder / f"srun{number}"
            folder.mkdir()
            job, ranks = self.in_training(folder, chance)
            step = [process for process in pathlib.Path("/proc").iterdir() if process.name.isdigit() and name_of(process) == "srun"]
            started = time.monotonic()
            for process in step:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process.name), signal.SIGKILL)
            job.wait_for(lambda: not ranks_of("05_multinode"))
            print(f"srun: srun is killed, the last rank is gone after {time.monotonic() - started:.2f} s", file=sys.stderr)
            self.ends_quickly(job, started, 137)
            self.assert_nothing_runs()

    def test_a_lost_node(self):
        """The ranks of the other node end; once Slurm knows that the node is down it starts the job again, which goes on from the snapshot,
        to the same bits."""
        chance = random_moments()
        folders = [cluster.folder / f"lost{number}" for number in range(1 + repeats(1))]  # nothing but the moment is random
        for folder in folders:
            folder.mkdir()
        expected = Job("05_multinode", str(self.EPOCHS), "5", *Stopping.LONG, folder=folders[0]).finished()
        lost = cluster.hosts[1]  # the batch script runs on the first
        for folder in folders[1:]:
            job, _ = self.in_training(folder, chance)
            started = time.monotonic()
            cluster.kill_node(lost)
            try:
                job.wait_for(lambda: not ranks_of("05_multinode"))
                gone_s = time.monotonic() - started
                print(f"srun: {lost.name} is lost, the last rank is gone after {gone_s:.2f} s", file=sys.stderr)
                self.assertLess(gone_s, LOST_NODE_S)
                goes_on = (folder / "05_multinode.safetensors").exists()
                # The controller finds that out itself, after SlurmdTimeout, 300 s as a rule.
                run("scontrol", "update", f"NodeName={lost.name}", "State=DOWN", "Reason=lost")
                job.wait_for(lambda: job.facts()["Restarts"] == "1" and job.state() == "PENDING" and not cluster.steps_on_nodes())
            finally:
                cluster.start_node(lost)
                cluster.wait_until_idle()
            start_now(job)
            self.assertEqual(job.finished(), expected)
            self.assertEqual(job.output.count("[CPU0] Epoch 0 |"), 1 if goes_on else 2, job.output)

    def test_a_rank_that_refuses_while_the_others_wait(self):
        # A network that only node1 has: the ranks on node2 stop before they meet anyone.
        cluster.hosts[0].add_interface("ib0", "10.78.0.1/24")
        try:
            started = time.monotonic()
            job = Job("05_multinode", "2", "2", "--interface", "ib0")
            self.ends_quickly(job, started, 2, 143)  # srun ends a rank that may still load its libraries
            self.assertIn('--interface: "ib0" is no network interface of this host, expected one of: lo (127.0.0.1), '
                          "eth0 (10.77.0.12)", job.output)
        finally:
            cluster.hosts[0].remove_interface("ib0")

    def test_a_snapshot_that_is_refused(self):
        folder = cluster.folder / "damaged"
        folder.mkdir()
        (folder / "05_multinode.safetensors").write_text("no snapshot")
        started = time.monotonic()
        self.ends_quickly(Job("05_multinode", "2", "2", "--resume", "auto", folder=folder), started, 3)


class FakeStage(unittest.TestCase):
    """The script with a program that has nothing of a stage but the name."""

    def submit(self, program, **settings):
        checkout = cluster.folder / self.id().rsplit(".", 1)[1]
        (checkout / "build" / "bin").mkdir(parents=True)
        shutil.copytree(ROOT / "slurm", checkout / "slurm")
        stage = checkout / "build" / "bin" / "05_multinode"
        # As the stages do: a rank that srun ends, because another has failed, leaves with 1.
        stage.write_text(f"#!/bin/bash\ntrap 'exit 1' TERM\ncd {checkout}\n{program}\n")
        stage.chmod(0o755)
        self.folder = checkout
        return Job(checkout / "slurm" / "05_multinode.sh", folder=checkout, **settings).wait()


class ExitCodes(FakeStage):
    """What the script does about the program's exit code."""

    def test_75_is_tried_again_twice(self):
        job = self.submit("echo attempt >> $SLURM_PROCID; [[ $(wc -l < $SLURM_PROCID) == 3 ]] || exit 75")
        self.assertEqual(job.state(), "COMPLETED", job.output)
        self.assertEqual(re.findall(r"exit code 75, trying again \((.*?)\)", job.output), ["1 of 2", "2 of 2"])

    def test_75_again_and_again_is_a_failure(self):
        job = self.submit("exit 75")
        self.assertEqual((job.state(), job.exit_code()), ("FAILED", 75))
        self.assertEqual(job.output.count("trying again"), 2)

    def test_a_signal_before_the_program_began_is_as_good_as_85(self):
        job = self.submit("kill -USR1 $$", environment={"DDP_MAX_REQUEUES": "0"})
        self.assertEqual(job.state(), "FAILED")
        self.assertIn("started again 0 times already (DDP_MAX_REQUEUES=0), so not once more", job.output)

    def test_as_often_as_a_number_with_a_leading_zero_says(self):
        job = self.submit("exit 85", environment={"DDP_MAX_REQUEUES": "08"}, options=["--comment=ddp_requeues=8"])
        self.assertEqual((job.state(), job.exit_code()), ("FAILED", 85), job.output)
        self.assertIn("started again 8 times already (DDP_MAX_REQUEUES=8), so not once more", job.output)

    def test_any_other_is_the_job_s(self):
        job = self.submit("if [[ $SLURM_PROCID != 0 ]]; then sleep 60 & wait; fi; exit 42")
        self.assertEqual((job.state(), job.exit_code()), ("FAILED", 42))
        self.assertNotIn("again", job.output)


class Environment(FakeStage):
    def test_the_tasks_get_it_whole_and_the_key_of_the_store(self):
        """Also where sbatch is told --export=NONE, which srun would repeat."""
        for options in ([], ["--export=NONE"], ["--export=DDP_TASK_LOGS=1"]):
            with self.subTest(options=options):
                shutil.rmtree(cluster.folder / self.id().rsplit(".", 1)[1], ignore_errors=True)
                job = self.submit('echo "$DDP_STORE_KEY $HOME $(type -p srun)" >key$SLURM_PROCID', options=options)
                self.assertEqual(job.state(), "COMPLETED", job.output)
                lines = [(self.folder / f"key{rank}").read_text() for rank in range(4)]
                self.assertEqual(len(set(lines)), 1, lines)
                self.assertRegex(lines[0], r"\A[0-9a-f]{32} /root /.*/srun\n\Z")
                key = lines[0].split()[0]
                self.assertNotIn(key, job.output + run("scontrol", "--details", "show", "job", job.id))
                self.assertEqual((self.folder / f"05_multinode-{job.id}-3.out").exists(), "DDP_TASK_LOGS" in str(options))

    def test_a_job_submitted_from_within_another(self):
        """Neither the other's array and GPUs, nor the step it was submitted in."""
        folder = cluster.folder / "within"
        for kind in ("batch", "step"):
            (folder / kind).mkdir(parents=True)
        script = folder / "outer.sh"
        inner = f"sbatch --parsable {shlex.quote(str(ROOT / 'slurm' / '04_ddp_launcher.sh'))} 2 2"
        script.write_text(f"#!/bin/bash\ncd {folder}/batch; {inner} >id\nsrun --ntasks=1 --chdir={folder}/step {inner} >../step/id\n")
        outer = Job(script, options=["--array=5", "--output=outer.out", "--partition=gpu", "--gpus-per-node=8"], folder=folder)
        Known(f"{outer.id}_5").wait()
        for kind in ("batch", "step"):
            job = Known((folder / kind / "id").read_text().strip())
            job.finished()
            self.assertIn("node1 | nodes 1 | tasks 2 | GPUs per node 0 | ", job.output)
            self.assertEqual([path.name for path in (folder / kind).glob("*.safetensors")], ["04_ddp_launcher.safetensors"])


class Bound(FakeStage):
    """Where Slurm binds the tasks, and cgroups show a job nothing but its own."""

    def test_the_stages_keep_to_their_processors(self):
        cases = [("04_ddp_launcher", tasks, tasks) for tasks in (2, 1) if tasks <= cluster.cpus]
        if cluster.has_cgroups:  # nothing else binds the batch step
            cases.append(("03_ddp_spawn", 2, 1))
        for name, ranks, tasks in cases:
            with self.subTest(name=name, ranks=ranks, tasks=tasks):
                processes = ["--nprocs", str(ranks)] if name == "03_ddp_spawn" else []
                job = Job(name, "1", "1", "--verbose", *processes, options=["-p", "bound", f"--ntasks-per-node={tasks}"])
                job.finished()
                found = re.findall(r": \[rank (\d)\] (\d+) threads? on cores (\S+)\n", job.output)
                self.assertEqual({(rank, threads) for rank, threads, _ in found}, {(str(rank), "1") for rank in range(ranks)}, job.output)
                cores = {cores for _, _, cores in found}
                self.assertEqual(len(cores), tasks, job.output)
                self.assertTrue(all(core.isdigit() for core in cores), job.output)

    def test_every_task_sees_all_gpus_of_its_job(self):
        program = "".join(f"head -c 1 {path} >/dev/null 2>&1; echo $SLURM_PROCID {path.name} $? >>opened\n" for path in cluster.bound_gpus)
        program += "echo $SLURM_PROCID visible $CUDA_VISIBLE_DEVICES >>opened\n"
        hidden = "1" if cluster.has_cgroups else "0"
        for options, code, visible in (([], hidden, []), (["--gpus-per-node=2"], "0", ["0,1"]), (["--gpus-per-task=1"], "0", ["0,1"])):
            shutil.rmtree(cluster.folder / self.id().rsplit(".", 1)[1], ignore_errors=True)
            # Bound to one GPU each, as a site may have it by default.
            job = self.submit(program, options=["-p", "bound", "--nodes=1", *options], environment={"SLURM_GPU_BIND": "single:1"})
            self.assertEqual(job.state(), "COMPLETED", job.output)
            self.assertEqual(set((self.folder / "opened").read_text().splitlines()),
                             {f"{rank} {what}" for rank in (0, 1) for what in (
                                 f"gpu0 {code}", f"gpu1 {code}", " ".join(["visible", *visible]))})


class Network(unittest.TestCase):
    TWO = ["srun", "--nodes=2", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]

    def digest(self, *command, **variables):
        text = run(*command, cwd=cluster.folder, timeout=JOB_SECONDS, env=dict(os.environ, **variables))
        return last_line(text)[1]

    @classmethod
    def setUpClass(cls):
        cls.stage = [BIN / "05_multinode", *DIGITS]
        cls.expected = cls.digest(cls, *cls.TWO, *cls.stage)

    def test_ipv6(self):
        six = {"MASTER_ADDR": cluster.hosts[0].ipv6, "MASTER_PORT": "29603"}
        self.assertEqual(self.digest(*self.TWO, *self.stage, **six), self.expected)
        six["MASTER_ADDR"] = f"[{six['MASTER_ADDR']}]"
        self.assertEqual(self.digest(*self.TWO, *self.stage, **six), self.expected)
        self.assertEqual(self.digest(*self.TWO, *self.stage, MASTER_ADDR="node1-v6"), self.expected)

    def test_torchrun_on_each_node(self):
        torchrun = shutil.which("torchrun") or ROOT / ".venv" / "bin" / "torchrun"
        for number, address in enumerate(("node1:29611", "[fd77::11]:29612")):
            agents = [*self.TWO, torchrun, "--nnodes=2", "--nproc_per_node=1", "--rdzv-backend=c10d", f"--rdzv-id={number}",
                      f"--rdzv-endpoint={address}", "--no-python"]
            self.assertEqual(self.digest(*agents, *self.stage), self.expected)

    def test_hydra(self):
        """Its proxies are tasks of a step, one on each node, whose variables the ranks see. Two ranks on each: not the step's."""
        def hydra(per_node):
            return ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", "mpiexec.hydra", "-iface", "br-eth0", "-ppn", str(per_node),
                    "-n", str(2 * per_node), "-genv", "MASTER_ADDR", "node1", "-genv", "MASTER_PORT", "29605"]

        found = [json.loads(line) for line in run(*hydra(2), BIN / "ddp-env", "--json", cwd=cluster.folder).splitlines()]
        self.assertEqual(sorted((rank["launcher"], rank["rank"], rank["local_rank"], rank["node_rank"]) for rank in found),
                         [("hydra", 0, 0, 0), ("hydra", 1, 1, 0), ("hydra", 2, 0, 1), ("hydra", 3, 1, 1)])
        self.assertIn("SLURM_STEP_ID", {fact["source"] for fact in found[0]["evidence"]})
        self.assertEqual(self.digest(*hydra(1), *self.stage), self.expected)

    def test_a_named_interface(self):
        for host in cluster.hosts:
            host.add_interface("fast0", host.ipv4.replace("10.77", "10.79") + "/24")
        try:
            self.assertEqual(self.digest(*self.TWO, *self.stage, "--interface", "fast0"), self.expected)
            self.assertEqual(self.digest(*self.TWO, *self.stage, DDP_INTERFACE="fast0"), self.expected)
            job = Job("05_multinode", "100000", "100000", "--interface", "fast0", options=["--ntasks-per-node=1"])
            job.wait_for_output("Epoch 1 ")
            connections = run("ip", "netns", "exec", "node2", "cat", "/proc/net/tcp")
            run("scancel", job.id)
            job.wait()
            self.assertIn("0C004F0A:", connections)  # 10.79.0.12, in the kernel's byte order
        finally:
            for host in cluster.hosts:
                host.remove_interface("fast0")

    def test_a_host_that_knows_itself_by_a_loopback_address(self):
        """As Debian's installer writes /etc/hosts. The other host knows better, and rank 0 must serve where that one looks."""
        hosts = cluster.state / "hosts"
        lines = [line for line in pathlib.Path("/etc/hosts").read_text().splitlines() if " node1" not in line]
        hosts.write_text("\n".join([*lines, "127.0.1.1 node1"]) + "\n")
        with mounted_on("node1", hosts, "/etc/hosts"):
            self.assertIn("127.0.1.1", run("srun", "--nodelist=node1", "getent", "hosts", "node1"))
            self.assertEqual(self.digest(*self.TWO, *self.stage), self.expected)

    def test_a_host_that_cannot_be_resolved(self):
        # Each rank ends by itself: killed by srun because the other was first, its exit code would be srun's.
        result = subprocess.run([*self.TWO, "--kill-on-bad-exit=0", *self.stage, "--timeout", "3"], capture_output=True, text=True,
                                cwd=cluster.folder, env=dict(os.environ, MASTER_ADDR="no.such.host.invalid", MASTER_PORT="29603"))
        self.assertEqual(result.returncode, 75)
        self.assertIn("MASTER_ADDR=no.such.host.invalid cannot be resolved", result.stderr)

    def test_nothing_listens_on_all_networks(self):
        # auto is hierarchical here: between the nodes only one rank of each talks.
        for backend, talking in (("gloo", {0, 1, 2, 3}), ("auto", {0, 2})):
            with self.subTest(backend=backend):
                job = Job("05_multinode", "100000", "100000", "--backend", backend)
                job.wait_for_output("Epoch 1 ")
                ranks = ranks_of("05_multinode")
                listeners = {rank: wildcard_listeners(pid) for rank, pid in ranks.items()}
                run("scancel", job.id)
                job.wait()
                self.assertEqual(set(listeners), {0, 1, 2, 3})
                self.assertLessEqual(talking, {rank for rank, (listening, _) in listeners.items() if listening > 0})
                for rank, (_, wildcards) in listeners.items():
                    self.assertEqual(wildcards, [], rank)


class DryRun(unittest.TestCase):
    """What would be started on clusters that are not here. DDP_DRY_RUN prints the command."""

    def command(self, text):
        return shlex.split(text.strip().splitlines()[-1])

    def test_gpus(self):
        for name, nodes, options, tasks in (
                ("05_multinode", 4, ["--gpus-per-node=8"], 32), ("05_multinode", 2, ["--gres=gpu:4"], 8),
                ("04_ddp_launcher", 1, ["--gpus-per-node=3"], 3), ("05_multinode", 3, ["--gpus=6", "--gpus-per-node=2"], 6),
                ("05_multinode", 4, ["--gpus-per-node=8", "--cpus-per-gpu=1"], 32)):
            job = Job(name, "7", "3", "--snapshot", "it's a file", options=["-p", "gpu", f"--nodes={nodes}", *options],
                      environment={"DDP_DRY_RUN": "1"})
            job.wait()
            self.assertEqual(job.state(), "COMPLETED", job.output)
            words = self.command(job.output)
            self.assertEqual(words[:3], ["srun", f"--nodes={nodes}", f"--ntasks={tasks}"])
            self.assertEqual(words[-5:], [str(BIN / name), "7", "3", "--snapshot", "it's a file"])
            self.assertIn(f"--ntasks-per-node={tasks // nodes}", words)
            self.assertIn("--kill-on-bad-exit=1", words)
            self.assertEqual([word for word in words if "bind" in word], [])
            self.assertIn(f" | nodes {nodes} | tasks {tasks} | GPUs per node {tasks // nodes} | rank 0 on gpu1\n", job.output)

    def test_the_step_of_many_gpus_does_start(self):
        """Not only printed: srun accepts these counts, and every task finds itself."""
        job = Job("05_multinode", "--dump-env", "--json", options=["-p", "gpu", "--nodes=4", "--gpus-per-node=8"])
        job.wait()
        self.assertEqual(job.state(), "COMPLETED", job.output)
        for rank in range(32):
            self.assertRegex(job.output, rf'"launcher":"slurm","rank":{rank},"local_rank":\d,"world_size":32,"local_world_size":8,')

    def test_gpus_and_cpus_per_task(self):
        """The job has CPUs for the two tasks per node that the script asks for, and eight GPUs ask for eight."""
        for cpus, expected in (("1", "--overcommit"), ("2", "--overcommit"), ("4", "--cpus-per-task=1"), ("8", "--cpus-per-task=2")):
            with self.subTest(cpus=cpus):
                options = ["-p", "gpu", "--nodes=2", "--gpus-per-node=8", f"--cpus-per-task={cpus}"]
                job = Job("05_multinode", "--dump-env", "--json", options=options).wait()
                self.assertEqual(job.state(), "COMPLETED", job.output)
                for rank in range(16):
                    self.assertRegex(job.output, rf'"launcher":"slurm","rank":{rank},"local_rank":\d,"world_size":16,')
                self.assertIn(f"8 tasks share {2 * int(cpus)} CPUs of each node", job.output)
                words = self.command(Job("05_multinode", options=options, environment={"DDP_DRY_RUN": "1"}).wait().output)
                self.assertIn(expected, words)
        # As many as each task is to have.
        options = ["-p", "gpu", "--nodes=2", "--gpus-per-node=8", "--ntasks-per-node=8", "--cpus-per-task=2"]
        job = Job("05_multinode", "--dump-env", "--json", options=options).wait()
        self.assertEqual(job.state(), "COMPLETED", job.output)
        self.assertNotIn("share", job.output)

    def test_stage_03_counts_its_gpus_itself(self):
        job = Job("03_ddp_spawn", options=["-p", "gpu", "--gpus-per-node=8"], environment={"DDP_DRY_RUN": "1"}).wait()
        self.assertEqual(self.command(job.output), [str(BIN / "03_ddp_spawn"), "50", "10"])
        job = Job("03_ddp_spawn", options=["--ntasks-per-node=3"], environment={"DDP_DRY_RUN": "1"}).wait()
        self.assertEqual(self.command(job.output), [str(BIN / "03_ddp_spawn"), "50", "10", "--nprocs", "3"])

    def by_hand(self, script, *arguments, **variables):
        """As job 1000000 of a cluster elsewhere: of those that are here the script would know better."""
        environment = {**os.environ, "DDP_DRY_RUN": "1", "SLURM_JOB_ID": "1000000", **variables}
        return subprocess.run([ROOT / "slurm" / f"{script}.sh", *arguments], capture_output=True, text=True, env=environment)

    def test_a_thousand_nodes(self):
        result = self.by_hand("05_multinode", SLURM_JOB_NUM_NODES="1000", SLURM_JOB_NODELIST="c[0007-0506,1001-1500]",
                              SLURM_GPUS_PER_NODE="h100:8", SLURM_CPUS_ON_NODE="96", SLURM_CPUS_PER_TASK="12")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(" | nodes 1000 | tasks 8000 | GPUs per node 8 | rank 0 on c0007\n", result.stderr)
        self.assertEqual(self.command(result.stdout),
                         ["srun", "--nodes=1000", "--ntasks=8000", "--kill-on-bad-exit=1", "--wait=60", "--ntasks-per-node=8",
                          "--cpus-per-task=12", str(BIN / "05_multinode"), "50", "10"])

    def test_where_there_is_no_slurm(self):
        """A dry run needs none. A real one says in one line what is the matter."""
        path = cluster.folder / "no slurm"
        path.mkdir()
        for tool in ("bash", "dirname", "sed"):
            (path / tool).symlink_to(shutil.which(tool))
        job = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS_PER_NODE": "2", "PATH": str(path)}
        for name in ("05_multinode", "bench"):
            result = self.by_hand(name, **job)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stderr,
                             f"{name}: n[1-2] | nodes 2 | tasks 4 | GPUs per node 0 | rank 0 on the first of n[1-2]\n")
        for variables in (job | {"DDP_DRY_RUN": ""}, job | {"SLURM_JOB_NODELIST": ""}):
            result = self.by_hand("05_multinode", **variables)
            self.assertEqual(result.returncode, 2)
            self.assertRegex(result.stderr, r"\A05_multinode: error: SLURM_JOB_NODELIST=.*: got 0 nodes, expected 2\n\Z")

    def test_a_container(self):
        image = cluster.folder / "an image.sif"
        image.touch()
        job = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS_PER_NODE": "2", "DDP_CONTAINER": str(image)}
        words = self.command(self.by_hand("05_multinode", **job).stdout)
        self.assertEqual(words[-6:], ["apptainer", "exec", str(image), "05_multinode", "50", "10"])
        words = self.command(self.by_hand("05_multinode", SLURM_GPUS_ON_NODE="4", **job).stdout)
        self.assertEqual(words[-7:], ["apptainer", "exec", "--nv", str(image), "05_multinode", "50", "10"])

    def test_contradictions(self):
        job = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
        for variables, message in (
                (job | {"SLURM_JOB_NODELIST": "n[1-3]"}, "SLURM_JOB_NODELIST=n[1-3]: got 3 nodes, expected 2"),
                (job | {"SLURM_GPUS_PER_NODE": "many"}, 'GPUs per node: got "many"'),
                (job | {"SLURM_GPUS": "3", "SLURM_GPUS_ON_NODE": "2"}, "--gpus=3: got 2 GPUs on the first of 2 nodes"),
                (job | {"DDP_CONTAINER": "/no/image"}, "DDP_CONTAINER=/no/image is not there"),
                (job | {"DDP_MAX_REQUEUES": "x"}, 'DDP_MAX_REQUEUES: got "x"'),
                (job | {"DDP_MAX_REQUEUES": "9" * 20}, 'DDP_MAX_REQUEUES: got "99999999999999999999"')):
            result = self.by_hand("05_multinode", **variables)
            self.assertEqual(result.returncode, 2, message)
            self.assertIn(f"05_multinode: error: {message}", result.stderr)
            self.assertEqual(result.stdout, "")

    def test_steps_of_the_benchmark(self):
        result = self.by_hand("bench", "--models", "S", SLURM_JOB_NUM_NODES="5", SLURM_JOB_NODELIST="n[1-5]", SLURM_NTASKS_PER_NODE="6")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([shlex.split(line) for line in result.stdout.splitlines()], [
            [str(BIN / "bench"), "--launchers", "srun", "--nodes", "1,2,4,5", "--world-sizes", "1,2,4,6", "--stages", "05_multinode",
             "--json", "bench-1000000.json", "--models", "S"]])
        without_arguments = self.by_hand("bench", SLURM_JOB_NUM_NODES="1", SLURM_JOB_NODELIST="n1", SLURM_NTASKS_PER_NODE="2")
        words = shlex.split(without_arguments.stdout)
        self.assertEqual(words[3:7] + words[-2:], ["--nodes", "1", "--world-sizes", "1,2", "--json", "bench-1000000.json"])


class Benchmark(unittest.TestCase):
    def test_bench_end_to_end(self):
        """One node, then two, in one report."""
        job = Job("bench", "--models", "T", "--steps", "50", "--repetitions", "1")
        job.wait()
        self.assertEqual(job.state(), "COMPLETED", job.output)
        runs = json.loads((cluster.folder / f"bench-{job.id}.json").read_text())["ddp_scaling"]["runs"]
        measured = {(entry["stage"], entry["nodes"], entry["world_size"]) for entry in runs}
        self.assertEqual(measured, {("01_single_gpu", 1, 1), ("05_multinode", 1, 1), ("05_multinode", 1, 2), ("05_multinode", 2, 4)})
        for entry in runs:
            self.assertIsNone(entry["error"])
            self.assertTrue(entry["parity"]["ok"])
            self.assertGreater(entry["samples_per_second"], 0)

    def test_beside_a_step_that_still_ends(self):
        """Slurm would place one node's step on the other node, which is idle, where bench's temporary folder is not."""
        script = cluster.folder / "beside.sh"
        script.write_text(f"""#!/bin/bash
srun --nodelist=node1 --nodes=1 --ntasks=1 sh -c 'touch began; sleep 2' &
until [[ -e began ]]; do sleep 0.05; done
{shlex.quote(str(BIN / "bench"))} --launchers srun --stages 05_multinode --world-sizes 1 --models T --steps 50 --repetitions 1
""")
        job = Job(script, options=["--nodes=2", "--ntasks-per-node=1", "--output=beside-%j.out"]).wait()
        self.assertEqual(job.state(), "COMPLETED", job.output)


class NodeLists(unittest.TestCase):
    # No text after the last bracket: we understand that too, Slurm neither writes nor reads it.
    WELL_FORMED = ["n1", "n[1-2]", "n[1-2,07],gpu3-ib", "n[09-11]", "n[9-11]", "n[098-101]", "n[8-011]", "ib-n[1-3,07,9-11]",
                   "r[1-2]n[01-02]", "a[1]b[2]c[3-4]", "n[5]", "n[0-0]", "n[2,1]", "b,a,b", "node-1.cluster.local,node_2",
                   "gpu-a100-[001-002],cpu[7-8]", "n[0-9],n[00-09],n[000-009]", "c[0001-1000]", "a[1-2][3-4]",
                   "r[01-02]c[1-2]n[0-1]", "n[1-1]", "x[99-101,7,007]"]
    MALFORMED = ["n[a]", "n[1-b]", "n[2-1]", "n[1-2-3]", "n[]", "n[1,]", "n[,1]", "n[-1]", "n[1--2]", "n[0-65536]",
                 "n[0-99999999999]", "n1,n[x]", "a[1]b[]"]
    # Of these some versions of Slurm make a name such as "n]".
    MADE_UP = ["n[", "n[1", "n[1-2", "n]", "n1]", "n[1-]", "n[[1]]", "n[1]]"]

    def random_lists(self, count):
        rng = random.Random(5)

        def number():
            return str(rng.randrange(0, 1200)).zfill(rng.choice((1, 1, 2, 3, 4, 5)))

        def item():
            first = number()
            if rng.random() < 0.5:
                return first
            last = int(first) + rng.randrange(0, 30)
            return f"{first}-{str(last).zfill(len(first))}"

        def host():
            name = rng.choice(("n", "gpu", "c-", "rack", "a.b-", "x_y"))
            for separator in rng.choice(((), ("",), ("",), ("", "n"), ("", "-c"), ("", "", "-"))):
                name += separator + "[" + ",".join(item() for _ in range(rng.randrange(1, 4))) + "]"
            return name if name.endswith("]") else name + number()

        return [",".join(host() for _ in range(rng.randrange(1, 4))) for _ in range(count)]

    def test_expanded_as_slurm_does(self):
        lists = self.WELL_FORMED + self.random_lists(400)
        ours = run(BUILD / "tests" / "node_list_helper", input="\n".join(lists) + "\n").splitlines()
        self.assertEqual(len(ours), len(lists))
        for text, names in zip(lists, ours):
            self.assertEqual(names.split(","), run("scontrol", "show", "hostnames", text).splitlines(), text)

    def test_malformed_ones_are_refused_by_both(self):
        lists = self.MALFORMED + self.MADE_UP
        ours = run(BUILD / "tests" / "node_list_helper", input="\n".join(lists) + "\n").splitlines()
        self.assertEqual(ours, ["refused"] * len(lists))
        for text in self.MALFORMED:  # scontrol's exit code is 0 all the same
            result = subprocess.run(["scontrol", "show", "hostnames", text], capture_output=True, text=True)
            self.assertEqual(result.stdout.strip(), "", text)
            self.assertIn("Invalid", result.stderr, text)


if __name__ == "__main__":
    cluster = SlurmCluster()
    os.environ["PATH"] = f"{ROOT}/.venv/bin:{os.environ['PATH']}"
    successful = unittest.main(argv=[sys.argv[0], "--verbose", *sys.argv[2:]], exit=False).result.wasSuccessful()
    if not successful:
        print(cluster.logs(), file=sys.stderr)
    sys.exit(0 if successful else 1)
