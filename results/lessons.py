#!/usr/bin/env -S PYTHONSAFEPATH= python3
"""Measures lessons.json, from which tools/figures draws: about eight minutes on an idle machine, with the whole build.

losses         by program: mean loss of each epoch on the digits
differences    by program: largest relative difference of a step's loss from one process, on Fashion-MNIST, for the steps below each of `ends`
step_ms        by program and number of layers of 64: the `step` of each launch, with two ranks over Gloo
ladder         what `tools/exercise --time --solution` keeps
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS, LAUNCHES = (1, 5, 10, 20, 30), 9


def program(name, *options):
    return [ROOT / "build/bin" / name, *options]


def exercise(number, folder):
    """@return the program of an exercise as the reader gets it"""
    folder = pathlib.Path(folder, number)
    printed = subprocess.run([ROOT / "tools/exercise", number, "--folder", folder], check=True, stdout=subprocess.PIPE, text=True).stdout
    built = next(folder.glob("03_ddp_spawn*"), None) or sys.exit(f"exercise {number}: got no program, expected one: {printed}")
    return [built, "--nprocs", "2"]


def run(command, words, folder):
    """@return what the program printed, and each step's loss, the mean of the ranks"""
    metrics = pathlib.Path(folder, "metrics.jsonl")
    metrics.unlink(missing_ok=True)
    command = [*command, *words.split(), "--quiet", "--metrics", metrics]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)
    if done.returncode and "weights differ" not in done.stderr:
        sys.exit(f"{command}: got exit code {done.returncode}, expected 0: {done.stderr}")
    losses = {}
    for row in map(json.loads, metrics.read_text().splitlines()):
        if "step" in row:
            losses.setdefault(row["step"], []).append(row["loss"])
    return done.stdout, [statistics.mean(losses[step]) for step in sorted(losses)]


def measure(folder):
    right, two_ranks = program("01_single_gpu"), program("03_ddp_spawn", "--nprocs", "2")
    wrong = {f"no {lacks}": exercise(number, folder) for lacks, number in (("broadcast", "02"), ("all-reduce", "03"), ("set_epoch", "04"))}
    # With two ranks and SGD, the sum of the gradients is their mean at twice the learning rate.
    wrong["sum, not mean"] = program("03_ddp_spawn_by_hand", "--nprocs", "2", "--lr", "0.2")

    losses = {}
    for name, command in {"right": right, **wrong}.items():
        values = run(command, "20 99 --dataset digits --global-batch 64", folder)[1]
        steps = len(values) // 20
        losses[name] = [statistics.mean(values[epoch * steps:(epoch + 1) * steps]) for epoch in range(20)]

    fashion = "3 99 --dataset fashion-mnist --global-batch 64"
    alone = run(right, fashion, folder)[1]
    ends = sorted({*(round(10 ** (n / 6)) for n in range(21)), len(alone)})
    differences = {}
    for name, command in {"two ranks": two_ranks, "two threads": [*right, "--threads", "2"], **wrong}.items():
        relative = [abs(loss / expected - 1) for loss, expected in zip(run(command, fashion, folder)[1], alone, strict=True)]
        differences[name] = [max(relative[begin:end]) for begin, end in zip([0, *ends], ends)]

    step_ms = {name: {layers: [] for layers in LAYERS} for name in ("by hand", "wrapper")}
    for _ in range(LAUNCHES):
        for layers in LAYERS:
            for name, command in ("by hand", program("03_ddp_spawn_by_hand", "--nprocs", "2")), ("wrapper", two_ranks):
                printed = run(command, f"3 99 --backend gloo --layers {','.join(['64'] * (layers + 1))}", folder)[0]
                step_ms[name][layers].append(float(re.search(r"step (\S+) ms", printed)[1]))
    subprocess.run([ROOT / "tools/exercise", "--time", "--solution"], check=True)
    ladder = json.loads((ROOT / "build/exercise/times.json").read_text())
    return {"date": f"{datetime.date.today()}", "losses": losses, "differences": {"ends": ends, **differences}, "step_ms": step_ms, "ladder": ladder}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as name:
        measured = measure(name)
    (ROOT / "results/lessons.json").write_text(json.dumps(measured, indent=1) + "\n")
