"""Stages for the cluster tests: a workload for all launchers, and its expected result."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WAIT_SECONDS = 300
OVER = {"done", "failed", "cancelled", "lost", "held"}  # states in which a job of submit stays
# Two processes must end on the same bits, and four within 1e-4, under spawn, torchrun, mpirun, srun and HTCondor. Each test runs
# these arguments, and compares with 03_ddp_spawn. So all launchers are compared with each other.
WORKLOAD = "4 2 --dataset digits --global-batch 64".split()  # as in parity_test.cpp
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
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


def processes():
    """Living processes: process id, program, and variables."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            items = (process / "environ").read_text(errors="replace").split("\0")
            yield int(process.name), os.readlink(process / "exe"), dict(item.split("=", 1) for item in items if "=" in item)


def ranks_of(program, *names):
    """Process ids of a program's ranks, by the rank in a variable of their launcher."""
    return {int(variables[name]): pid for pid, path, variables in processes() if path.endswith(str(program)) for name in names if name in variables}


def wait_until(condition, seconds, complaint, pause_s=0.1):
    """@param complaint gives a text when it takes longer"""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {complaint()}")
        time.sleep(pause_s)


class Submitted:
    """What a test case does with the jobs of tools/submit. The case has `run_submit`, which runs it, `write`, which writes a file
    of its own folder, and `out`, the jobs' folder."""

    scheduler = ()

    def tool(self, *arguments):
        result = self.run_submit(*arguments)
        self.assertEqual(result.returncode, 0, (arguments, result.stdout, result.stderr))
        return result.stdout

    def submit(self, program, *arguments):
        settings = self.write("settings.yaml", f"script_path: {program}\nout_dir: out\n")
        self.tool("--settings-file", settings, *self.scheduler, *arguments)

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


def reframe(case, scale, arguments, *options):
    """Runs packaging/reframe/ddp_cpp.py on a small model. @return ReFrame's results, by the value of `arguments`"""
    words = ["-c", ROOT / "packaging/reframe/ddp_cpp.py", "-r", "-t", scale, "--report-file=report.json", "-P", f"arguments={','.join(arguments)}"]
    for setting in "layers=20,1", "steps=20", "repetitions=1":
        words += ["-S", setting]
    program = shutil.which("reframe", path=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}:{ROOT}/.venv/bin")
    result = case.run_here(program, *words, *options, HOME=str(case.folder), PYTHONDONTWRITEBYTECODE="1")
    cases = json.loads((case.folder / "report.json").read_text())["runs"][0]["testcases"] if "Finished on" in result.stdout else []
    case.assertEqual({found["arguments"] for found in cases}, {*arguments}, (result.stdout, result.stderr))
    return {found["arguments"]: found for found in cases}


def run_tests(logs=lambda: ""):
    """Runs the tests of the program, TEST or all, for `NAME_test.py BUILD_DIR [TEST...]`. @param logs of the daemons, for a failure"""
    successful = unittest.main(argv=[sys.argv[0], "--verbose", *sys.argv[2:]], exit=False).result.wasSuccessful()
    print("" if successful else logs(), end="", file=sys.stderr)
    sys.exit(0 if successful else 1)


def torchrun():
    return shutil.which("torchrun") or str(ROOT / ".venv/bin/torchrun")


def need_launchers():
    for program in "mpirun", torchrun():
        if not shutil.which(program):
            sys.exit(f"{sys.argv[0]}: error: found no {program}, expected what tools/setup.sh installs")


def own_variables():
    """This process's variables, without a launcher's, and with what Open MPI needs."""
    launchers = r"(SLURM|SBATCH|SRUN|OMPI|PMIX|TORCHELASTIC|_CONDOR|DDP)_|(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE)$"
    return {name: value for name, value in os.environ.items() if not re.match(launchers, name)} | MPI
