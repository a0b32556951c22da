#!/usr/bin/env python3
"""The batch scripts and submit on a real Slurm cluster of two nodes: whole runs, and runs that are interrupted and resumed.

usage: slurm_test.py BUILD_DIR [TEST...]     as root; see tests/clusters/slurm_fixture.py
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from clusters import stages  # noqa: E402
from clusters.namespaces import run  # noqa: E402
from clusters.slurm_fixture import SlurmCluster  # noqa: E402
from clusters.stages import agrees, last_line  # noqa: E402
from support.scratch import ROOT, Scratch  # noqa: E402

BUILD = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve()
BIN = BUILD / "bin"
FINAL_STATES = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
JOB_SECONDS = 300
# Long enough to be interrupted on any machine; saves by itself only at the end.
LONG = ["--layers", "64,64,10", "--dataset-size", "1024", "--global-batch", "64", "--optimizer", "adam"]

cluster = None


class Job:
    """Batch job."""

    def __init__(self, name):
        self.id = name

    @property
    def output(self):
        path = pathlib.Path(self.facts()["StdOut"])
        return path.read_text() if path.exists() else ""

    def facts(self):
        return dict(re.findall(r"(\S+?)=(\S*)", run("scontrol", "--oneliner", "show", "job", self.id)))

    def state(self):
        return self.facts()["JobState"]

    def exit_code(self):
        return int(self.facts()["ExitCode"].split(":")[0])

    def wait_for(self, condition):
        deadline = time.monotonic() + JOB_SECONDS
        while not condition():
            if time.monotonic() > deadline or self.state() in FINAL_STATES and not condition():
                raise AssertionError(f"job {self.id} is {self.state()}; it wrote:\n{self.output}")
            time.sleep(0.1)
        return self

    def wait(self):
        return self.wait_for(lambda: self.state() in FINAL_STATES)

    def wait_for_restart(self):
        """Waits until Slurm has queued the job again, then has it started: by itself Slurm waits two minutes."""
        self.wait_for(lambda: self.facts()["Restarts"] == "1" and self.state() == "PENDING" and not cluster.processes_on_nodes())
        time.sleep(2)  # for the controller
        run("scontrol", "update", f"JobId={self.id}", "StartTime=now", "TimeLimit=10")

    def finished(self):
        """Waits for its success. @return moved and digest"""
        if self.wait().state() != "COMPLETED":
            raise AssertionError(f"job {self.id} is {self.state()}, exit code {self.exit_code()}; it wrote:\n{self.output}")
        return last_line(self.output)


def sbatch(script, *arguments, options=(), folder=None, environment=None):
    script = script if "/" in str(script) else ROOT / "slurm" / f"{script}.sh"
    return Job(run("sbatch", "--parsable", *options, script, *arguments, cwd=folder or cluster.folder,
                   env=os.environ | (environment or {})).strip())


def ranks_of(program):
    return stages.ranks_of(BIN / program, "SLURM_PROCID")


def has_pending(pid, number):
    """True if a stopped process will get the signal when it goes on, or is gone."""
    with contextlib.suppress(OSError):
        pending = re.search(r"^ShdPnd:\s*(\w+)$", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1]
        return bool(int(pending, 16) >> number - 1 & 1)
    return True


class Case(Scratch):
    def setUp(self):
        self.folder = cluster.folder / self.id().partition(".")[2]
        self.folder.mkdir(parents=True)

    def program(self, text, name="program"):
        return self.script(name, f"#!/bin/bash\n{text}\n")

    def unbroken(self, words, **more):
        """@return moved and digest of a run that nothing disturbs"""
        folder = self.folder / "unbroken"
        folder.mkdir()
        return sbatch(*words, folder=folder, **more).finished()

    def assert_nothing_runs(self):
        stages.wait_until(lambda: not cluster.processes_on_nodes(), 20, cluster.processes_on_nodes)


class Scripts(Case):
    def test_every_script_ends_on_the_same_weights(self):
        """World size 2: the same bits, for all launchers and nodes. World size 4: to 1e-4."""
        digits = stages.WORKLOAD
        jobs = {"spawn": sbatch("03_ddp_spawn", *digits), "one node": sbatch("04_ddp_launcher", *digits),
                "two nodes": sbatch("05_multinode", *digits, options=["--ntasks-per-node=1"]), "four": sbatch("05_multinode", *digits)}
        reference, digest = stages.spawned(BIN, 2)
        for name, job in jobs.items():
            moved, its_digest = job.finished()
            self.assertTrue(agrees(moved, reference), (name, moved, reference))
            self.assertTrue(its_digest == digest or name == "four", (name, its_digest, digest))
        four = jobs["four"]
        self.assertEqual(pathlib.Path(four.facts()["StdOut"]), cluster.folder / f"05_multinode-{four.id}.out")
        self.assertIn("05_multinode: node[1-2] | nodes 2 | tasks 4 | GPUs per node 0\n", four.output)
        for rank in range(4):
            self.assertEqual(four.output.count(f"[CPU{rank}] Epoch "), 4)
        self.assertTrue(four.output.endswith("05_multinode: exit code 0\n"), four.output)

    def test_rank_0_is_not_on_the_first_node(self):
        """The user's own list of hosts decides which rank is where."""
        (self.folder / "hosts").write_text("node2\nnode1\n")
        program = self.program(f"export SLURM_HOSTFILE={self.folder}/hosts\nsrun --distribution=arbitrary {BIN}/ddp-env --json\n"
                               f"srun --distribution=arbitrary {BIN}/05_multinode {' '.join(stages.WORKLOAD)} --timeout 30")
        job = sbatch(program, options=["--nodes=2", "--ntasks=2", "--ntasks-per-node=1"], folder=self.folder).wait()
        self.assertEqual(job.state(), "COMPLETED", job.output)
        found = {rank["rank"]: rank for rank in map(json.loads, re.findall(r"^\{.*", job.output, re.MULTILINE))}
        self.assertEqual({rank: found[rank]["node_rank"] for rank in found}, {0: 1, 1: 0}, "the case that is to be tested")
        self.assertEqual(stages.last_line(job.output)[1], stages.spawned(BIN, 2)[1])

    def test_four_nodes_of_eight_gpus(self):
        """32 tasks find their ranks, although the job has CPUs for only two on each node, and sbatch was called in a job unlike it."""
        outer = {"SLURM_MEM_PER_CPU": "100", "SLURM_MEM_PER_GPU": "100", "SLURM_HINT": "nomultithread", "SLURM_THREADS_PER_CORE": "1",
                 "SLURM_NTASKS_PER_CORE": "1", "SLURM_GPUS": "1", "SLURM_GPUS_PER_NODE": "1", "SLURM_GPUS_PER_TASK": "1", "SLURM_GRES": "none"}
        checkout = self.folder / "a checkout"
        shutil.copytree(ROOT / "slurm", checkout / "slurm")
        self.program(f"exec {BIN}/ddp-env --json", "a checkout/build/bin/05_multinode")
        for options, tasks in ((["--nodes=4", "--gpus-per-node=8"], 32), (["--nodes=2", "--gres=gpu:3", "--cpus-per-gpu=2"], 6)):
            job = sbatch(checkout / "slurm/05_multinode.sh", options=["--partition=gpu", "--mem=500", *options], folder=self.folder, environment=outer).wait()
            self.assertEqual(job.state(), "COMPLETED", job.output)
            found = [json.loads(line) for line in job.output.splitlines() if line.startswith("{")]
            self.assertEqual(sorted(rank["rank"] for rank in found), list(range(tasks)))
            per_node = tasks // int(options[0][-1])
            self.assertEqual({(rank["local_world_size"], rank["world_size"]) for rank in found}, {(per_node, tasks)})
            self.assertEqual("tasks share" in job.output, tasks == 32, job.output)

    def test_the_benchmark(self):
        """A report has runs on one node, and on two nodes."""
        job = sbatch("bench", "--models", "T", "--steps", "50", "--repetitions", "1", folder=self.folder).wait()
        self.assertEqual(job.state(), "COMPLETED", job.output)
        runs = json.loads((self.folder / f"bench-{job.id}.json").read_text())["ddp_scaling"]["runs"]
        self.assertLessEqual({("05_multinode", 1, 1), ("05_multinode", 1, 2), ("05_multinode", 2, 4)},
                             {(entry["stage"], entry["nodes"], entry["world_size"]) for entry in runs if entry["parity"]["ok"]}, runs)

    def test_reframe(self):
        """The acceptance test passes on two nodes, and fails where the ranks exchange no gradients."""
        partition = {"name": "main", "scheduler": "squeue", "launcher": "srun", "environs": ["builtin"], "processor": {"num_cpus": 2, "num_cpus_per_core": 1}}
        config = self.write("config.yaml", json.dumps({"systems": [{"name": "two", "hostnames": [".*"], "partitions": [partition]}]}))
        found = stages.reframe(self, "2_nodes", ("--quiet", "--no-communication"), "-C", config, "-S", f"folder={BIN}", "-S", "exclusive_access=0")
        self.assertEqual([found["--quiet"][name] for name in ("result", "num_tasks", "job_nodelist")], ["pass", 4, ["node1", "node2"]], found)
        self.assertRegex(found["--no-communication"]["fail_reason"], "^sanity error: loss of step 1: got ")


