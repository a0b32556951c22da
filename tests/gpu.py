#!/usr/bin/env python3
"""Checks and measures a build that was carried to a machine with GPUs: what tests/gpu.sh starts, see docs/gpus.md."""

import argparse
import ctypes
import datetime
import importlib.util
import itertools
import json
import os
import pathlib
import platform
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT, ERR = 0, 1
MOST_DEVICES = 8
RUN_S, TIMEOUT_S = 120, 30  # no run takes so long; its --timeout, so that a NCCL that hangs leaves time for the rest
NEEDED_S = 10  # of --limit, for anything to be started
FAULT_TIMEOUT_S, FAULT_SLACK_S = 10, 5  # --timeout when a rank is killed or stopped, and what the others may take beyond it
REPORT_S = 15  # that bench may take for its report when it is interrupted
# What a launcher told this script is not meant for the ranks that it starts.
LAUNCHER = re.compile(r"SLURM_|PMI|MPI_LOCAL|PBS_TASKNUM|PET_N|OMPI_|MV2_|FLUX_|PALS_|JSM_|TORCHELASTIC_|_CONDOR_|DDP_|GROUP_|MASTER_|(LOCAL_)?(RANK|WORLD_SIZE)$")
TRAINED = re.compile(r"^moved (\S+) \| .*\| digest ([0-9a-f]{16}) \|", re.MULTILINE)


class Failed(Exception):  # a check does not hold: one line
    pass


class NotRun(Exception):  # a check could not be made: why
    pass


def last_line(text):
    return (text.strip().splitlines() or ["no output"])[-1]


class Job:
    """A program in a process group of its own, of which nothing is left at the end."""

    def __init__(self, argv, environment, folder):
        self.line = shlex.join(map(str, argv)).replace(f"{ROOT}/", "")
        self.files = [tempfile.TemporaryFile(dir=folder) for _ in (OUT, ERR)]
        self.process = subprocess.Popen([str(word) for word in argv], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                        stdout=self.files[OUT], stderr=self.files[ERR], start_new_session=True)

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # those that are stopped, too
        except ProcessLookupError:
            pass
        self.process.wait()

    def text(self, stream):
        file = self.files[stream].fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")

    def wait(self, seconds):
        try:
            return self.process.wait(max(seconds, 0.01))
        except subprocess.TimeoutExpired:
            raise Failed(f"still ran after {seconds:.0f} s: {self.line}") from None


def cuda_devices():
    """@return the names of those that CUDA_VISIBLE_DEVICES leaves visible, and the driver's CUDA version"""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return [], None
    number, name, names = ctypes.c_int(), ctypes.create_string_buffer(100), []
    if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(number)) == 0:
        for device in range(number.value):
            cuda.cuDeviceGetName(name, len(name), device)
            names.append(name.value.decode())
    cuda.cuDriverGetVersion(ctypes.byref(number))
    return names, f"{number.value // 1000}.{number.value % 1000 // 10}"


