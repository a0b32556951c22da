"""Submits a program with the settings of a YAML file to HTCondor or Slurm, or runs it here, and keeps track of the jobs.

    tools/submit --settings-file condor/settings.yaml [--scheduler condor|slurm|local] [--dry-run] [--sweep KEY=V1,V2 ...] [-- ARGUMENTS]
    tools/submit list|status|logs|cancel|resubmit [JOB ...] [OUT_DIR]

Each job is a file, out_dir/job-N.json, and runs in a folder of its own beside that file. The file is on the disk before submit passes
the job to the scheduler, and holds a tag that the scheduler gets too. If submit is killed in between, the next call looks for the tag
in the scheduler. If the tag is there, the job was submitted; else the next call submits it.
"""

import argparse
import contextlib
import difflib
import hashlib
import json
import os
import pathlib
import re
import shutil
import sys

from command_line import local_path, one_line

from .condor import Condor
from .jobs import OVER, Jobs
from .local import Local
from .scheduler import make_jobs
from .settings import COUNT, FAILED, KEYS, OVERRIDES, USAGE, Failure, read_settings, refuse, say
from .slurm import Slurm

SCHEDULERS = {scheduler.name: scheduler for scheduler in (Condor(), Slurm(), Local())}


def submit(options):
    settings = read_settings(options.settings_file)
    settings |= {name: KEYS[name](f"--{name}", text, "") for name in OVERRIDES if (text := getattr(options, name)) is not None}
    if options.arguments is not None:
        settings["arguments"] = options.arguments
    installed = [name for name, scheduler in SCHEDULERS.items() if shutil.which(scheduler.command)]
    scheduler = SCHEDULERS[options.scheduler or [*installed, *SCHEDULERS][0]]
    new = make_jobs(settings, scheduler, options.sweep)
    jobs = Jobs(settings["out_dir"], SCHEDULERS)
    request = hashlib.sha256(json.dumps([vars(job) for job in new]).encode()).hexdigest()[:16]
    folders = {os.getcwd(), os.path.dirname(os.path.abspath(options.settings_file))}
    for word in sorted({word for text in (*settings["arguments"], *options.sweep) for word in re.split("[=,]", text)} - {""}):
        if not os.path.isabs(word) and any(os.path.exists(os.path.join(folder, word)) for folder in folders):
            say(f"note: {word}: the program looks for it in its job's folder below {jobs.out_dir}, not here; give the full path")
    texts = [scheduler.describe(jobs, job) for job in new]  # refuses texts that the scheduler cannot have
    if options.dry_run:
        return print("".join(texts), end="")
    if not os.path.isfile(settings["script_path"]) or not os.access(new[0].command[0], os.X_OK):
        refuse("script_path", settings["script_path"], "a program that is executable (chmod +x), or a Python script *.py")
    if scheduler.command and scheduler.name not in installed:
        refuse("PATH", f"no {scheduler.command}", f"it, or --scheduler {' or '.join(name for name in SCHEDULERS if name != scheduler.name)}")
    try:
        jobs.out_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        refuse("out_dir", jobs.out_dir, f"a folder that is there or can be made ({error.strerror})")
    with jobs.locked() as there:
        jobs.add(new, request, there)
        jobs.refresh(there)
    return jobs.finish([job.number for job in new])


def select(options, there):
    if unknown := set(options.jobs) - {job.number for job in there}:
        refuse("JOB", min(unknown), "the number of a job of this out_dir")
    return [job for job in there if not options.jobs or job.number in options.jobs]


def show(options, jobs):
    if options.action == "status":
        with jobs.locked() as there, contextlib.redirect_stdout(sys.stderr):
            jobs.refresh(there)
    chosen = select(options, jobs.load())
    if options.json:
        return print(json.dumps([vars(job) | {"folder": str(jobs.folder(job))} for job in chosen], indent=1))
    row = "{:>4}  {:9}  {:>4}  {:>8}  {:>7}  {:30}  {}".format
    print(row("job", "state", "exit", "id", "attempt", "name", "reason"))
    for job in chosen:
        print(one_line(row(job.number, job.state, "" if job.exit_code is None else job.exit_code, job.id, job.attempt, job.name, job.reason).rstrip()))


def logs(options, jobs):
    for job in select(options, jobs.load()):
        for file in jobs.files(job, ".out", ".err"):
            print(f"==> {one_line(file)}", *map(one_line, file.read_text(errors="replace").splitlines()[-options.lines:]), sep="\n")


