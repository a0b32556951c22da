#!/usr/bin/env -S PYTHONSAFEPATH= python3
"""Measures lessons.json, from which tools/figures draws: about eight minutes on an idle machine, with the whole build.

losses         by program: mean loss of each epoch on the digits
differences    by program: largest relative difference of a step's loss from one process, on Fashion-MNIST, for the steps below each of `ends`
step_ms        by program and number of layers of 64: the `step` of each launch, with two ranks over Gloo
ladder         what `tools/exercise --time --solution` keeps
"""

import argparse
import datetime
import importlib.machinery
import importlib.util
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.dont_write_bytecode = True  # beside tools/exercise
sys.path.insert(0, f"{ROOT}/tools")
loader = importlib.machinery.SourceFileLoader("exercise", f"{ROOT}/tools/exercise")
exercise = importlib.util.module_from_spec(importlib.util.spec_from_loader("exercise", loader))
loader.exec_module(exercise)

BUILD = ROOT / "build"
RIGHT, WRAPPER, BY_HAND = "build/bin/01_single_gpu", "build/bin/03_ddp_spawn --nprocs 2", "build/bin/03_ddp_spawn_by_hand --nprocs 2"
LAYERS, LAUNCHES = (1, 5, 10, 20, 30), 9


def copy_of(number, folder):
    """@return the program of an exercise as the reader gets it"""
    page, folder = exercise.find(number), pathlib.Path(folder, number)
    exercise.make(page, folder)
    if errors := exercise.build(page, folder, BUILD):
        sys.exit(f"exercise {number}: got no program, expected one: {errors}")
    return f"{folder / page.program} --nprocs 2"


def run(program, words):
    """@return `step` in ms, and each step's loss, the mean of the ranks"""
    facts = exercise.run(f"{program} {words} --quiet --metrics sgd.jsonl", None, None, BUILD)
    losses = facts.get("sgd_losses", [math.nan])
    if facts["exit"] != "0" and "weights differ" not in facts["output"] or not all(map(math.isfinite, losses)):
        sys.exit(f"{program}: got exit code {facts['exit']}, expected 0 and finite losses: {facts['output']}")
    return facts.get("step"), losses


def measure(folder):
    wrong = {f"no {lacks}": copy_of(number, folder) for lacks, number in (("broadcast", "02"), ("all-reduce", "03"), ("set_epoch", "04"))}
    # With two ranks and SGD, the sum of the gradients is their mean at twice the learning rate.
    wrong["sum, not mean"] = f"{BY_HAND} --lr 0.2"

    losses = {}
    for name, program in {"right": RIGHT, **wrong}.items():
        values = run(program, "20 99 --dataset digits --global-batch 64")[1]
        steps = len(values) // 20
        losses[name] = [statistics.mean(values[epoch * steps:(epoch + 1) * steps]) for epoch in range(20)]

    fashion = "3 99 --dataset fashion-mnist --global-batch 64"
    alone = run(RIGHT, fashion)[1]
    ends = sorted({*(round(10 ** (n / 6)) for n in range(21)), len(alone)})
    differences = {}
    for name, program in {"two ranks": WRAPPER, "two threads": f"{RIGHT} --threads 2", **wrong}.items():
        relative = [abs(loss / expected - 1) for loss, expected in zip(run(program, fashion)[1], alone, strict=True)]
        differences[name] = [max(relative[begin:end]) for begin, end in zip([0, *ends], ends)]

    step_ms = {name: {layers: [] for layers in LAYERS} for name in ("by hand", "wrapper")}
    for _ in range(LAUNCHES):
        for layers in LAYERS:
            for name, program in ("by hand", BY_HAND), ("wrapper", WRAPPER):
                step_ms[name][layers].append(float(run(program, f"3 99 --backend gloo --layers {','.join(['64'] * (layers + 1))}")[0]))
    subprocess.run([ROOT / "tools/exercise", "--time", "--solution"], check=True)
    ladder = json.loads((BUILD / "exercise/times.json").read_text())
    return {"date": f"{datetime.date.today()}", "losses": losses, "differences": {"ends": ends, **differences}, "step_ms": step_ms, "ladder": ladder}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as name:
        measured = measure(name)
    (ROOT / "results/lessons.json").write_text(json.dumps(measured, indent=1) + "\n")