class Stops(Case):
    EPOCHS = 100

    def test_the_time_limit_comes_and_slurm_starts_it_again(self):
        words = ["05_multinode", str(self.EPOCHS), str(self.EPOCHS), *LONG]
        expected = self.unbroken(words, options=["--ntasks-per-node=1"])
        job = sbatch(*words, options=["--ntasks-per-node=1", "--time=1", "--signal=B:USR1@10"], folder=self.folder)
        job.wait_for(lambda: "Epoch 0 " in job.output)
        # The signal comes after 20 to 50 s. The ranks are paused until then, because a fast machine would be done.
        ranks = ranks_of("05_multinode").values()
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        job.wait_for(lambda: all(has_pending(pid, signal.SIGUSR1) for pid in ranks))
        for pid in ranks:
            os.kill(pid, signal.SIGCONT)
        job.wait_for_restart()
        self.assertEqual(job.finished(), expected)
        self.assertEqual(job.output.count("exit code 85, asking Slurm to start the job again (1 of at most 100 times)"), 1)
        for epoch in range(self.EPOCHS):  # each exactly once
            self.assertEqual(job.output.count(f"[CPU0] Epoch {epoch} |"), 1, epoch)
        self.assertEqual(*((self.folder / name / "05_multinode.safetensors").read_bytes() for name in (".", "unbroken")))

    def test_a_killed_rank(self):
        """The other ranks end too, and a second job ends on the bits of an undisturbed run."""
        words = ["05_multinode", "100", "5", *LONG]
        expected = self.unbroken(words)
        job = sbatch(*words, folder=self.folder)
        job.wait_for(lambda: "[CPU0] Epoch 7 |" in job.output)
        os.kill(ranks_of("05_multinode")[2], signal.SIGKILL)
        killed = time.monotonic()
        job.wait()
        self.assertLess(time.monotonic() - killed, 20)
        self.assertEqual((job.state(), job.exit_code()), ("FAILED", 137), job.output)
        self.assertRegex(job.output, "srun: error: node2: task 2: Killed")
        self.assert_nothing_runs()
        self.assertEqual(sbatch(*words, "--resume", "auto", folder=self.folder).finished(), expected)

    def test_a_cancelled_job_is_not_started_again(self):
        job = sbatch("05_multinode", "100000", "100000", *LONG, folder=self.folder)
        job.wait_for(lambda: "Epoch 1 " in job.output)
        run("scancel", job.id)
        job.wait()
        self.assert_nothing_runs()
        self.assertTrue((self.folder / "05_multinode.safetensors").exists())  # stopped in time
        time.sleep(1)
        self.assertEqual((job.state(), job.facts()["Restarts"]), ("CANCELLED", "0"))