def cancel(options, jobs):
    with jobs.locked() as there:
        chosen = select(options, there)
        jobs.refresh(there)
        jobs.cancel(chosen)


def resubmit(options, jobs):
    with jobs.locked() as there:
        jobs.refresh(there)
        chosen = select(options, there)
        left = [job for job in chosen if job.left]
        again = [job for job in chosen if job.state in (OVER if options.jobs else ("failed", "lost"))]
        for job in again:
            job.renew()
            jobs.save(job)
        jobs.refresh(again)
    if not again and not left:
        print("nothing to resubmit")
    return jobs.finish([job.number for job in again + left])


ACTIONS = {"list": show, "status": show, "logs": logs, "cancel": cancel, "resubmit": resubmit}


class Parser(argparse.ArgumentParser):
    def error(self, message):
        option = re.search(r"unrecognized arguments: (--[\w-]+)", message)
        near = difflib.get_close_matches(option[1], self._option_string_actions, 1) if option else []
        raise Failure(USAGE, f"{message}; " + (f"did you mean {near[0]}?" if near else f"{self.prog} --help tells more"))


def track(action, argv):
    parser = Parser(prog=f"submit {action}", allow_abbrev=False)
    parser.add_argument("words", nargs="*", metavar="JOB|OUT_DIR", help="numbers of jobs, and their out_dir (default: this folder)")
    parser.add_argument("--settings-file", type=local_path, metavar="FILE", help="settings file with the out_dir")
    if action in ("list", "status"):
        parser.add_argument("--json", action="store_true", help="print all fields as JSON")
    elif action == "logs":
        parser.add_argument("--lines", type=lambda text: COUNT("--lines", text, ""), default=20, metavar="N", help="number of last lines to print of each file (default 20)")
    else:
        parser.add_argument("--all" if action == "cancel" else "--failed", action="store_true", dest="all", help="choose jobs without numbers")
    options, is_number = parser.parse_args(argv), re.compile("[0-9]{1,9}").fullmatch
    options.action, options.jobs = action, [int(word) for word in options.words if is_number(word)]
    if action in ("cancel", "resubmit") and bool(options.jobs) == options.all:
        refuse(action, "numbers and all" if options.all else "no job", f"JOB ... or --{'all' if action == 'cancel' else 'failed'}")
    folders = [word for word in options.words if not is_number(word)]
    folders += [read_settings(options.settings_file)["out_dir"]] if options.settings_file else []
    if len(folders) > 1:
        refuse("out_dir", " and ".join(folders), "one folder")
    out_dir = pathlib.Path(*folders).absolute()
    if not os.path.isdir(out_dir):
        refuse("out_dir", out_dir, "a folder; it is made when the first job is submitted to it")
    if not options.jobs and not any(out_dir.glob("job-[0-9]*.json")):
        say(f"note: no job was submitted to {out_dir}")
        return print("[]\n" if getattr(options, "json", False) else "", end="")
    return ACTIONS[action](options, Jobs(out_dir, SCHEDULERS))


def main(argv):
    """Underscores and dashes in the names of options are equal. Words after -- go to the program."""
    end = argv.index("--") if "--" in argv else len(argv)
    arguments = argv[end + 1:] if end < len(argv) else None
    argv = [re.sub(r"^--[\w-]+", lambda name: name[0].replace("_", "-"), word) for word in argv[:end]]
    if argv and not argv[0].startswith("-"):
        if argv[0] not in ACTIONS:
            refuse("command", argv[0], f"{', '.join(ACTIONS)} or --settings-file FILE")
        return track(argv[0], argv[1:])
    parser = Parser(prog="submit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--settings-file", type=local_path, metavar="FILE", required=True, help="settings in YAML, as condor/settings.yaml")
    parser.add_argument("--scheduler", choices=SCHEDULERS, help="default: condor, or slurm if only Slurm is installed")
    parser.add_argument("--dry-run", action="store_true", help="print the submissions, and change nothing")
    parser.add_argument("--sweep", metavar="KEY=V1,V2", nargs="+", action="extend", default=[], help="a job for each combination")
    for name in OVERRIDES:
        parser.add_argument(f"--{name}", help=f"replaces {name} of the settings file")
    return submit(argparse.Namespace(**vars(parser.parse_args(argv)), arguments=arguments))


def run(argv):
    """Runs a command line. @return the exit code; an error is one line"""
    try:
        return main(argv) or 0
    except (Failure, OSError, UnicodeError) as error:
        say(error)
        return getattr(error, "code", FAILED)
    except KeyboardInterrupt:
        return 130
