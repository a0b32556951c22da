"""HTCondor."""

import re

from .scheduler import MOST_RESTARTS, Scheduler, last_line
from .settings import refuse, write


def seconds(time):
    """Seconds of a time in Slurm's forms: MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS."""
    days, _, clock = time.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    parts = [0] * (not days and len(parts) < 3) + parts + [0, 0]
    return (int(days or 0) * 24 + parts[0]) * 3600 + parts[1] * 60 + parts[2]


def condor_text(text):
    """Escapes text for HTCondor, which replaces $(NAME) and $$(NAME), and has no spelling for a line break or $(DOLLAR)."""
    if re.search(r"[\x00-\x08\x0a-\x1f\x7f]|(?<!\$)(\$\$)*\$\(dollar\)", text, re.I):
        refuse("text for HTCondor", f'"{text}"', "one line without $(DOLLAR)")
    return re.sub(r"\$\$?", lambda dollars: "$$(DOLLARDOLLAR)" if dollars[0] == "$$" else "$(DOLLAR)", text)


class Condor(Scheduler):
    name, command, remove = "condor", "condor_submit", "condor_rm"
    EVENTS = {"000": "pending", "001": "running", "004": "pending", "009": "cancelled", "012": "held", "013": "pending"}

    def describe(self, jobs, job):
        r, parallel = job.settings, job.settings["nodes"] > 1
        share = job.per_node if parallel else 1  # requests are per slot
        node = "$(Node)." if parallel else ""
        words = ["'" + condor_text(word).replace("'", "''").replace('"', '""') + "'" for word in job.command[1:]]
        again = " || ".join(f"(ExitCode =?= {code} && NumJobStarts <= {most})" for code, most in MOST_RESTARTS.items())
        lines = {
            "universe": "parallel" if parallel else "vanilla",
            "executable": condor_text(job.command[0]), "arguments": f'"{" ".join(words)}"',
            "initialdir": condor_text(str(jobs.folder(job))), "output": f"job-$(ClusterId).{node}out",
            "error": f"job-$(ClusterId).{node}err", "log": "job-$(ClusterId).log",
            # Program, data and folder stay on this machine's file systems: nodes must see them.
            "transfer_executable": "False", "should_transfer_files": "NO",
            "machine_count": r["nodes"] * job.per_node if parallel else None,
            # Processes of the parallel universe meet through a file of this name, which is new for each start.
            "environment": '"DDP_JOB_ID=$(ClusterId).$$([NumJobStarts])"' if parallel else None,
            # Else the end of the first process would end the other processes.
            "+ParallelShutdownPolicy": '"WAIT_FOR_ALL"' if parallel else None,
            "request_cpus": max(1, r["num_cpus"] // share), "request_memory": r["memory_cpus"] and -(-r["memory_cpus"] // share),
            "request_gpus": r["num_gpus"] // share or None, "gpus_minimum_memory": r["memory_gpus"] if r["num_gpus"] else None,
            "allowed_execute_duration": r["time"] and seconds(r["time"]), "accounting_group": r["account"], "+Bid": r["bid"],
            "on_exit_remove": f"!({again})", "batch_name": job.name, "+SubmitTag": f'"{job.tag}"', "notification": "Never",
        }
        given = [f"{key} = {value}" for key, value in lines.items() if value is not None]
        return "\n".join([f"# Job {job.number}, written by submit.", *given, "queue\n"])

    def start(self, jobs, job):
        write(file := jobs.out_dir / "submission_file.sub", self.describe(jobs, job))
        return self.call(jobs, self.command, "-terse", str(file))

    def tags(self, jobs):
        return dict(line.split(" ", 1) for line in self.ask(jobs, "condor_q", "-af", "SubmitTag", "ClusterId"))

    def state(self, jobs, active):
        """Updates states from each job's log, which is there even if HTCondor gives no answer."""
        for job in active:
            for event in "".join(file.read_text(errors="replace") for file in jobs.files(job, ".log")).split("\n...\n")[:-1]:
                value, ended_by = re.search(r"\(return value (\d+)\)", event), re.search(r"\(signal (\d+)\)", event)
                if event[:3] == "005":
                    job.end(int(value[1]) if value else None, f"signal {ended_by[1]}" if ended_by else "")
                elif event[:3] in self.EVENTS:
                    job.state = self.EVENTS[event[:3]]
                    job.reason = last_line(event.partition("\n")[2].partition("\n")[0]).strip() if job.state == "held" else ""
