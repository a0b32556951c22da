#!/usr/bin/env python3
"""100 jobs of two ranks, started at once on this host by four launchers: no port is taken twice, no two jobs mix.

Every job has a seed of its own, so that a rank in the wrong job would be refused, and two whole jobs changed over would show. What a
job says must be what it says when it is alone.

usage: hundred_jobs_test.py BUILD_DIR [--all]     --all: compares every job with itself alone, not nine of them (about 3 minutes)
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

BIN = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve() / "bin"
TORCHRUN = shutil.which("torchrun") or pathlib.Path(__file__).resolve().parents[1] / ".venv/bin/torchrun"
JOBS = 100
# Of ten jobs. torchrun's agents are large; two of a hundred are enough to be in the others' way.
LAUNCHERS = ["spawn", "mpirun", "slurm", "mpirun", "spawn", "slurm", "mpirun", "slurm", "mpirun", "mpirun"]
TORCHRUN_JOBS = (33, 66)
TRANSIENT = 75
STEPS = 3  # as slurm/common.sh: the first and two more
JOB_SECONDS = 240
LAST_LINE = re.compile(r"^moved (\S+ \| loss \S+ \| digest [0-9a-f]{16}) \|", re.MULTILINE)
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def derived_port(job, step):
    """The port that the ranks of a Slurm step compute when nobody gives one."""
    value = 2166136261
    for byte in f"{job}.{step}.0".encode():
        value = (value ^ byte) * 16777619 % 2**32
    return 20000 + value % 12000


def slurm_ids(count):
    """Ids of Slurm jobs, every other one with the port of the one before."""
    ids, job = [], 1000
    while len(ids) < count:
        same = next(other for other in range(job + 1, 10**6) if derived_port(other, 0) == derived_port(job, 0))
        ids += [job, same]
        job += 1
    return ids[:count]


def plain_environment():
    launchers = ("SLURM_", "OMPI_", "PMIX_", "TORCHELASTIC_", "_CONDOR_", "DDP_")
    return {name: value for name, value in os.environ.items() if not name.startswith(launchers)}


class Job:
    def __init__(self, number, slurm_id):
        self.number = number
        self.launcher = "torchrun" if number in TORCHRUN_JOBS else LAUNCHERS[number % 10]
        self.slurm_id = slurm_id
        # Ranks of one node need no port, those of two do: for Slurm these are two, though both are this host.
        self.nodes = 1 if number % 10 == 7 else 2
        self.epochs = 1 + number % 3
        self.arguments = [str(self.epochs), str(self.epochs), "--dataset-size", "256", "--seed", str(number), "--timeout", str(JOB_SECONDS),
                          "--backend", ("gloo", "shm")[number // 10 % 2]]

    def run(self, folder):
        """Returns the exit code and all that it wrote, on stdout and on stderr, and how often it was tried."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=folder))
        if self.launcher == "slurm":
            return self._run_steps(folder)
        command = {"spawn": [BIN / "03_ddp_spawn"],
                   "mpirun": ["mpirun", "--oversubscribe", "-np", "2", BIN / "04_ddp_launcher"],
                   "torchrun": [TORCHRUN, "--standalone", "--nproc-per-node=2", "--no-python", BIN / "04_ddp_launcher"]}[self.launcher]
        nprocs = ["--nprocs", "2"] if self.launcher == "spawn" else []
        result = subprocess.run([*command, *self.arguments, *nprocs], cwd=folder, env=plain_environment() | MPI, capture_output=True,
                                text=True, timeout=JOB_SECONDS, stdin=subprocess.DEVNULL)
        return result.returncode, result.stdout, result.stderr, 1

    def _run_steps(self, folder):
        """What srun sets, and what it and the batch script do when a port is taken."""
        for step in range(STEPS):
            code, out, err = self._run_step(folder, step)
            if code != TRANSIENT:
                break
        return code, out, err, step + 1

    def _run_step(self, folder, step):
        ranks = []
        for rank in range(2):
            variables = {"SLURM_JOB_ID": self.slurm_id, "SLURM_STEP_ID": step, "SLURM_STEP_NUM_TASKS": 2, "SLURM_STEP_NUM_NODES": self.nodes,
                         "SLURM_NODEID": rank * (self.nodes - 1), "SLURM_STEP_TASKS_PER_NODE": ("2", "1(x2)")[self.nodes - 1],
                         "SLURM_STEP_NODELIST": ("localhost", "localhost,127.0.0.1")[self.nodes - 1], "SLURM_PROCID": rank,
                         "SLURM_LOCALID": rank * (2 - self.nodes)}
            files = [open(folder / f"{step}.{rank}.{name}", "w+") for name in ("out", "err")]
            environment = plain_environment() | {name: str(value) for name, value in variables.items()}
            ranks.append((subprocess.Popen([BIN / "04_ddp_launcher", *self.arguments], cwd=folder, env=environment,
                                           stdout=files[0], stderr=files[1], stdin=subprocess.DEVNULL), files))
        deadline = time.monotonic() + JOB_SECONDS
        codes = [None, None]
        while None in codes:
            codes = [rank.poll() for rank, _ in ranks]
            if any(codes) or time.monotonic() > deadline:  # --kill-on-bad-exit
                for rank, _ in ranks:
                    rank.kill()
                codes = [code if code is not None else rank.wait() for code, (rank, _) in zip(codes, ranks)]
                break
            time.sleep(0.05)
        texts = ["", ""]
        for _, files in ranks:
            for i, file in enumerate(files):
                file.seek(0)
                texts[i] += file.read()
                file.close()
        bad = [code for code in codes if code != 0]
        return (TRANSIENT if TRANSIENT in bad else bad[0] if bad else 0), *texts

    def outcome(self, folder):
        """The last line's figures. @raises AssertionError if the job is not what two ranks of it alone would be"""
        code, out, err, tries = self.run(folder)
        what = f"job {self.number} ({self.launcher})"
        assert code == 0, f"{what}: exit code {code} after {tries} tries\n{out}{err}"
        epochs = sorted(re.findall(r"^\[CPU(\d+)\] Epoch (\d+) \|", out, re.MULTILINE))
        expected = sorted((str(rank), str(epoch)) for rank in range(2) for epoch in range(self.epochs))
        assert epochs == expected, f"{what}: got epochs {epochs}, expected {expected}\n{out}"
        found = LAST_LINE.findall(out)
        assert len(found) == 1, f"{what}: got last lines {found}, expected one\n{out}"
        return found[0], tries


