#!/usr/bin/env python3
"""tools/collectives.cpp: every rank's tensor after each collective, computed here again, and errors for bad commands.

usage: collectives_test.py PROGRAM Lab|Mpi
"""

import math
import os
import re
import subprocess
import sys
import unittest

PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else ""
OURS = ("broadcast", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")  # collectives of our own backends
OPS = {"sum": sum, "mean": lambda values: sum(values) / len(values), "product": math.prod, "min": min, "max": max}


def run(*arguments, launcher=()):
    return subprocess.run([*launcher, PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def tensor(rank, count, step=10):
    return [rank * step + i + 1 for i in range(count)]


def table(output):
    """Both tensors of each rank, or the words in their place."""
    return [[[float(word) for word in cell[1:-1].replace("|", " ").split()] if cell.startswith("[") else cell
             for cell in re.findall(r"\[[^]]*\]|\(left undefined\)|-(?= |$)", row)] for row in output.splitlines() if re.match(r"\d", row)]


def expected(name, ranks, size, root=0, op="sum"):
    """Tensors before and after, by rank."""
    own = [tensor(rank, size) for rank in range(ranks)]
    whole = [tensor(rank, size * ranks) for rank in range(ranks)]
    part = [[whole[rank][size * other:size * (other + 1)] for other in range(ranks)] for rank in range(ranks)]
    combined = [OPS[op](column) for column in zip(*own)]
    together = sum(own, [])
    of = {
        "broadcast": lambda rank: [own[rank], own[root]],
        "all_reduce": lambda rank: [own[rank], combined],
        "reduce": lambda rank: [own[rank], combined if rank == root else "(left undefined)"],
        "all_gather": lambda rank: [own[rank], together],
        "gather": lambda rank: [own[rank], together if rank == root else "-"],
        "scatter": lambda rank: [whole[root] if rank == root else "-", part[root][rank]],
        "reduce_scatter": lambda rank: [whole[rank], [OPS[op](column) for column in zip(*(part[other][rank] for other in range(ranks)))]],
        "all_to_all": lambda rank: [whole[rank], sum((part[other][rank] for other in range(ranks)), [])],
        "send_recv": lambda rank: [own[rank], own[(rank - 1) % ranks]],
    }[name]
    return [of(rank) for rank in range(ranks)]


class Lab(unittest.TestCase):
    maxDiff = None

    def check(self, name, ranks, *arguments, said="", size=2, **keywords):
        result = run(name, "--nprocs", ranks, "--size", size, *arguments)
        with self.subTest(f"{name} {ranks} {arguments}"):
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertEqual(table(result.stdout), expected(name, ranks, size, **keywords), result.stdout)
            self.assertIn(said, result.stdout)

    def test_every_collective(self):
        for name in OURS:
            self.check(name, 3, said="backend shm")
        for name in ("broadcast", "reduce", "gather", "scatter"):
            self.check(name, 3, "--backend", "gloo", "--root", 2, root=2, said="ank 2")
        for name in ("all_gather", "reduce_scatter", "all_to_all", "send_recv"):
            self.check(name, 3, "--backend", "gloo", said="backend gloo")
        for op in OPS:
            self.check("all_reduce", 2, "--op", op, op=op, said="backend gloo" if op == "product" else "backend shm")
        for name in ("reduce", "reduce_scatter"):
            self.check(name, 2, "--op", "mean", "--backend", "gloo", op="mean")
        self.check("all_reduce", 1, size=1)

    def test_large_tensors_keep_their_owners_apart_and_a_barrier_waits(self):
        result = run("all_gather", "--nprocs", 2, "--size", 8)
        self.assertEqual(table(result.stdout)[1], [tensor(1, 8, 100), tensor(0, 8, 100) + tensor(1, 8, 100)])
        result = run("barrier", "--nprocs", 3)
        self.assertEqual(result.stdout.count("has come  knows that 3 of 3 have"), 3, result.stdout)

    def test_a_bad_command_is_one_line(self):
        for arguments, said in {
            "": "--collective is required",
            "all_reduced": "got \"all_reduced\", expected broadcast, all_reduce",
            "all_reduce --root 1": "--root: got 1, expected none: all_reduce has no root",
            "gather --op sum": "--op: got sum, expected none: gather computes nothing",
            "gather --root 3 --nprocs 3": "--root: got 3, expected 0 to 2",
            "all_reduce --backend mpi": "--backend: got mpi, expected mpirun to start the ranks",
            "scatter --backend shm": "--backend: got shm, expected gloo: it alone has scatter here",
            "all_reduce --op product --backend shm": "expected gloo: it alone has all_reduce with --op product here",
            "all_reduce --nprocs 17": "--nprocs: got \"17\", expected an integer from 1 to 16",
        }.items():
            result = run(*arguments.split())
            with self.subTest(arguments):
                self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr)
                self.assertIn(said, result.stderr)
                self.assertTrue(result.stderr.startswith("collectives: error: "), result.stderr)


class Mpi(unittest.TestCase):
    def test_under_mpirun(self):
        mpirun = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2")
        for name in OURS:
            result = run(name, "--backend", "mpi", launcher=mpirun)
            self.assertEqual((result.returncode, table(result.stdout)), (0, expected(name, 2, 2)), result.stderr)
        # A stage through a shell, as through a container's starter: bound each to a core, and all by OpenMP to the first one.
        bound, alike = (run(launcher=(*mpirun, "--bind-to", to, "-x", f"OMP_PROC_BIND={binds}", "sh", "-c",
                                      '"${0%/*}/04_ddp_launcher" 1 2; exit')) for to, binds in (("core", "false"), ("none", "true")))
        if len(os.sched_getaffinity(0)) > 1:
            self.assertNotIn("share one core", bound.stderr)
            self.assertIn("note: 2 ranks share one core", alike.stderr)
        self.assertNotIn("trains alone", bound.stderr)
        result = run("all_reduce", "--nprocs", 3, launcher=mpirun)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--nprocs: got 3, expected 2, what mpirun started", result.stderr)


if __name__ == "__main__":
    unittest.main()
