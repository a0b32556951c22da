#!/usr/bin/env python3
"""The first run on a machine with GPUs: programs train there as on the CPU. tests/gpu.sh starts it, see docs/guides/build.md."""

import argparse
import ctypes
import importlib.util
import json
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_DEVICES = 8
RUN_S, TIMEOUT_S = 120, 30  # no run takes so long; --timeout of the stages, so that NCCL cannot hang for longer
# Variables of this script's launcher, which its own ranks must not get.
LAUNCHER = re.compile(r"SLURM_|PMI|OMPI_|TORCHELASTIC_|_CONDOR_|DDP_|GROUP_|MASTER_|(LOCAL_)?(RANK|WORLD_SIZE)$")
MOVED = re.compile(r"^(?:\[rank 0\] )?moved (\S+) \|", re.MULTILINE)
WORKLOADS = {"digits": ["--dataset", "digits"], "values": ["--dataset-size", 500], "Adam": ["--dataset", "digits", "--optimizer", "adam"]}
YOUR_MODEL = ROOT / "build/tests/outside/build/your_model"
DIGITS = ROOT / ("data" if (ROOT / "data").exists() else "build/share/ddp_cpp") / "digits.safetensors"  # in build/share/ddp_cpp if packed


class Failed(Exception):
    """Message of a failed check, in one line."""


def count_devices():
    """CUDA devices that CUDA_VISIBLE_DEVICES leaves visible"""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    number = ctypes.c_int()
    return number.value if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(number)) == 0 else 0