def main():
    compare_all = "--all" in sys.argv
    identities = iter(slurm_ids(JOBS))
    jobs = [Job(number, None) for number in range(JOBS)]
    for job in jobs:
        job.slurm_id = next(identities) if job.launcher == "slurm" else None
    # Somebody else has the port that one of them computes.
    robbed = next(job for job in jobs if job.launcher == "slurm")
    stranger = socket.create_server(("127.0.0.1", derived_port(robbed.slurm_id, 0)))

    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        start = time.monotonic()
        running = [pool.submit(job.outcome, folder) for job in jobs]
        concurrent.futures.wait(running)
        together_s = time.monotonic() - start
        failures = [str(future.exception()) for future in running if future.exception()]
        for failure in failures:
            print(failure, file=sys.stderr)
        if failures:
            print(f"{len(failures)} of {JOBS} jobs failed", file=sys.stderr)
            return 1
        together = [future.result()[0] for future in running]
        tries = [future.result()[1] for future in running]
        assert len(set(together)) == JOBS, f"got {len(set(together))} different ends, expected {JOBS}"
        assert tries[robbed.number] > 1, f"job {robbed.number}: its port was taken, and it did not mind"
        stranger.close()

        start = time.monotonic()
        compared = [job for job in jobs if compare_all or job.number % 16 == 1 or job in (jobs[66], robbed)]
        for job in compared:
            alone, _ = job.outcome(folder)
            assert together[job.number] == alone, f"job {job.number} ({job.launcher}): got {together[job.number]}, alone {alone}"
        counts = {launcher: sum(job.launcher == launcher for job in jobs) for launcher in (*LAUNCHERS, "torchrun")}
        print(f"{JOBS} jobs at once ({counts}) in {together_s:.0f} s, {sum(count > 1 for count in tries)} of them tried again because a port "
              f"was taken; {len(compared)} compared with themselves alone in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
