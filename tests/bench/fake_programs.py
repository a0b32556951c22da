#!/usr/bin/env python3
"""Made-up programs for bench. The name by which this script is started picks the program.

A step takes 1 ms with one rank and 1.25 ms with more, of which 0.15 ms are communication; rank 1 ends 0.05 ms after rank 0.
Each further call with the same words takes 0.01 ms longer without communication, and its limit is twice the one before.
NAME.behaviour beside it, if there is one, is run first and may change any of that. CALLS gets a line for each start.
"""
import json
import os
import sys
import time

here, name = os.path.split(os.path.abspath(sys.argv[0]))
arguments = sys.argv[1:]
# A single write, so that lines of two processes do not mix.
with open(os.path.join(here, "CALLS"), "a+") as calls:
    call = name + " " + " ".join(arguments) + "\n"
    calls.write(call)
    calls.seek(0)
    calls_before = calls.readlines().count(call) - 1


def option(text, otherwise=None):
    return arguments[arguments.index(text) + 1] if text in arguments else otherwise


def launch(ranks, program):
    os.environ["WORLD_SIZE"] = str(ranks)
    os.execv(program[0], program)


def after_options(start):
    """First argument that is no option."""
    return next(i for i in range(start, len(arguments)) if not arguments[i].startswith("-"))


if arguments == ["--version"]:
    print("mpirun (Open MPI) 4.1.4" if not os.path.exists(os.path.join(here, "is_mpich")) else "HYDRA build details")
    sys.exit()
if name == "torchrun":  # --standalone --nproc_per_node=N --no-python PROGRAM ...
    open(os.path.join(os.environ["TMPDIR"], "torchelastic"), "w").close()
    launch(arguments[1].partition("=")[2], arguments[after_options(0):])
if name == "mpirun":  # ... -np N PROGRAM ...
    at = arguments.index("-np")
    launch(arguments[at + 1], arguments[at + 2:])
if name == "srun":  # --ntasks=N ... PROGRAM ...
    launch(next(a for a in arguments if a.startswith("--ntasks=")).partition("=")[2], arguments[after_options(0):])
if name == "install.sh":
    if os.path.exists(os.path.join(here, "no_network")):
        sys.exit("install.sh: no network")
    print("installing", file=sys.stderr)
    print(sys.executable)
    sys.exit()
if name == "bench_micro":
    pieces = {"data": 0.01, "forward": 0.3, "backward": 0.5, "update": 0.1}
    if int(option("--nprocs")) > 1:
        pieces["all_reduce"] = 0.2
    out = next(a for a in arguments if a.startswith("--benchmark_out=")).partition("=")[2]
    with open(out, "w") as file:
        json.dump({"context": {}, "benchmarks": [
            {"name": piece + "/manual_time", "run_name": piece + "/manual_time", "real_time": ms, "time_unit": "ms"}
            for piece, ms in pieces.items()] + [
            {"name": "limit", "run_name": "limit", "real_time": 0.2 * 2**calls_before, "time_unit": "ms"}]}, file)
    sys.exit()

ranks = int(option("--nprocs", os.environ.get("WORLD_SIZE", 1)))
if os.environ.get("DDP_LAUNCHER") and os.environ["RANK"] != "0":  # of a peer: rank 0 writes for all
    sys.exit()
if name.startswith("02") or option("--variant") in ("mirrored", "jit"):
    ranks = 1  # processes
step_ms = 1.0 if ranks == 1 else 1.1 + 0.01 * calls_before if "--no-communication" in arguments else 1.25
moved = 0.5
peak_rss_mib = 100.0
global_batch = int(option("--global-batch"))
steps = int(next(a for a in arguments if a.isdigit())) * int(option("--dataset-size")) // global_batch
behaviour = os.path.join(here, name + ".behaviour")
if os.path.exists(behaviour):
    with open(behaviour) as file:
        exec(file.read())
begin_ns = time.monotonic_ns() - 2_000_000
with open(option("--metrics"), "w") as metrics:
    for step in range(steps):
        for rank in range(ranks):
            late_ms = 0.05 if rank == 1 else 0
            print(json.dumps({"rank": rank, "epoch": 0, "step": step, "step_ms": step_ms, "loss": 0.5,
                              "end_ns": begin_ns + round(1e6 * ((step + 1) * step_ms + late_ms))}), file=metrics)
    summary = {"global_batch": global_batch, "moved": moved, "peak_rss_mib": [peak_rss_mib] * ranks}
    print(json.dumps({"summary": summary}), file=metrics)
