"""This machine: runs the jobs of an out_dir in the foreground, one after the other."""

import contextlib
import ctypes
import os
import pathlib
import shlex
import signal
import subprocess

from .jobs import flock
from .scheduler import MOST_RESTARTS, Scheduler
from .settings import private, refuse


def process(pid):
    """What identifies a process beyond its pid, which is used again: host, boot, pid namespace and start time."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    start = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{os.uname().nodename} {boot} {os.readlink('/proc/self/ns/pid')} {start}"


class Local(Scheduler):
    """If submit ends before a job, the job is new again."""

    name, output, several_nodes = "local", "local", False

    def describe(self, _jobs, job):
        return shlex.join(job.command) + "\n"

    def submit(self, jobs, new):
        """They wait for `run`."""

    def state(self, jobs, active):
        with contextlib.suppress(BlockingIOError), flock(jobs.out_dir / ".running", wait=False):  # nobody runs them
            for job in active:
                job.state, job.id, job.process = "new", "", ""

    def cancel(self, _jobs, chosen):
        here = process("self").split()[:3]
        for job in chosen:
            if job.process.split()[:3] != here:
                refuse(f"job {job.number}", f"cancel on {here[0]}", f"it on the host and in the container where the job runs, {job.process.partition(' ')[0]}")
        for job in chosen:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
                if process(job.id) == job.process:
                    os.kill(int(job.id), signal.SIGTERM)
                    os.kill(int(job.id), signal.SIGCONT)  # it may be suspended

    def run(self, jobs):
        """Starts a job again if its exit code asks for it."""
        restarts = 0
        with flock(jobs.out_dir / ".running") as lock:
            while True:
                with jobs.locked() as there:
                    job = next((job for job in there if job.scheduler == self.name and job.left), None)
                    if job is None:
                        return
                    output = jobs.make_folder(job) / f"job-{self.output}.out"
                    print(f"job {job.number} runs here, output in {output}", flush=True)
                    try:
                        with open(output, "a", opener=private) as out:
                            child = subprocess.Popen(
                                job.command, cwd=output.parent, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                                pass_fds=[lock], preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM))  # PR_SET_PDEATHSIG
                        job.state, job.id, job.process = "running", str(child.pid), process(child.pid)
                    except OSError as error:
                        job.end(None, error.strerror)
                    jobs.save(job)
                if job.state == "failed":
                    continue
                code = child.wait()  # after Ctrl-C the job is stopped too, and keeps the lock until it has ended
                with jobs.locked() as there:
                    job, = (other for other in there if other.number == job.number)
                    restarts += 1
                    if job.state == "running" and restarts <= MOST_RESTARTS.get(code, 0):
                        continue
                    restarts, cancelled = 0, job.state == "cancelled"
                    job.end(code if code >= 0 else None, f"signal {-code}" if code < 0 else "")
                    job.state, job.id, job.process = "cancelled" if cancelled else job.state, "", ""
                    jobs.save(job)
