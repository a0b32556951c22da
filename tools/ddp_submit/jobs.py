"""The jobs of an out_dir, which are files there."""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import re
import signal

from .settings import FAILED, KEYS, last_word, owned, private, refuse, say, write

OVER = ("done", "failed", "cancelled", "lost")


@contextlib.contextmanager
def flock(file, wait=True):
    """Yields the file's descriptor. Without waiting, BlockingIOError if another process has the lock."""
    owned(file.parent, os.stat)
    signal.signal(signal.SIGALRM, lambda *_: say(f"waiting for another submit in {file.parent}"))
    with open(file, "a", opener=private) as stream:
        signal.alarm(1)
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError as error:
            refuse(file, error.strerror, "a file system that has locks (flock)")
        finally:
            signal.alarm(0)
        yield stream.fileno()


@dataclasses.dataclass
class Job:
    number: int
    name: str
    scheduler: str
    command: list
    per_node: int  # processes that the scheduler starts on each node
    settings: dict  # by the keys' last words
    submission: str = ""  # the same for all jobs of a call
    tag: str = ""  # the scheduler has it too
    state: str = "new"  # "new" until the scheduler has it; then "pending", "running" or "held"; at last a state in OVER
    id: str = ""  # id in the scheduler; empty if it runs here
    exit_code: int | None = None
    reason: str = ""
    attempt: int = 1
    earlier_ids: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        if not (all(isinstance(getattr(self, field.name), field.type) for field in dataclasses.fields(self))
                and all(last_word(key) in self.settings for key in KEYS)
                and self.command and all(isinstance(word, str) for word in self.command + self.earlier_ids)
                and re.fullmatch(r"[\w.-]*/([1-9][0-9]*)?", f"{self.name}/{self.id}", re.A)):
            raise ValueError

    @property
    def left(self):
        """Not submitted yet, or it runs here and its submit may have ended: Local.run waits until that is known."""
        return self.state == "new" or (self.state == "running" and not self.id)

    def end(self, code, reason=""):
        self.state, self.exit_code, self.reason = "done" if code == 0 else "failed", code, reason

    def renew(self):
        if self.id:  # without an id the scheduler may have it under its tag
            self.earlier_ids.append(self.id)
            self.tag = os.urandom(12).hex()
        self.attempt += 1
        self.state, self.id, self.exit_code, self.reason = "new", "", None, ""


class Jobs:
    """Changes need the lock."""

    def __init__(self, out_dir, schedulers):
        self.out_dir, self.schedulers, self.lock = pathlib.Path(out_dir), schedulers, None

    @contextlib.contextmanager
    def locked(self):
        with flock(self.out_dir / ".lock") as self.lock:
            yield self.load()

    def load(self):
        owned(self.out_dir, os.stat)
        jobs = []
        for file in [owned(path) for path in self.out_dir.glob("job-[0-9]*")]:  # jobs, and their folders
            if re.fullmatch(r"job-\d+\.json", file.name):
                try:
                    job = Job(**json.loads(file.read_text()))
                    if file.name != f"job-{job.number}.json" or job.scheduler not in self.schedulers:
                        raise ValueError
                except (ValueError, TypeError, RecursionError):
                    refuse(file, "something else", "a job as submit writes it")
                jobs.append(job)
        return sorted(jobs, key=lambda job: job.number)

    def save(self, job):
        """Writes the job's file atomically."""
        temporary = self.out_dir / f".job-{job.number}.tmp"
        write(temporary, json.dumps(vars(job), indent=1))
        os.replace(temporary, self.out_dir / f"job-{job.number}.json")

    def folder(self, job):
        return self.out_dir / f"job-{job.number}-{job.name}"

    def make_folder(self, job):
        self.folder(job).mkdir(mode=0o700, exist_ok=True)
        return owned(self.folder(job))

    def files(self, job, *endings):
        """Files of the job's output, without files of earlier attempts, which have other ids in their names."""
        folder, name = self.folder(job), self.schedulers[job.scheduler].output or job.id or "[0-9]*"
        # A scheduler may let a group write these files. Nobody else gets to them in a folder that is shut.
        others = 0o022 if folder.exists() and owned(folder).stat().st_mode & 0o011 else 0
        return [owned(file, others=others) for file in sorted(folder.glob(f"job-{name}.*"))
                if file.suffix in endings and not file.name.startswith(tuple(f"job-{id}." for id in job.earlier_ids))]

    def add(self, new, request, there):
        """Writes new jobs. If a submit with the same `request` was killed, its jobs go on instead."""
        left = [job.submission for job in there if job.left and job.submission.startswith(request)]
        submission = left[0] if left else request + os.urandom(12).hex()
        have = {job.number for job in there}
        first = min((job.number for job in there if job.submission == submission), default=max(have, default=-1) + 1)
        for number, job in enumerate(new, first):
            job.number, job.submission, job.tag = number, submission, os.urandom(12).hex()
            if number not in have:
                self.save(job)
                there.append(job)

    def by_scheduler(self, jobs):
        return [(scheduler, mine) for name, scheduler in self.schedulers.items() if (mine := [job for job in jobs if job.scheduler == name])]

    def refresh(self, there):
        """Updates the jobs that are not over, then submits new jobs, also jobs that a killed submit has left."""
        for scheduler, mine in self.by_scheduler(there):
            active = [job for job in mine if job.state not in ("new", *OVER)]
            before = [dataclasses.replace(job) for job in active]
            if active:
                scheduler.state(self, active)
            for job, old in zip(active, before):
                if job != old:
                    self.save(job)
            if new := [job for job in mine if job.state == "new"]:
                scheduler.submit(self, new)

    def cancel(self, chosen):
        for scheduler, mine in self.by_scheduler([job for job in chosen if job.state not in OVER]):
            if started := [job for job in mine if job.id]:
                scheduler.cancel(self, started)
            for job in mine:
                job.state = "cancelled"
                self.save(job)

    def finish(self, numbers):
        """Runs the jobs that run here. @return submit's exit code"""
        for scheduler, mine in self.by_scheduler(self.load()):
            if any(job.number in numbers and job.state not in OVER for job in mine):
                scheduler.run(self)
        return FAILED if any(job.number in numbers and job.state in ("failed", "cancelled", "lost") for job in self.load()) else 0