class Submit(stages.Submitted, Case):
    """submit with a real Slurm."""

    out, scheduler = "out", ("--scheduler", "slurm")

    def run_submit(self, *arguments):
        return subprocess.run([ROOT / "tools/submit", *map(str, arguments)], cwd=self.folder, capture_output=True, text=True)

    def test_two_nodes(self):
        self.submit(BIN / "05_multinode", "--nodes", "2", "--", *stages.WORKLOAD)
        job, = self.wait_for("done")
        self.assertEqual(job["exit_code"], 0)
        text = Job(job["id"]).output
        self.assertEqual(last_line(text), stages.spawned(BIN, 2), text)
        self.assertEqual(Job(job["id"]).facts()["NodeList"], "node[1-2]")
        self.assertLessEqual({"snapshot.safetensors", "metrics.jsonl"}, {path.name for path in pathlib.Path(job["folder"]).iterdir()})
        self.assertIn("moved ", self.tool("logs", "0", "out"))

    def test_a_sweep_of_text_that_arrives_as_it_is(self):
        values = ["1", "b c,$HOME", "`touch x`;'\"\\ %j \t#é"]
        axis = "x=" + ",".join(value.replace(",", "\\,") for value in values)
        self.submit(self.program("printf '%s\\0' \"$@\" >argv; [[ $2 != 1 ]] || exit 3"), "--sweep", axis)
        jobs = self.wait_for("failed", "done", "done")
        self.assertEqual([job["exit_code"] for job in jobs], [3, 0, 0])
        for job, value in zip(jobs, values):
            self.assertEqual((pathlib.Path(job["folder"]) / "argv").read_text().split("\0"), ["--x", value, ""])


if __name__ == "__main__":
    cluster = SlurmCluster()
    os.environ["PATH"] = f"{ROOT}/.venv/bin:{os.environ['PATH']}"
    stages.run_tests(cluster.logs)