class FirstRun:
    def __init__(self, options, scratch):
        """@throws Failed if no program starts"""
        self.options, self.scratch, self.begin = options, scratch, time.monotonic()
        self.checks, self.lines, self.jobs, self.report, self.table, self.moved, self.nccl = [], [], [], {}, "", {}, None
        self.devices, self.driver = cuda_devices()
        self.cpu = options.device == "cpu"
        if not self.cpu and not self.devices:
            raise Failed("found no CUDA device, expected at least one; --device cpu tries what a CPU can")
        self.count = min(4 if self.cpu else len(self.devices), 2 if options.quick else MOST_DEVICES)
        self.backends = ["nccl"] if not self.cpu else ["shm"] if options.quick else ["gloo", "shm"]
        self.speedups = ["none", "fused"] + ([] if self.cpu else ["graph"])
        self.plain = {name: value for name, value in os.environ.items() if not LAUNCHER.match(name)}
        torch = importlib.util.find_spec("torch")
        self.libtorch = os.environ.get("LIBTORCH") or (os.path.dirname(torch.origin) if torch else "")
        for carried in ["system"], ["system", "compiler"]:  # the latter only on a machine whose own is older
            path = [f"{self.libtorch}/lib", *(f"{ROOT}/build/lib/{folder}" for folder in carried), self.plain.get("LD_LIBRARY_PATH", "")]
            self.environment = {"NCCL_DEBUG": "VERSION", **self.plain, "LD_LIBRARY_PATH": ":".join(filter(None, path))}
            job = self.start("01_single_gpu", "--version")
            if job.wait(RUN_S) == 0:
                self.version = job.text(OUT).strip()
                return
        raise Failed(f'01_single_gpu does not start with LIBTORCH="{self.libtorch}", expected the version that it was built with: '
                     f"{last_line(job.text(ERR))}")

    def left_s(self):
        return self.options.limit - (time.monotonic() - self.begin)

    def check(self, name, function, *arguments, **named):
        begin, self.jobs = time.monotonic(), []
        try:
            if self.left_s() < NEEDED_S:
                raise NotRun("no time was left, see --limit")
            status, text = "passed", function(*arguments, **named) or ""
        except NotRun as error:
            status, text = "not run", str(error)
        except Exception as error:  # the other checks still run
            status, text = "failed", " ".join((str(error) if isinstance(error, Failed) else repr(error)).split())
        finally:
            for job in self.jobs:
                job.end()
        seconds = round(time.monotonic() - begin, 1)
        written = [[job.text(OUT)[-4000:], job.text(ERR)[-4000:]] for job in self.jobs if status == "failed"]
        self.checks.append({"name": name, "status": status, "text": text, "seconds": seconds, "commands": [job.line for job in self.jobs],
                            "written": written})
        self.lines.append(f"{status:8}{name}{': ' if text else ''}{text} ({seconds} s)")
        print(self.lines[-1], flush=True)

    def start(self, program, *options, **environment):
        self.jobs.append(Job([ROOT / "build/bin" / program, *options], {**self.environment, **environment}, self.scratch))
        return self.jobs[-1]

    def train(self, program, world_size, *options, device=None, **environment):
        """@return its processes, of 04 the ranks: no launcher starts them, so each one's end is seen"""
        options = [*options, "--device", device or self.options.device, "--snapshot", "s"]
        if not program.startswith("04"):
            return [self.start(program, *options, *([] if program.startswith("01") else ["--nprocs", world_size]), **environment)]
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            meeting = ["--master-addr", "127.0.0.1", "--master-port", held.getsockname()[1]]
        sizes = ["--world-size", world_size, "--local-world-size", world_size]
        return [self.start(program, *options, *meeting, *sizes, "--rank", rank, "--local-rank", rank, **environment)
                for rank in range(world_size)]

    def outcome(self, program, world_size, *options, **where):
        """@return what it moved, and its digest"""
        workload = ["3", "3", "--dataset", "digits", "--global-batch", 24 * world_size, "--timeout", TIMEOUT_S]
        jobs = self.train(program, world_size, *workload, *options, **where)
        codes, said = [job.wait(min(RUN_S, self.left_s())) for job in jobs], jobs[0].text(OUT)
        version, trained = re.search(r"^NCCL version (\S+)", said, re.MULTILINE), TRAINED.search(said)
        self.nccl = version[1] if version else self.nccl
        for job, code in zip(jobs, codes):
            if code != 0 or trained is None:
                raise Failed(f"exit code {code}: {last_line(job.text(ERR))}: {job.line}")
        return float(trained[1]), trained[2]

    def parity(self, program, world_size, *options, **environment):
        if world_size not in self.moved:
            self.moved[world_size] = self.outcome("01_single_gpu", world_size, device="cpu")[0]
        expected, moved = self.moved[world_size], self.outcome(program, world_size, *options, **environment)[0]
        relative = 1e-2 if "--gradient-compression" in options else 1e-4
        if not abs(moved - expected) <= relative * abs(expected):  # NaN fails
            raise Failed(f"moved {moved}, expected {expected} to {relative} as on the CPU: {self.jobs[-1].line}")

    def relu(self):
        """@return what was chosen on this device, where a NaN or a bit may be lost"""
        self.outcome("01_single_gpu", 1, "--speedup", "fused", "--verbose")
        chosen = re.search("^In fused step on .*: (ReLU .*)$", self.jobs[-1].text(OUT), re.MULTILINE)
        if chosen is None:
            raise Failed(f"did not say which ReLU it takes: {self.jobs[-1].line}")
        return chosen[1]

    def same_digest(self, *options):
        digests = {self.outcome("03_ddp_spawn", self.count, *options, "--deterministic")[1] for _ in range(2)}
        if len(digests) != 1:
            raise Failed(f"digests {' and '.join(sorted(digests))}, expected the same twice: {self.jobs[-1].line}")

    def fault(self, program, number, *options):
        """All that the signal does not reach end in time, with one line each."""
        if self.count < 2:
            raise NotRun("one device, expected two: nobody would miss the only rank")
        jobs = self.train(program, self.count, "1000000", "1000000", "--dataset", "digits", "--timeout", FAULT_TIMEOUT_S, *options)
        while " Epoch 3 " not in jobs[0].text(OUT):
            if any(job.process.poll() is not None for job in jobs) or self.left_s() < NEEDED_S:
                raise Failed(f"does not train: {last_line(jobs[0].text(ERR))}: {jobs[0].line}")
            time.sleep(0.1)
        spawn, parent = len(jobs) == 1, jobs[0].process.pid
        children = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        victim = int(children[1]) if spawn else jobs[1].process.pid
        os.kill(victim, number)
        begin = time.monotonic()
        expected = 128 + number if spawn and number == signal.SIGKILL else 1  # spawn says how its rank ended
        for job in jobs[:1] + jobs[2:]:
            code = job.wait(FAULT_TIMEOUT_S + FAULT_SLACK_S - (time.monotonic() - begin))
            if code != expected or job.text(ERR).count("\n") != 1:
                raise Failed(f"exit code {code}, lines on stderr {len(job.text(ERR).splitlines())}, expected {expected} and one line: "
                             f"{last_line(job.text(ERR))}: {job.line}")
        if spawn and os.path.exists(f"/proc/{victim}"):
            raise Failed(f"process {victim} of {parent} is left: {jobs[0].line}")
        return f"in {time.monotonic() - begin:.1f} s: {last_line(jobs[0].text(ERR))}"

    def bench(self):
        file, python, quick = self.scratch / "bench.json", self.scratch / "python", self.options.quick
        sizes = f"1,{min(self.count, len(os.sched_getaffinity(0))) if self.cpu else self.count}"
        # With its own libraries, which need not be LIBTORCH's.
        own = shlex.quote(self.plain.get("LD_LIBRARY_PATH", ""))
        python.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={own} exec {shlex.quote(sys.executable)} "$@"\n')
        python.chmod(0o755)
        has_peers = subprocess.run([python, "-c", "import torch, numpy"], stderr=subprocess.DEVNULL).returncode == 0
        beside_02 = not self.cpu and self.count > 1  # LibTorch's data_parallel
        stages = "01_single_gpu,03_ddp_spawn" + (",02_data_parallel" if beside_02 else "")
        peers = ["pytorch"] * has_peers + ["libtorch"] * beside_02
        job = self.start("bench", "--device", self.options.device, "--launchers", "spawn", "--stages", stages,
                         "--speedup", f"none,{self.speedups[-1]}", "--repetitions", "1", "--budget", "10", "--json", file,
                         *(["--quick", "--world-sizes", "2", "--models", "T", "--steps", "40"] if quick else
                           ["--world-sizes", sizes, "--models", "S"]),
                         *(["--peers", ",".join(peers), "--peers-dir", ROOT / "bench/peers"] if peers else []),
                         "--benchmark_filter=/0|_default|_tuned/|_single_fused|_cuda_graph|/libtorch_", DDP_PEERS_PYTHON=str(python))
        try:
            code = job.wait(self.left_s() - REPORT_S)
        except Failed:
            job.process.send_signal(signal.SIGINT)
            code = job.wait(REPORT_S)
        self.table, self.report = job.text(OUT), json.loads(file.read_text()) if file.exists() else {}
        scaling = self.report.get("ddp_scaling", {"runs": [], "partial": False})
        wrong = [f"{run['name']}: {run['error']}" for run in scaling["runs"] if run["error"]]
        if code != 0 or wrong:
            raise Failed(wrong[0] if wrong else "no time was left: the report is partial" if scaling["partial"] else
                         f"exit code {code}: {last_line(job.text(ERR))}: {job.line}")
        return f"{len(scaling['runs'])} configurations"

    def peers(self):
        names = [run["name"] for run in self.report.get("ddp_scaling", {}).get("runs", []) if run["stage"] == "pytorch"]
        if not names:
            raise NotRun(f"{sys.executable} has no torch with numpy, or the benchmark failed")
        if not self.cpu and not any("cuda_graph" in name for name in names):
            raise Failed(f"no CUDA Graph among {', '.join(names)}")
        return f"{len(names)} configurations"

    def test_cases(self, tags, name="parity_test"):
        program = ROOT / "build/tests" / name
        if not program.exists():
            raise NotRun(f"found no {program}")
        job = self.start(program, tags, **({"DDP_TEST_DEVICE": "cpu"} if self.cpu else {}))
        try:
            code = job.wait(self.left_s())
        except Failed as error:
            if "FAILED" not in job.text(OUT):
                raise NotRun(f"no time was left, nothing had failed: {error}") from None
            code = None
        if code != 0:
            raise Failed(f"exit code {code}: {(re.findall('.*FAILED:.*', job.text(OUT)) or [last_line(job.text(ERR))])[0]}: {job.line}")
        return last_line(job.text(OUT))

    def all(self):
        count, best = self.count, self.speedups[-1]
        for speedup in self.speedups:
            self.check(f"parity of 01, {speedup}", self.parity, "01_single_gpu", 1, "--speedup", speedup)
        self.check(f"parity of 02, {count} replicas", self.parity, "02_data_parallel", count, "--speedup", "fused")
        self.check(f"parity of 02 mirrored, {count} replicas", self.parity, "02_data_parallel_mirrored", count)
        self.check(f"parity of 03 by hand, {count} ranks", self.parity, "03_ddp_spawn_by_hand", count)
        self.check(f"parity of 04, {count} ranks, {best}", self.parity, "04_ddp_launcher", count, "--speedup", best)
        self.check(f"parity of 04 accelerated, {count} ranks", self.parity, "04_ddp_launcher_accelerated", count)
        self.check(f"parity of 03, {count} ranks, sharded", self.parity, "03_ddp_spawn", count, "--speedup", best, "--shard-optimizer")
        self.check(f"parity of 03 to 1 %, {count} ranks, compressed", self.parity, "03_ddp_spawn", count, "--gradient-compression", "bf16")
        for program, size, speedup in ("01_single_gpu", 1, "none"), ("01_single_gpu", 1, best), ("03_ddp_spawn", count, best):
            self.check(f"parity of {program[:2]}, {size} ranks, {speedup}, each batch copied", self.parity, program, size, "--speedup", speedup,
                       DDP_RESIDENT_MIB="0")
        self.check("the fused step's ReLU", self.relu)
        for backend in self.backends:
            over = "--backend", backend, "--speedup"
            for size, speedup in itertools.product(range(1, count + 1), ["none", best]):
                self.check(f"parity of 03, {size} ranks, {backend}, {speedup}", self.parity, "03_ddp_spawn", size, *over, speedup)
            for speedup in self.speedups:
                self.check(f"the same digest twice, {count} ranks, {backend}, {speedup}", self.same_digest, *over, speedup)
            for program, speedup in ("04_ddp_launcher", "none"), ("03_ddp_spawn", best):
                for what, number in ("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP):
                    self.check(f"a rank of {program[:2]} is {what}, {backend}, {speedup}", self.fault, program, number, *over, speedup)
        self.check("benchmark", self.bench)
        self.check("PyTorch's own DDP beside it", self.peers)
        if not self.cpu:
            self.check("data_parallel beside LibTorch's", self.test_cases, "[gpu]", "libtorch_data_parallel")
        for tags in ["[gpu][shard]"] if self.options.quick else ["[gpu][ranks]", "[gpu]~[ranks]"]:
            self.check(f"test cases {tags}", self.test_cases, tags)

    def write(self, folder):
        counts = {status: sum(check["status"] == status for check in self.checks) for status in ("passed", "failed", "not run")}
        seconds = round(time.monotonic() - self.begin)
        self.lines.append(", ".join(f"{count} {status}" for status, count in counts.items()) + f", in {seconds} s")
        print(self.lines[-1])
        used = {"date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"), "host": platform.node(),
                "command": shlex.join(["tests/gpu.sh", *sys.argv[1:]]), "device": self.options.device, "devices": self.devices,
                "driver_cuda": self.driver, "nccl": self.nccl, "libtorch": self.libtorch, "version": self.version,
                "python": platform.python_version(), "seconds": seconds}
        document = dict(self.report, gpu_checks=dict(used, counts=counts, checks=self.checks))
        (folder / "results.json").write_text(json.dumps(document, indent=1) + "\n")
        head = [f"{key}: {value}" for key, value in used.items()]
        (folder / "summary.txt").write_text("\n".join([*head, "", *self.lines, "", self.table]))
        return 0 if counts["passed"] == len(self.checks) else 1


def main():
    parser = argparse.ArgumentParser(prog="tests/gpu.sh", epilog="Exit codes: 0 every check ran and passed, 1 not so, 2 nothing could run. "
                                     "LIBTORCH=/path where python3 has no torch. gpu.sh pack FOLDER collects what must travel.")
    parser.add_argument("folder", nargs="?", default="gpu-results", type=pathlib.Path, help="for the results (default gpu-results)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: gloo and shm for NCCL, fused for graph")
    parser.add_argument("--quick", action="store_true", help="two ranks, one backend, a small benchmark, one test case")
    parser.add_argument("--limit", type=int, default=570, metavar="SECONDS", help="what has no time left is not run (default 570)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="ddp-gpu-") as scratch:
        try:
            run = FirstRun(options, pathlib.Path(scratch))
            options.folder.mkdir(parents=True, exist_ok=True)
        except (Failed, OSError) as error:
            print(f"gpu.sh: {error}", file=sys.stderr)
            return 2
        try:
            run.all()
        except KeyboardInterrupt:
            options.limit = 0  # nothing more is started
            run.check("what follows the interruption", run.peers)
        return run.write(options.folder)


if __name__ == "__main__":
    sys.exit(main())
