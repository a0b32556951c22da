"""Slurm, whose jobs run slurm/job.sh."""

import os
import re
import shlex

from .scheduler import JOB_SH, Scheduler


class Slurm(Scheduler):
    name, command, remove = "slurm", "sbatch", "scancel"
    starts_tasks = True
    unused = {"memory_gpus": "Slurm cannot be asked for GPU memory"}
    # In all other states, which depend on Slurm's version, the job is running or will run.
    STATES = {"PENDING": "pending", "CONFIGURING": "pending", "REQUEUED": "pending", "REQUEUE_HOLD": "held", "SPECIAL_EXIT": "held",
              "COMPLETED": "done", "CANCELLED": "cancelled", "": "lost"} | dict.fromkeys(
                  ("FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "LAUNCH_FAILED", "REVOKED"), "failed")

    def describe(self, jobs, job):
        r = job.settings
        options = {"job-name": job.name, "comment": job.tag, "chdir": jobs.folder(job), "output": "job-%j.out", "nodes": r["nodes"],
                   "ntasks-per-node": job.per_node, "cpus-per-task": max(1, r["num_cpus"] // job.per_node),
                   "mem": r["memory_cpus"] and f"{r['memory_cpus']}M", "gpus-per-node": r["num_gpus"] or None, "time": r["time"],
                   "account": r["account"], "partition": r["partition"]}
        given = [f"--{name}={value}" for name, value in options.items() if value is not None]
        return shlex.join([self.command, "--parsable", *given, str(JOB_SH), *job.command]) + "\n"

    def start(self, jobs, job):
        return self.call(jobs, *shlex.split(self.describe(jobs, job)))

    def queue(self, jobs):
        """This user's jobs that the controller still knows, ended jobs included: id, state, reason, comment."""
        lines = self.ask(jobs, "squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%r|%k")
        return [row for row in (line.strip().split("|", 3) for line in lines) if len(row) == 4]

    def tags(self, jobs):
        return {row[3]: row[0] for row in self.queue(jobs)}

    def state(self, jobs, active):
        queue = {row[0]: row for row in self.queue(jobs)}
        for job in active:
            _, word, reason, _ = queue.get(job.id, ("", "", "", ""))
            job.state = self.STATES.get(word, "running")
            job.reason = f"Slurm says {word}" if job.state == "failed" else ""
            if job.state in ("pending", "held") and reason != "None":
                job.state, job.reason = "held" if reason.startswith("JobHeld") else job.state, reason
            for file in jobs.files(job, ".out") if word in ("", "FAILED", "COMPLETED") else ():
                # job.sh prints the exit code at the end, for when Slurm has forgotten the job. A site's epilogue may follow.
                body = re.escape(os.path.basename(job.command[0]))
                if said := re.findall(rf"^{body}: exit code (\d+)$".encode(), file.read_bytes(), re.M):
                    job.end(int(said[-1]))
