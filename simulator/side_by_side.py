#!/usr/bin/env python3
"""Simulation, prediction and measurement of one schedule side by side: the table of docs/simulator.md.

usage: side_by_side.py             rewrites the table from the report that the page names
       side_by_side.py --check     changes nothing, fails if the table is another one

The schedule is stage 03 with model M on two ranks: gradients in two buckets, as sim_buckets has them. The simulator gets alpha and beta as
the report has them fitted, and the step without communication, divided among the phases as they were in the run.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
sys.dont_write_bytecode = True

import performance_table  # noqa: E402

PAGE = ROOT / "docs/simulator.md"
PROGRAM = ROOT / "build/bin/sim_buckets"
REPORT = re.compile(r"\]\(\.\./(results/\S+\.json\.gz)\)")
TABLE = re.compile(r"^\| backend \|.*\n(?:\|.*\n)+", re.MULTILINE)
PHASES = ("data", "forward", "backward", "optimizer")
RANKS = 2
MOST_BYTES_APART = 0.01  # flat storage is padded
HEAD = "| backend | step without communication | all-reduces by the model | replayed alone | simulated | bench's prediction | measured, p10 to p90 |"


def simulated(run, model):
    """What sim_buckets does at the measured step without communication: its JSON."""
    if len(model["regimes"]) != 1 or model["world_sizes"] != [RANKS]:
        raise SystemExit(f"side_by_side.py: {run['name']}: got a model of {model['world_sizes']} ranks in {len(model['regimes'])} regimes, "
                         f"expected one of {RANKS} ranks alone")
    regime, phases = model["regimes"][0], run["phases_ms"]
    share_us = 1000 * run["no_comm_step_ms"] / sum(phases[phase] for phase in PHASES)
    # At one world size bench fits an all-reduce; a ring of n has 2 (n - 1) messages, each of an nth of the bytes.
    messages = 2 * (RANKS - 1)
    command = [PROGRAM, "--nprocs", RANKS, "--alpha-us", regime["alpha_us"] / messages, "--beta-us-per-mib",
               regime["beta_us_per_mib"] * RANKS / messages]
    for phase in PHASES:
        command += ["--set", f"{phase}_us={phases[phase] * share_us}"]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "run.json"
        # Its own targets are those of the page's round numbers: missed, exit code 1.
        result = subprocess.run([*map(str, command), "--json", path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        if not path.exists():
            raise SystemExit(f"side_by_side.py: {PROGRAM.name} wrote nothing: {result.stderr}")
        document = json.loads(path.read_text())
    spans, sent = document["ranks"][0]["communication"], run["comm"]["bucket_bytes"]
    if len(spans) != len(sent) or abs(document["ranks"][0]["sent_bytes"] / sum(sent) - 1) > MOST_BYTES_APART:
        raise SystemExit(f"side_by_side.py: {PROGRAM.name} sends {document['ranks'][0]['sent_bytes']:.0f} bytes in {len(spans)} all-reduces, "
                         f"the run {sum(sent):.0f} in {len(sent)}")
    return document


def table(report):
    lines = [HEAD, "|---" * (HEAD.count("|") - 1) + "|"]
    models = {model["backend"]: model for model in report["communication_models"]}
    for backend in "shm", "gloo":
        run = next(run for run in report["runs"] if run["name"] == f"M/weak/03_ddp_spawn/spawn/{backend}/ranks:{RANKS}")
        document = simulated(run, models[backend])
        by_model_ms = sum(span["end_us"] - span["begin_us"] for span in document["ranks"][0]["communication"]) / 1000
        prediction = run["predicted_step_ms"]
        step = run["step_ms"]
        lines.append(f"| {backend} | {run['no_comm_step_ms']:.2f} ms | {by_model_ms:.2f} ms | {run['comm']['alone_ms']:.2f} ms | "
                     f"{document['step_us'] / 1000:.2f} ms | {'none' if prediction is None else f'{prediction:.2f} ms'} | "
                     f"{step['median']:.2f} ms, {step['p10']:.2f} to {step['p90']:.2f} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if the table is another one")
    is_check = parser.parse_args().check
    page = PAGE.read_text()
    named, tables = REPORT.findall(page), TABLE.findall(page)
    if len(named) != 1 or len(tables) != 1:
        raise SystemExit(f"side_by_side.py: {PAGE.name} names {len(named)} reports and has {len(tables)} tables '| backend | ...', expected one of each")
    written = table(performance_table.load(ROOT / named[0])["ddp_scaling"])
    if not is_check:
        PAGE.write_text(page.replace(tables[0], written))
    elif tables[0] != written:
        print(f"side_by_side.py: the table of {PAGE.name} is not what {named[0]} gives; run simulator/side_by_side.py. Expected:\n{written}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
