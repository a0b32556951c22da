#!/usr/bin/env python3
"""python/ddp_cpp: over shm Python's torch.distributed computes what it computes over Gloo, or says in one line what it lacks.

usage: shm_backend_test.py BUILD_DIR      with the Python that has the torch of the build
"""

import ctypes
import datetime
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
import traceback
import unittest

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path[:0] = [str(ROOT / "tests"), str(BUILD / "python")]
import ddp_cpp  # noqa: E402, F401
from support.scratch import Scratch  # noqa: E402

RANKS = 3
FLOATS, INTEGERS = "float32 float64 float16 bfloat16".split(), "int8 uint8 int32 int64 bool".split()
REDUCTIONS = "SUM AVG MIN MAX PRODUCT BAND BOR BXOR".split()
COLLECTIVES = {  # each returns the work and its result
    "all_reduce": lambda x, op, group: (dist.all_reduce(y := x.clone(), op, group, True), y),
    "broadcast": lambda x, op, group: (dist.broadcast(y := x.clone(), len(x) % RANKS, group, True), y),
    "all_gather": lambda x, op, group: (dist.all_gather(list(y := torch.stack([x] * RANKS)), x, group, True), y),
    "all_gather_into_tensor": lambda x, op, group: (dist.all_gather_into_tensor(y := x.repeat(RANKS), x, group, True), y),
    "reduce_scatter_tensor": lambda x, op, group: (dist.reduce_scatter_tensor(y := x.clone(), x.repeat_interleave(RANKS), op, group, True), y),
}


def join(rank, seconds=60):
    dist.init_process_group("shm", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=RANKS, timeout=datetime.timedelta(0, seconds))


def result_of(call, *arguments):
    """@return the result, or the text of the error"""
    try:
        work, result = call(*arguments)
        work.wait()
        return result
    except RuntimeError as error:
        return str(error)


def is_refused(name, dtype, op, x, gloo):
    """Checks that ours is Gloo's result, or a refusal."""
    ours, theirs = (result_of(COLLECTIVES[name], x.to(getattr(torch, dtype)), getattr(dist.ReduceOp, op), group) for group in (None, gloo))
    is_text = isinstance(ours, str)
    right = re.fullmatch(r"backend shm: Expected \w+ .*, got .+", ours) if is_text else torch.equal(ours, theirs)
    assert right, (name, dtype, op, ours, theirs)
    return is_text


def conform(rank, gloo):
    x = (torch.arange(1001) * 7 + rank * 5) % 5
    refused = {(op, dtype) for name in COLLECTIVES for dtype in [*FLOATS, *INTEGERS, "complex64"]
               for op in (REDUCTIONS[:2 if dtype == "complex64" else None] if "reduce" in name else ["SUM"]) if is_refused(name, dtype, op, x, gloo)}
    expected = {(op, dtype) for op in REDUCTIONS[4:] for dtype in FLOATS + INTEGERS} | {("AVG", dtype) for dtype in INTEGERS}
    assert refused == expected, refused ^ expected


def train(rank, gloo):
    ends = []
    for group in gloo, dist.group.WORLD:
        for sharded in False, True:
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.Linear(20, 70), torch.nn.ReLU(), torch.nn.Linear(70, 3))
            for layer in (model[0], model[2], model) if sharded else ():
                fully_shard(layer, mesh=dist.DeviceMesh.from_group(group, "cpu"))
            parallel_model = model if sharded else torch.nn.parallel.DistributedDataParallel(model, process_group=group)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            torch.manual_seed(rank)
            for _ in range(20):
                optimizer.zero_grad()
                parallel_model(torch.randn(8, 20)).square().mean().backward()
                optimizer.step()
            ends.append(torch.cat([(p.full_tensor() if sharded else p).detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(ends, [ends[0]] * 4, rtol=1e-5, atol=1e-6)


def compute(rank):
    join(rank)
    gloo = dist.new_group(backend="gloo")
    for check in conform, train:
        check(rank, gloo)


def miss(rank, how):
    """Rank 2 does not come, is killed, stands still or is on another host. @return the error of the others"""
    if (rank, how) == (2, "another host"):
        assert ctypes.CDLL(None).unshare(0x04000000) == 0  # CLONE_NEWUTS
        socket.sethostname("elsewhere")
    try:
        if (rank, how) != (2, "absent"):
            join(rank, 6)
        if rank == 2:
            os.kill(os.getpid(), 9) if how == "killed" else time.sleep(8)
        dist.all_reduce(torch.ones(3))
    except RuntimeError as error:
        return str(error)


class ShmBackend(Scratch):
    def run_ranks(self, body, *arguments):
        """Runs body(rank, ...) in a process for each rank. @return what each returned; of a killed one None"""
        said = [self.folder / f"rank{rank}" for rank in range(RANKS)]
        for file in (*said, self.folder / "store"):
            file.unlink(missing_ok=True)
        for rank in range(RANKS):  # forks, because torch takes seconds to import
            if os.fork() == 0:
                os.chdir(self.folder)
                torch.set_num_threads(1)
                try:
                    text = str(body(rank, *arguments))
                except BaseException:
                    text = traceback.format_exc()
                said[rank].write_text(text)
                os._exit(0)
        for _ in range(RANKS):
            os.wait()
        return [file.read_text() if file.exists() else None for file in said]

    def test_collectives_and_weights_are_gloos(self):
        self.assertEqual(self.run_ranks(compute), ["None"] * RANKS)

    def test_a_rank_that_does_not_come_is_named(self):
        for how, expected in (
                ("killed", r"(rank . failed: )?rank 2 \(pid \d+\) died during all_reduce .+"),
                ("late", r"(rank . failed: )?all_reduce .+: rank 2 \(pid \d+\) did not arrive within 6 s, expected all 3 ranks"),
                ("absent", "within 6 s the start of --backend shm lacks rank 2 of world size 3, expected all of them"),
                ("another host", "--backend shm: rank 2 is on elsewhere .+, expected all ranks on one host; use --backend gloo")):
            for text in self.run_ranks(miss, how)[:2]:
                self.assertRegex(text, rf"\A{expected}\Z", how)

    def test_the_pages_example_runs_with_the_build_and_installed(self):
        self.write("train.py", re.search("```python\n(.*?)```", (ROOT / "docs/reference/backends.md").read_text(), re.DOTALL)[1]
                   + "import os, sys\nif os.fork() == 0:\n    sys.exit()\nos.wait()\ntorch.distributed.barrier()\n"  # the rank goes on
                   + 'torch.distributed.destroy_process_group()\ntorch.distributed.init_process_group("shm")\ntorch.distributed.barrier()\n')
        status = ["git", "-C", ROOT, "status", "--porcelain"]
        before = subprocess.check_output(status)
        done = self.run_here(sys.executable, "-m", "pip", "install", "--no-deps", "--target", "installed", ROOT / "python")
        self.assertEqual((done.returncode, subprocess.check_output(status)), (0, before), done.stdout + done.stderr)
        for path in self.folder / "installed", BUILD / "python":
            done = self.run_here(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py", PYTHONPATH=f"{path}")
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    unittest.main()