class FirstRun:
    def __init__(self, device, scratch):
        """@throws Failed if there is no device or no program starts"""
        self.device, self.scratch, self.checks, self.expected = device, scratch, [], {}
        self.count = 2 if device == "cpu" else min(count_devices(), MOST_DEVICES)
        if self.count == 0:
            raise Failed("found no CUDA device, expected at least one; --device cpu tries what a CPU can")
        torch = importlib.util.find_spec("torch")
        self.libtorch = os.environ.get("LIBTORCH") or (os.path.dirname(torch.origin) if torch else "")
        plain = {name: value for name, value in os.environ.items() if not LAUNCHER.match(name)}
        for carried in ["system"], ["system", "compiler"]:  # "compiler" only if the machine has older libraries
            path = [f"{self.libtorch}/lib", *(f"{ROOT}/build/lib/{folder}" for folder in carried), plain.get("LD_LIBRARY_PATH", "")]
            self.environment = {**plain, "LD_LIBRARY_PATH": ":".join(filter(None, path))}
            try:
                self.version = self.run([[ROOT / "build/bin/01_single_gpu", "--version"]]).strip()
                return
            except Failed as error:
                reason = error
        raise Failed(f'01_single_gpu does not start with LIBTORCH="{self.libtorch}", expected the version that it was built with: {reason}')

    def run(self, commands, environments=None):
        """Runs commands at the same time, until all have ended. @return output of the first command"""
        jobs, deadline = [], time.monotonic() + RUN_S
        line = shlex.join(map(str, commands[0])).replace(f"{ROOT}/", "")
        try:
            for command, environment in zip(commands, environments or [{}] * len(commands)):
                files = [tempfile.TemporaryFile("w+", dir=self.scratch) for _ in range(2)]
                process = subprocess.Popen([str(word) for word in command], cwd=self.scratch, env={**self.environment, **environment},
                                           stdin=subprocess.DEVNULL, stdout=files[0], stderr=files[1], start_new_session=True)
                jobs.append((process, files))
            codes = [process.wait(max(deadline - time.monotonic(), 0.01)) for process, _ in jobs]
            texts = [[file.seek(0) or file.read() for file in files] for _, files in jobs]
        except subprocess.TimeoutExpired:
            raise Failed(f"still ran after {RUN_S} s: {line}") from None
        finally:
            for process, _ in jobs:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
        for code, (_, written) in zip(codes, texts):
            if code != 0:
                last = (written.strip().splitlines() or ["no output"])[-1]
                raise Failed(f"exit code {code}: {last}: {line}")
        return texts[0][0]

    def moved(self, commands, environments=None):
        found = MOVED.search(self.run(commands, environments))
        if found is None:
            raise Failed(f"did not say how far the weights moved: {shlex.join(map(str, commands[0]))}")
        return float(found[1])

    def train(self, program, world_size, workload, *options, device=None):
        """@return `moved` of the program's last line"""
        command = [ROOT / "build/bin" / program, "3", "3", *WORKLOADS[workload], "--global-batch", 24 * world_size,
                   "--device", device or self.device, "--snapshot", "s", *options]
        if program.startswith("01"):
            return self.moved([command])
        command += ["--timeout", TIMEOUT_S]
        if program.startswith(("02", "03")):
            return self.moved([[*command, "--nprocs", world_size]])
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # rank 0 sets it too, and may listen
            held.bind(("127.0.0.1", 0))
            command += ["--world-size", world_size, "--master-addr", "127.0.0.1", "--master-port", held.getsockname()[1]]
            if program.startswith("05"):  # a node for each rank, all with this machine's first device
                return self.moved([[*command, "--rank", rank, "--local-rank", 0, "--local-world-size", 1] for rank in range(world_size)],
                                  [{"NCCL_HOSTID": str(rank), "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"} for rank in range(world_size)])
            return self.moved([[*command, "--rank", rank, "--local-rank", rank, "--local-world-size", world_size] for rank in range(world_size)])

    def parity(self, program, world_size, workload, *options):
        if (world_size, workload) not in self.expected:
            self.expected[world_size, workload] = self.train("01_single_gpu", world_size, workload, device="cpu")
        self.compare(self.train(program, world_size, workload, *options), self.expected[world_size, workload], 1e-4)

    def your_model(self):
        command, ranks = [YOUR_MODEL, DIGITS, "1"], 1 << (self.count.bit_length() - 1)  # a number that divides the batch
        job = {"DDP_LAUNCHER": "spawn", "DDP_STORE_FILE": str(self.scratch / "store"), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        visible = {"CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else {}
        moved = self.moved([command] * ranks, [{**job, **visible, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)])
        self.compare(moved, self.moved([command], [{"CUDA_VISIBLE_DEVICES": ""}]), 1e-3)

    def compare(self, moved, expected, relative):
        if not abs(moved - expected) <= relative * abs(expected):  # NaN fails
            raise Failed(f"moved {moved}, expected {expected} to {relative} as on the CPU")

    def check(self, name, function, *arguments):
        begin, error = time.monotonic(), None
        try:
            function(*arguments)
        except Failed as failed:
            error = " ".join(str(failed).split())
        self.checks.append({"name": name, "error": error, "seconds": round(time.monotonic() - begin, 1)})
        print(f"{'failed' if error else 'passed'}  {name}{': ' + error if error else ''}", flush=True)

    def all(self):
        count = self.count
        for workload in WORKLOADS:
            for program in ("01_single_gpu", "02_data_parallel", "02_data_parallel_mirrored", "03_ddp_spawn", "03_ddp_spawn_by_hand",
                            "04_ddp_launcher", "04_ddp_launcher_accelerated"):
                self.check(f"{program}, {workload}, batch of {count} devices", self.parity, program, count, workload)
        backend = "shm" if self.device == "cpu" else "nccl"
        for size in range(1, count + 1):
            self.check(f"03_ddp_spawn over {backend}, {size} ranks", self.parity, "03_ddp_spawn", size, "digits", "--backend", backend)
            for graph in [[]] if self.device == "cpu" else [[], ["--graph"]]:
                for workload in "digits", "values":
                    self.check(" ".join(["03_ddp_spawn_fused", *graph, f"over {backend}, {workload}, {size} ranks"]),
                               self.parity, "03_ddp_spawn_fused", size, workload, "--backend", backend, *graph)
        step = ROOT / "build/tests/steps/T.pt2"  # of a test, for the CPU
        if self.device == "cuda" or not step.exists():
            step = self.scratch / "step.pt2"
            compiler = [sys.executable, ROOT / "tools/compile_step", "--layers", "20,1", "--device", self.device, "--output", step]
            self.check("compile_step", self.run, [compiler])
        for size in range(1, count + 1):
            self.check(f"03_ddp_spawn_compiled, {size} ranks", self.parity, "03_ddp_spawn_compiled", size, "values", "--step", step)
        for size in 2, 4:
            self.check(f"05_multinode, {size} ranks on one device", self.parity, "05_multinode", size, "digits", "--interface", "lo")
        if YOUR_MODEL.exists():
            self.check("your_model", self.your_model)


def main():
    parser = argparse.ArgumentParser(prog="tests/gpu.sh", epilog="Exit codes: 0 every check passed, 1 a check failed, 2 nothing could be run. "
                                     "LIBTORCH=/path if python3 has no torch. gpu.sh pack FOLDER collects the files to copy.")
    parser.add_argument("file", nargs="?", default="gpu-results.json", type=pathlib.Path, help="file for the results (default gpu-results.json)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="kind of device; cpu: two ranks over shm (default cuda)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ddp-gpu-") as scratch:
        try:
            run = FirstRun(options.device, pathlib.Path(scratch))
        except Failed as error:
            print(f"gpu.sh: {error}", file=sys.stderr)
            return 2
        run.all()
    failed = sum(check["error"] is not None for check in run.checks)
    print(f"{len(run.checks) - failed} passed, {failed} failed")
    options.file.write_text(json.dumps({"device": options.device, "devices": run.count, "libtorch": run.libtorch, "version": run.version,
                                        "checks": run.checks}, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
