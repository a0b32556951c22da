#!/usr/bin/env python3
"""The steps of real stages, and what bench makes of them: the phases of every step add up to it, and those of a run to its median step.

usage: real_document.py BIN_DIR DOCUMENT

Writes DOCUMENT, a report of these stages. Exit codes: 0 all good, 1 not, 2 usage.
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile

PHASES = ("data", "forward", "backward", "exposed_comm", "optimizer")
PROGRAMS = {"01_single_gpu": 1, "02_data_parallel": 2, "03_ddp_spawn": 2, "peer_c10d": 2}  # with so many replicas or ranks
KNOWS_NO_WAITS = "c10d"  # how long it waits is part of its backward


def steps_of(program, folder):
    """The rows that the program writes, all but the summary."""
    metrics = pathlib.Path(folder) / f"{program.name}.jsonl"
    replicas = [] if PROGRAMS[program.name] == 1 else ["--nprocs", str(PROGRAMS[program.name])]
    subprocess.run([program, "3", "3", "--dataset", "digits", *replicas, "--device", "cpu", "--resume", "never", "--quiet",
                    "--snapshot", "snapshot", "--metrics", metrics], cwd=folder, check=True, timeout=120)
    return [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()[:-1]]


def check_steps(program, rows):
    if not rows:
        yield f"{program}: wrote no step"
    for row in rows:
        phases = [row[f"{phase}_ms"] for phase in PHASES]
        unknown = [phase for phase, ms in zip(PHASES, phases) if ms is None]
        if unknown != (["exposed_comm"] if KNOWS_NO_WAITS in program else []):
            yield f"{program}: does not know {unknown} of {row}"
        elif not math.isclose(sum(ms or 0 for ms in phases), row["step_ms"], rel_tol=1e-6, abs_tol=1e-6):
            yield f"{program}: the phases add up to {sum(ms or 0 for ms in phases)}: {row}"


def check_run(run):
    phases = run["phases_ms"]
    unknown = [phase for phase, ms in phases.items() if ms is None]
    if unknown != (["exposed_comm", "imbalance"] if run["stage"] == KNOWS_NO_WAITS else []):
        yield f"{run['name']}: its {unknown} is null"
    total, median = sum(ms or 0 for ms in phases.values()), run["step_ms"]["median"]
    # Where the waits are not known the rest is not stretched, and ranks that begin a step apart make it a little longer than its parts.
    if not math.isclose(total, median, rel_tol=0.1 if unknown else 1e-6):
        yield f"{run['name']}: its phases add up to {total}, its median step is {median}"


def main(arguments):
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    bin_dir, document = (pathlib.Path(argument) for argument in arguments)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for program in PROGRAMS:
            found += check_steps(program, steps_of(bin_dir.resolve() / program, folder))
    subprocess.run([bin_dir / "bench", "--stages", "01,02,03", "--peers", "c10d", "--models", "T,digits,M", "--world-sizes", "1,2",
                    "--launchers", "spawn", "--repetitions", "2", "--steps", "30", "--quiet-wait", "0", "--json", document], check=True)
    runs = json.loads(document.read_text(encoding="utf-8"))["ddp_scaling"]["runs"]
    stages = {run["stage"] for run in runs}
    if stages != {"01_single_gpu", "02_data_parallel", "03_ddp_spawn", KNOWS_NO_WAITS}:
        found.append(f"the document is of {sorted(stages)}")
    for run in runs:
        found += check_run(run)
    for complaint in found[:20]:
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
