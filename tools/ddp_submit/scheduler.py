"""Base class of the schedulers. Other code compares no names: it calls the object in cli.SCHEDULERS."""

import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys

from .jobs import Job
from .settings import FAILED, NO_ANSWER, Failure, refuse, say

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOB_SH = ROOT / "slurm/job.sh"
# How often an exit code is answered with another start, as job.sh has it.
MOST_RESTARTS = {int(code): int(most) for code, most in re.findall(r"^ *(\d+)\) most=\D*(\d+)", JOB_SH.read_text(), re.M)}


def last_line(text):
    return (text.strip().splitlines() or ["it said nothing"])[-1]


class Scheduler:
    """A batch system also has `describe(jobs, job)`, the submission as text, and `start(jobs, job)`, which passes it on and returns as `call`.
    Its `tags(jobs)` gives the ids by tag, and `state(jobs, active)` updates the jobs."""

    name = ""
    command, remove = "", ""  # which submit and cancel; a scheduler without them is always there
    output = ""  # stands in the names of a job's output instead of its id
    several_nodes = True
    starts_tasks = False  # on a single node, too
    unused = {}  # settings that it cannot use, and why

    def launch(self, program, nodes, gpus):
        """@return the words that start `program`, and the number of processes that the scheduler starts on each node"""
        name = os.path.basename(program)
        is_module = program.endswith(".py") and not os.access(program, os.X_OK)
        start = [shutil.which("python3") or sys.executable, program] if is_module else [program]
        if nodes > 1 and (not self.several_nodes or re.match("0[1-4]_", name)):
            refuse("nodes", nodes, f"1 with {name if self.several_nodes else f'--scheduler {self.name}'}; 05_multinode runs on several")
        needs_launcher = bool(re.match("0[45]_", name))
        if needs_launcher and nodes == 1 and gpus > 1 and not self.starts_tasks:
            torchrun = shutil.which("torchrun", path=f"{ROOT}/.venv/bin:{os.environ.get('PATH', '')}") or "torchrun"
            return [torchrun, "--standalone", f"--nproc-per-node={gpus}", "--no-python", *start], 1
        return start, max(1, gpus) if nodes > 1 or needs_launcher else 1

    def submit(self, jobs, new):
        """Passes new jobs to the scheduler, also jobs that a killed submit has left."""
        tags = self.tags(jobs)
        for job in new:
            jobs.make_folder(job)
            # The scheduler may have forgotten the job that it got from a killed submit; its output has the id.
            left = [found[1] for file in jobs.files(job, ".log", ".out") if (found := re.match(r"job-([0-9]+)\.", file.name))]
            job.id = tags.get(job.tag) or next(iter(left), "")
            if not job.id:
                _, out, said = self.start(jobs, job)
                found = re.match("[1-9][0-9]*", out)
                # A command that failed may have submitted the job.
                job.id = found[0] if found else self.tags(jobs).get(job.tag, "")
                if not job.id and "timed out" in said:  # it may have the job and not list it yet
                    raise Failure(NO_ANSWER, f"job {job.number}: {last_line(said)}; the next call of submit asks again")
            job.state = "pending"
            if not job.id:
                job.end(None, f"refused: {last_line(said)}")
                say(f"job {job.number}: {job.reason}")
            jobs.save(job)
            if job.id:
                print(f"job {job.number} is submitted as {job.id}: {jobs.folder(job)}", flush=True)

    def cancel(self, jobs, chosen):
        code, _, err = self.call(jobs, self.remove, *(job.id for job in chosen))
        if code != 0:
            raise Failure(FAILED, f"{self.remove}: {last_line(err)}")

    def run(self, jobs):
        """Returns when the jobs that run in the foreground are over."""

    def call(self, jobs, *command):
        """Runs a scheduler's command. @return exit code, output, errors. The command holds the lock, even if submit is killed."""
        # Without the variables of an outer job, which Slurm takes for options.
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_")) or name == "SLURM_CONF"}
        try:
            result = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace",
                                    stdin=subprocess.DEVNULL, timeout=300, pass_fds=[jobs.lock])
        except (subprocess.TimeoutExpired, OSError) as error:
            return 1, "", f"{command[0]} timed out" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        return result.returncode, result.stdout, result.stderr

    def ask(self, jobs, *command):
        code, out, err = self.call(jobs, *command)
        if code != 0:
            raise Failure(NO_ANSWER, f"{command[0]} gave no answer ({last_line(err)}); the next call of submit asks again")
        return out.splitlines()


def sweep_points(axes):
    """["lr=0.1,0.01", "seed=1,2"] -> (("lr", "0.1"), ("seed", "1")), ..."""
    choices = []
    for axis in axes:
        if not (found := re.fullmatch(r"(?:--)?([\w-]+)=(.+)", axis, re.S)):
            refuse("--sweep", f'"{axis}"', "an option and its values, e.g. lr=0.1,0.01")
        choices.append([(found[1], value.replace("\\,", ",")) for value in re.split(r"(?<!\\),", found[2])])
    return itertools.product(*choices)


def make_jobs(settings, scheduler, sweep):
    gpus, device, program = settings["num_gpus"], settings["device"], settings["script_path"]
    if device == "cpu" and gpus:
        refuse("num_gpus", f"{gpus} with device cpu", "0")
    for key in filter(settings.get, scheduler.unused):
        say(f"note: {key} is not used, {scheduler.unused[key]}")
    start, per_node = scheduler.launch(program, settings["nodes"], gpus)
    settings = settings | {"num_cpus": settings["num_cpus"] or per_node}
    jobs = []
    for number, point in enumerate(sweep_points(sweep)):
        arguments = settings["arguments"] + [word for key, value in point for word in (f"--{key}", value)]
        if re.match("0[1-5]_", os.path.basename(program)):  # a stage, in a folder of its own
            more = {"--snapshot": "snapshot.safetensors", "--metrics": "metrics.jsonl", "--resume": "auto", "--device": device}
            given = [word.partition("=")[0] for word in arguments] + ["--device"] * (device == "auto")
            arguments = arguments + [word for option in more if option not in given for word in (option, more[option])]
        name = "_".join(f"{key}-{value}" for key, value in point) or os.path.basename(program)
        jobs.append(Job(number, re.sub(r"[^\w.-]", "-", name, flags=re.A)[:60], scheduler.name, start + arguments, per_node, settings, tag="TAG"))
    return jobs
