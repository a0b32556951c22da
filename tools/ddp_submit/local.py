"""This machine: runs the jobs of an out_dir in the foreground, one after the other."""

import contextlib
import ctypes
import shlex
import signal
import subprocess

from .jobs import flock
from .scheduler import MOST_RESTARTS, Scheduler
from .settings import private


def wait(jobs, number, child):
    """Waits for the child, and ends it if its job is cancelled. @return its exit code"""
    is_cancelled = False
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(0.2)
        if not is_cancelled and any(job.number == number and job.state == "cancelled" for job in jobs.load()):
            is_cancelled = True
            child.terminate()
            child.send_signal(signal.SIGCONT)  # it may be suspended


class Local(Scheduler):
    """If submit ends before a job, the job is new again. Its jobs have no ids, so that `cancel` only says it in their files."""

    name, output, several_nodes = "local", "local", False

    def describe(self, _jobs, job):
        return shlex.join(job.command) + "\n"

    def submit(self, jobs, new):
        """They wait for `run`."""

    def state(self, jobs, active):
        with contextlib.suppress(BlockingIOError), flock(jobs.out_dir / ".running", wait=False):  # nobody runs them
            for job in active:
                job.state = "new"

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
                        job.state = "running"
                    except OSError as error:
                        job.end(None, error.strerror)
                    jobs.save(job)
                if job.state == "failed":
                    continue
                code = wait(jobs, job.number, child)  # after Ctrl-C the job is stopped too, and keeps the lock until it has ended
                with jobs.locked() as there:
                    job, = (other for other in there if other.number == job.number)
                    restarts += 1
                    if job.state == "running" and restarts <= MOST_RESTARTS.get(code, 0):
                        continue
                    restarts, cancelled = 0, job.state == "cancelled"
                    job.end(code if code >= 0 else None, f"signal {-code}" if code < 0 else "")
                    job.state = "cancelled" if cancelled else job.state
                    jobs.save(job)
