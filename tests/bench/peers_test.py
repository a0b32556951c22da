#!/usr/bin/env python3
"""Tests bench/peers: a peer trains like the stages, its metrics keep the contract, and it ends cleanly.

usage: peers_test.py BIN_DIR SOURCE_DIR [--frameworks]
With --frameworks the peers that install.sh has installed beside the project's environment.
Exit code 0 if every check holds, else 1. The checks run two at a time: most of their time is importing a framework.
"""

import functools
import importlib.metadata
import json
import math
import os
import pathlib
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.scratch import check, run_cases  # noqa: E402

BIN_DIR, SOURCE_DIR = map(pathlib.Path, sys.argv[1:3])
PEERS = SOURCE_DIR / "bench" / "peers"


def peer(name, python=sys.executable):
    return [python, "-B", str(PEERS / f"{name}.py")]


PYTORCH = peer("pytorch")
START = [BIN_DIR / "bench", "--start-ranks"]
TORCHRUN = [sys.executable, "-E", str(pathlib.Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc_per_node"]
TIMEOUT_S = 480  # for a command, on a busy machine
TOLERANCE = 1e-4
GLOBAL_BATCH = 64
EPOCHS = 4
# S ends its epochs with a step of one sample, so one of two ranks has no sample.
WORKLOADS = {"T": ["--layers", "20,1", "--dataset-size", "640"],
             "S": ["--layers", "64,128,128,10", "--dataset-size", str(8 * GLOBAL_BATCH + 1), "--lr", "0.05"]}


def run(*command, timeout_s=TIMEOUT_S, **more):
    return subprocess.run(command, timeout=timeout_s, capture_output=True, text=True, stdin=subprocess.DEVNULL, **more)


def arguments(workload, folder):
    """Options in bench's order."""
    return [str(EPOCHS), str(EPOCHS), "--global-batch", str(GLOBAL_BATCH), *WORKLOADS[workload], "--seed", "42",
            "--threads", "1", "--device", "cpu", "--metrics", f"{folder}/metrics"]


def read_metrics(folder):
    lines = [json.loads(line) for line in (pathlib.Path(folder) / "metrics").read_text().splitlines()]
    check("summary" in lines[-1], "the last line is no summary")
    return lines[:-1], lines[-1]["summary"]


@functools.cache
def stage_run(workload):
    """@return losses of the steps, and summary, of stage 01"""
    with tempfile.TemporaryDirectory() as folder:
        result = run(BIN_DIR / "01_single_gpu", *arguments(workload, folder), "--quiet", "--resume", "never", "--snapshot", f"{folder}/snapshot")
        check(result.returncode == 0, f"01_single_gpu failed: {result.stderr}")
        rows, summary = read_metrics(folder)
        return [row["loss"] for row in rows], summary


def is_close(ours, theirs):
    return abs(ours - theirs) <= 1e-3 * abs(theirs)


def check_metrics(rows, summary, stage, ranks):
    steps = stage["steps"]
    check(sorted((row["rank"], row["step"]) for row in rows) == [(rank, step) for rank in range(ranks) for step in range(steps)],
          "not one row per rank and step")
    for rank in range(ranks):
        own = sorted((row for row in rows if row["rank"] == rank), key=lambda row: row["step"])
        for before, row in zip(own, own[1:]):
            pause_ms = (row["end_ns"] - before["end_ns"]) / 1e6 - row["step_ms"]
            check(pause_ms > 0 if row["step"] % (steps // EPOCHS) == 0 else abs(pause_ms) < 1e-3,
                  f"step {row['step']} begins {pause_ms} ms after the end of the step before")
        check(0 < time.perf_counter_ns() - own[-1]["end_ns"] < TIMEOUT_S * 1e9, f"another clock: {own[-1]}")
    for row in rows:
        check(row["step_ms"] > 0 and math.isfinite(row["loss"]), f"a time or the loss is missing: {row}")
    check(summary["global_batch"] == GLOBAL_BATCH, f"global_batch is {summary['global_batch']}")
    mib = summary["peak_rss_mib"]
    check(len(mib) == ranks and all(20 < value < 16 << 10 for value in mib), f"peak_rss_mib is {mib}, expected {ranks} numbers")


def check_parity(program, variant, workload, processes, *options, chatty=False, launched=False):
    """@param chatty True if the framework itself writes notes to stderr @param launched True if `program` starts the ranks"""
    of_steps, stage = stage_run(workload)
    has_replicas = variant in ("mirrored", "jit")
    ranks = 1 if has_replicas else processes
    with tempfile.TemporaryDirectory() as folder:
        own = ["--variant", variant, *(["--nprocs", str(processes)] if has_replicas else [])]
        metrics = {"DDP_METRICS": f"{folder}/metrics"} if launched else {}
        started = [] if launched or has_replicas or processes == 1 else [*START, str(processes)]
        result = run(*started, *program, *arguments(workload, folder)[:-2 if metrics else None], *own, *options, cwd=folder,
                     env={**os.environ, "DDP_PYTHON_DIR": str(BIN_DIR.parent / "python"), **metrics})
        check(result.returncode == 0, f"exit code {result.returncode}: {result.stderr}")
        check(chatty or result.stderr == "", f"stderr is not empty: {result.stderr}")
        rows, summary = read_metrics(folder)
    difference = abs(summary["moved"] - stage["moved"]) / stage["moved"]
    check(difference <= TOLERANCE, f"moved {summary['moved']}, which differs by {difference:.2e}")
    check_metrics(rows, summary, stage, ranks)
    check(sum(row["samples"] for row in rows) == EPOCHS * int(WORKLOADS[workload][3]), "wrong numbers of samples")
    for step, expected in enumerate(of_steps):
        mean = statistics.mean(row["loss"] for row in rows if row["step"] == step)
        check(is_close(mean, expected), f"step {step} has loss {mean}, expected {expected}")
    return f"differs by {difference:.1e}"


def parity(program, variant, workload, processes, *options, **more):
    """Case of check_parity()."""
    name = " ".join([variant, workload, str(processes), *options])
    return name, functools.partial(check_parity, program, variant, workload, processes, *options, **more)


def check_one_line(result, code, *words, name="pytorch"):
    check(result.returncode == code, f"exit code {result.returncode}, expected {code}: {result.stderr}")
    check(result.stdout == "", f"stdout is not clean: {result.stdout}")
    lines = result.stderr.splitlines()
    check(len(lines) == 1 and lines[0].startswith(f"{name}: "), f"expected one line: {result.stderr}")
    for word in words:
        check(word in lines[0], f"expected {word!r} in: {lines[0]}")


def check_bad_arguments():
    for line, *words in [
            ("", "total_epochs", "save_every"), ("0 1", "total_epochs", "'0'", "positive_integer"), ("1 1 extra", "extra"),
            ("1 1 --learning-rate 1", "--learning-rate"), ("1 1 --variant fast", "--variant", "fast", "compiled"),
            ("1 1 --nprocs 2", "--nprocs"),
            ("1 1 --global-batch 1e3", "--global-batch", "'1e3'", "integer"), (f"1 1 --seed {2**64}", "--seed", "integer"),
            *((f"1 1 {option} {value}", option, f"'{value}'") for option, value in (
                ("--layers", "20"), ("--layers", "20,0"), ("--lr", "nan"), ("--lr", "0"), ("--lr", "inf"))),
            ("1 1 --device cuda", "--device cuda", "found 0 CUDA devices")]:
        check_one_line(run(*PYTORCH, *line.split(), env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}), 2, *words)
    check_one_line(run(*PYTORCH, "1", "1", "--backend", "shm", env=os.environ | {"DDP_PYTHON_DIR": "/"}), 2, "ddp_cpp", "--target ddp_python")
    check_one_line(run("bash", "-c", f"exec {shlex.join(PYTORCH)} 1 1 >/dev/full"), 1, "No space left")
    for name in ("accelerate", "tensorflow", "jax"):  # the project's own environment has only torch
        check_one_line(run(*peer(name), "1", "1"), 2, f"has no {name}", f"bench/peers/install.sh {name}", name=name)
    for words, *parts in (["--device", "cuda"], "--device", "cuda"), (["--nprocs", "2", "--global-batch", "33"], "33", "multiple of 2"):
        check_one_line(run(*peer("jax"), "1", "1", *words), 2, *parts, name="jax")
    check_one_line(run(*peer("jax"), "1", "1", env=os.environ | {"WORLD_SIZE": "2"}), 2, "WORLD_SIZE: got 2", name="jax")


def check_diverging_weights():
    """Weights become NaN: exit code 1, one line, and no summary. What was in the file is gone."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder, "metrics")
        metrics.write_text('{"summary": {}}')
        result = run(*PYTORCH, *arguments("T", folder), "--lr", "1e30")
        check_one_line(result, 1, "the weights moved by")
        check("summary" not in metrics.read_text(), "a summary was written all the same")


UNEQUAL_RANKS = """
import os, sys, time
sys.path.append(sys.argv.pop(1))
import torch
from ddp_peers import arrays, command_line, torch_peer

def train(options, device, samples, model, log):
    torch.nn.init.constant_(next(model.parameters()), log.rank)

def run(options):
    if options.seed == 3:  # this process dies, and the process that draws has to die too
        arrays.start_drawing(options)
        os.kill(os.getpid(), 9)
    if options.seed == 4:
        arrays.report(None, options, None, [[torch.zeros(1).numpy(), torch.ones(1).numpy()]])
    torch_peer.run(options, train)

if __name__ == "__main__":
    sys.exit(command_line.run_peer("unequal", ["torch"], {"default": ""}, run))
"""


def check_unequal_weights():  # and a peer that is killed: run() waits until no process has the pipe
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "program.py"
        program.write_text(UNEQUAL_RANKS)
        for seed, ranks, message in ((42, [*START, "2"], "[rank 1]: error: the final weights differ from rank 0's"),
                                     (4, [], "the final weights of the replicas differ"), (3, [], "")):
            result = run(*ranks, sys.executable, "-B", program, PEERS, *arguments("T", folder), "--seed", str(seed), timeout_s=120)
            check_one_line(result, 1, message, name="unequal") if message else check(result.returncode == -9, f"{seed}: {result}")


STEP_LOG = """
import os, sys, time
from step_log import StepLog
class Tensor:
    detach = lambda self: 5.0
log = StepLog()
for step in range(20_001):  # more than it keeps in memory
    if step == 9:
        time.sleep(1)
        log.begin()
    log.step(float("nan") if step == 8 else Tensor() if step == 5 else step, samples=4)
os.fork() and os.wait()
"""


def check_step_log():
    """Lines of ranks do not mix, each is written once, and the time before begin() does not count."""
    with tempfile.TemporaryDirectory() as folder:
        command = sys.executable, "-B", "-c", STEP_LOG
        env = {name: value for name, value in os.environ.items() if name != "DDP_METRICS"} | {"PYTHONPATH": str(SOURCE_DIR / "tools")}
        result = run(*command, env=env, cwd=folder)
        check((result.returncode, os.listdir(folder)) == (0, []), f"without a file: {result}")
        ranks = [subprocess.Popen(command, env=env | {"RANK": rank, "DDP_METRICS": f"{folder}/log"}) for rank in "01"]
        check([rank.wait(TIMEOUT_S) for rank in ranks] == [0, 0], "a rank failed")
        rows = [json.loads(line) for line in open(f"{folder}/log")]
        run(sys.executable, "-B", "-c", "import os, step_log; step_log.StepLog(); os._exit(0)", env=env | {"DDP_METRICS": f"{folder}/lost"})
        check(os.path.exists(f"{folder}/lost"), "steps that are lost leave no file")
    for rank in 0, 1:
        own = [row for row in rows if row["rank"] == rank]
        check([(row["step"], row["loss"], row["samples"]) for row in own] == [(step, None if step == 8 else step, 4) for step in range(20_001)],
              "not each step once, in order")
        check(own[9]["step_ms"] < 1000 < (own[9]["end_ns"] - own[8]["end_ns"]) / 1e6, f"begin() is not left out: {own[8:10]}")


def check_install():
    """Installs in another checkout, with a package from a folder instead of the internet."""
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name) / "a checkout"
        peers, wheels = root / "bench" / "peers", root / "wheels"
        peers.mkdir(parents=True)
        wheels.mkdir()
        (root / "tools").mkdir()
        for file in "bench/peers/install.sh", "tools/installing.sh":
            shutil.copy(SOURCE_DIR / file, root / file)
        (root / ".venv").symlink_to(sys.prefix)
        # LIBTORCH_VERSION installs another version.
        (root / "requirements.txt").write_text("".join(f"{name}=={importlib.metadata.version(name)}\n" for name in ("torch", "numpy")))
        info = "tiny_peer-1.1.dist-info/"
        with zipfile.ZipFile(wheels / "tiny_peer-1.1-py3-none-any.whl", "w") as wheel:  # the smallest package that pip can install
            for file, text in (("tiny_peer.py", "VERSION = '1.1'\n"), (f"{info}METADATA", "Metadata-Version: 2.1\nName: tiny-peer\nVersion: 1.1\n"),
                               (f"{info}WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"), (f"{info}RECORD", "")):
                wheel.writestr(file, text)
        script = peers / "install.sh"
        tiny = """'Tiny_Peer==1.1; python_version >= "3"' 'tiny-peer==9; python_version < "3"'"""
        script.write_text(script.read_text().replace("accelerate==1.15.0", tiny))
        (root / "pip.conf").write_text(f"[install]\nuser = true\ntarget = {root}/t\nprefix = {root}/p\nroot = {root}/r\n")
        env = dict(os.environ, PIP_NO_INDEX="1", PIP_FIND_LINKS=wheels.as_uri(), PIP_CONFIG_FILE=f"{root}/pip.conf", PIP_USER="1", PIP_DRY_RUN="1",
                   PIP_TARGET=f"{root}/t", PIP_PREFIX=f"{root}/p", PIP_ROOT=f"{root}/r", PIP_NO_DEPS="1", PIP_PYTHON="/nowhere", CDPATH=".")

        def install(*words):
            result = run("bench/peers/install.sh", *words, env=env, cwd=root)
            return result.returncode, result.stdout.rstrip("\n"), result.stderr

        own = f"{root}/.venv-peers/accelerate/bin/python"
        own_python = install("pytorch")
        check(own_python == (0, f"{root}/.venv/bin/python", ""), f"the project's own: {own_python}")
        check(install("accelerate")[:2] == (0, own) and install("accelerate") == (0, own, ""), "it is not installed, or a second time")
        pathlib.Path(own).parents[1].joinpath(".installing").touch()
        check("installing" in install("accelerate")[2], "an interrupted installation is not made anew")
        version = run(own, "-c", "import torch, tiny_peer; print(tiny_peer.VERSION)")
        check(version.stdout == "1.1\n", f"not what was pinned, or not what the project has: {version}")
        # Another version that is not available gives one line, and never an environment that looks complete.
        script.write_text(script.read_text().replace("Peer==1.1", "Peer==1.0"))
        for words, expected in ((["accelerate"], 1), (["absent"], 2), ([], 2)):
            code, out, err = install(*words)
            check((code, out) == (expected, "") and err.splitlines()[-1].startswith("install.sh: "),
                  f"{words}: {code} {out} {err}")


def framework_cases():
    for name, variant in (("tensorflow", "mirrored"), ("accelerate", "ddp"), ("jax", "jit")):
        result = run(PEERS / "install.sh", name)
        check(result.returncode == 0, f"install.sh {name} failed: {result.stderr}")
        program = peer(name, result.stdout.rstrip("\n"))
        for processes, workload, *options in ((2, "S"), *[(1, "T")] * (name == "jax"), *[(2, "S", "--backend", "shm")] * (name == "accelerate")):
            yield parity(program, variant, workload, processes, *options, chatty=name == "tensorflow")


def project_cases():
    yield parity(PYTORCH, "compiled", "S", 2, chatty=True)
    yield "bad arguments", check_bad_arguments
    yield "install.sh", check_install
    yield from [parity(PYTORCH, "tuned", "S", 2, "--backend", "shm")] * (BIN_DIR.parent / "python").exists()  # else the test python_shm says why
    yield parity(PYTORCH, "tuned", "T", 1)
    yield parity([*TORCHRUN, "2", PYTORCH[-1]], "tuned", "S", 2, chatty=True, launched=True)
    yield "step_log.py", check_step_log
    yield "the weights diverge", check_diverging_weights
    yield "the ranks' weights differ", check_unequal_weights


if __name__ == "__main__":
    sys.exit(run_cases(framework_cases() if "--frameworks" in sys.argv else project_cases(), 2))
