"""Stages for the cluster tests: a workload for all launchers, and its expected result."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WAIT_SECONDS = 300
OVER = {"done", "failed", "cancelled", "lost", "held"}  # states in which a job of submit stays
# Two processes must end on the same bits, and four within 1e-4, under spawn, torchrun, mpirun, srun and HTCondor. Each test runs
# these arguments, and compares with 03_ddp_spawn. So all launchers are compared with each other.
WORKLOAD = "4 2 --dataset digits --global-batch 64".split()  # as in parity_test.cpp
LAST_LINE = re.compile(r"^moved (\S+) \| loss \S+(?: \| accuracy (\S+))? \| digest ([0-9a-f]{16})", re.MULTILINE)


def last_line(text):
    """moved and digest of the last line."""
    found = LAST_LINE.findall(text)
    if len(found) != 1:
        raise AssertionError(f"expected one last line, got {len(found)} in:\n{text}")
    return float(found[0][0]), found[0][2]


def agrees(value, reference, relative=1e-4):
    return abs(value - reference) <= relative * abs(reference)  # false for NaN


def spawned(bin_folder, ranks, workload=WORKLOAD):
    """moved and digest of the workload under 03_ddp_spawn."""
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run([bin_folder / "03_ddp_spawn", *workload, "--nprocs", str(ranks)], cwd=folder,
                                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    if result.returncode != 0:
        raise AssertionError(f"03_ddp_spawn: exit code {result.returncode}\n{result.stdout}{result.stderr}")
    return last_line(result.stdout)


def ranks_of(program, variable):
    """Process ids of a program's ranks, by the rank in a variable of their launcher."""
    ranks = {}
    for process in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and os.readlink(process / "exe").endswith(str(program)):
                environment = dict(item.split("=", 1) for item in (process / "environ").read_text().split("\0") if "=" in item)
                if environment:  # empty for a process that is ending
                    ranks[int(environment[variable])] = int(process.name)
    return ranks


class Submitted:
    """What a test case does with the jobs of tools/submit. The case has `tool`, which runs it, and `out`, the jobs' folder."""

    def jobs(self, out=None):
        return json.loads(self.tool("status", "--json", out or self.out))

    def wait_for(self, *states, out=None):
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            jobs = self.jobs(out)
            found = tuple(job["state"] for job in jobs)
            if found == states:
                return jobs
            if time.monotonic() > deadline or {*found} <= OVER:
                self.fail(f"{found}, expected {states}\n{self.tool('logs', '--lines', '40', out or self.out)}")
            time.sleep(0.3)


def torchrun():
    return shutil.which("torchrun") or str(ROOT / ".venv/bin/torchrun")
