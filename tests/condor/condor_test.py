#!/usr/bin/env python3
"""submit on a real HTCondor pool: the example, two nodes, exit code 85, unchanged text, and a killed submission.

usage: condor_test.py BUILD_FOLDER [TEST...]     as root; see tests/clusters/condor_fixture.py
"""

import os
import pathlib
import re
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clusters"))
import stages  # noqa: E402
from condor_fixture import CHECKOUT, CondorPool  # noqa: E402

BUILD = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve()
BIN = BUILD / "bin"

pool = None


class Pool(stages.Submitted, unittest.TestCase):
    """All files belong to alice."""

    def setUp(self):
        self.folder = pool.home / self.id().rpartition(".")[2]
        self.out = self.folder / "out"

    def write(self, name, text):
        inside = pool.path(self.folder / name)
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.write_text(text)
        inside.chmod(0o755)
        pool.run("chown", "-R", "alice", pool.home, user="root")
        return self.folder / name

    def run_submit(self, *arguments):
        return pool.run(CHECKOUT / "tools/submit", *arguments)

    def read(self, job, name):
        return pool.path(job["folder"]).joinpath(name.format(**job)).read_text()

    def test_the_example(self):
        """Submits condor/settings.yaml unchanged."""
        settings, out = CHECKOUT / "condor/settings.yaml", CHECKOUT / "out/condor"
        self.tool("--settings-file", settings, "--", "5", "1", "--dataset", "digits", "--nprocs", "2")
        job, = self.wait_for("done", out=out)
        self.assertIn("CPU1] Epoch 4", self.read(job, "job-{id}.out"))
        self.assertTrue(pool.path(out / "submission_file.sub").exists())
        self.assertLessEqual({"snapshot.safetensors", "metrics.jsonl"}, {path.name for path in pool.path(job["folder"]).iterdir()})
        self.assertIn("moved ", self.tool("logs", "0", "--settings-file", settings, "--lines", "1"))

    def test_two_nodes_stopped_in_the_middle(self):
        """A rank is asked to stop: all ranks end with 85, HTCondor starts them again, and they end on the unbroken run's bits."""
        epochs = "200"  # the output comes in blocks of some 60 epochs
        training = [epochs, epochs, "--layers", "64,64,10", "--dataset-size", "1024", "--global-batch", "64", "--optimizer", "adam"]
        expected = stages.spawned(BIN, 2, workload=training)
        self.submit(BIN / "05_multinode", "--nodes", "2", "--", *training)
        job, = self.jobs()
        output = pool.path(job["folder"]) / f"job-{job['id']}.0.out"
        stages.wait_until(lambda: output.exists() and "Epoch 2 " in output.read_text(), stages.WAIT_SECONDS, self.jobs, pause_s=0.01)
        os.kill(stages.ranks_of(BIN / "05_multinode", "_CONDOR_PROCNO")[1], signal.SIGUSR1)
        done, = self.wait_for("done")
        self.assertEqual((done["id"], done["attempt"], done["exit_code"]), (job["id"], 1, 0))
        self.assertEqual(pool.run("condor_history", job["id"], "-af", "NumJobStarts").stdout.split()[0], "2")
        text = output.read_text()
        self.assertEqual(stages.last_line(text), expected, text[-1000:])
        again = [int(epoch) for epoch in re.findall(r"^\[CPU0\] Epoch (\d+) ", text, re.MULTILINE)]
        # HTCondor overwrites the output: the second start went on where the first start stopped.
        self.assertGreater(again[0], 2)
        self.assertEqual(again, list(range(again[0], int(epochs))))

    def test_a_sweep_held_and_cancelled(self):
        self.submit(self.write("broken", "#!/no/such/interpreter\n"))
        self.assertIn("Failed to execute", self.wait_for("held")[0]["reason"])
        self.submit(self.write("point", '#!/bin/sh\necho "$@"; [ "$2" = 1 ] || exec sleep 1000\n'), "--sweep", "x=1,2", "y=a b")
        jobs = self.wait_for("held", "done", "running")
        self.assertEqual(self.read(jobs[1], "job-{id}.out"), "--x 1 --y a b\n")
        self.tool("cancel", "--all", self.out)
        self.wait_for("cancelled", "done", "cancelled")
        queue = pool.run("condor_q", *(job["id"] for job in jobs), "-af", "JobStatus").stdout
        self.assertRegex(queue, r"\A(3\n)*\Z")  # gone, or on the way


if __name__ == "__main__":
    pool = CondorPool(BUILD)
    stages.run_tests(pool.logs)
