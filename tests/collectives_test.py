#!/usr/bin/env python3
"""The lab, tools/collectives.cpp: what every rank has after each collective, computed here once more, and what it says of a bad command.

usage: collectives_test.py PROGRAM Lab|Mpi
"""

import math
import re
import subprocess
import sys
import unittest

PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else ""
TIMEOUT_S = 120
OURS = ("broadcast", "all_reduce", "all_gather", "gather", "reduce_scatter")  # what each of our own backends has
OPS = {"sum": sum, "mean": lambda values: sum(values) / len(values), "product": math.prod, "min": min, "max": max}


def run(*arguments, launcher=()):
    return subprocess.run([*launcher, PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S)


def tensor(rank, count, step=10):
    return [rank * step + i + 1 for i in range(count)]


def columns(row):
    """The two tensors of a row of the table, or the words in their place."""
    return [[float(word) for word in cell[1:-1].replace("|", " ").split()] if cell.startswith("[") else cell
            for cell in re.findall(r"\[[^]]*\]|\(left undefined\)|-(?= |$)", row)]


def table(output):
    rows = [line for line in output.splitlines() if re.match(r"\d", line)]
    return [columns(row) for row in rows]


def expected(name, ranks, size, root=0, op="sum"):
    """What is before and after, by rank."""
    own = [tensor(rank, size) for rank in range(ranks)]
    whole = [tensor(rank, size * ranks) for rank in range(ranks)]
    part = [[whole[rank][size * other:size * (other + 1)] for other in range(ranks)] for rank in range(ranks)]
    combined = [OPS[op](column) for column in zip(*own)]
    together = sum(own, [])
    return {
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


class Lab(unittest.TestCase):
    maxDiff = None

    def check(self, name, ranks, *arguments, **keywords):
        size = keywords.pop("size", 2)
        result = run(name, "--nprocs", ranks, "--size", size, *arguments)
        with self.subTest(f"{name} {ranks} {arguments}"):
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            wanted = expected(name, ranks, size, **keywords)
            self.assertEqual(table(result.stdout), [wanted(rank) for rank in range(ranks)], result.stdout)
        return result.stdout

    def test_every_collective_over_gloo(self):
        for name in ("broadcast", "all_reduce", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all", "send_recv"):
            self.assertIn("backend gloo", self.check(name, 3, "--backend", "gloo"))

    def test_those_of_our_backends(self):
        for name in OURS:
            self.assertIn("backend shm", self.check(name, 3))
            self.assertIn("backend hierarchical", self.check(name, 3, "--backend", "hierarchical"))

    def test_what_a_backend_has_not_is_one_line(self):
        for name, backend in ("reduce", "shm"), ("scatter", "hierarchical"), ("all_to_all", "mpi"), ("send_recv", "shm"):
            result = run(name, "--backend", backend)
            self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
            self.assertEqual(result.stderr, f"collectives: error: --backend: got {backend}, expected gloo: it alone has {name} here\n")

    def test_other_roots(self):
        for name in ("broadcast", "reduce", "gather", "scatter"):
            self.assertIn("ank 2", self.check(name, 3, "--root", 2, root=2))

    def test_every_operation(self):
        for op in OPS:
            for backend in "shm", "gloo":
                self.check("all_reduce", 3, "--op", op, "--backend", backend, op=op)
            self.check("reduce_scatter", 2, "--op", op, op=op)
            self.check("reduce", 2, "--op", op, op=op)

    def test_one_rank_and_several(self):
        for ranks in 1, 2, 4:
            for name in ("all_reduce", "all_to_all", "send_recv"):
                self.check(name, ranks, size=1)

    def test_large_tensors_keep_their_owners_apart(self):
        result = run("all_gather", "--nprocs", 2, "--size", 8)
        self.assertEqual(table(result.stdout)[1], [tensor(1, 8, 100), tensor(0, 8, 100) + tensor(1, 8, 100)])

    def test_a_barrier(self):
        result = run("barrier", "--nprocs", 3)
        self.assertEqual(result.stdout.count("has come  knows that 3 of 3 have"), 3, result.stdout)

    def test_what_is_sent(self):
        for command, said in {
            "all_reduce --nprocs 4 --size 4": "in a ring: each rank 6 messages (24 bytes); in a tree, 4 deep: rank 0 2 messages (32 bytes), "
                                              "rank 1 1 message (16 bytes), rank 2 2 messages (32 bytes), rank 3 1 message (16 bytes).",
            "all_gather --nprocs 3 --size 1": "in a ring: each rank 2 messages (8 bytes).",
            "reduce_scatter --nprocs 3 --size 1": "in a ring: each rank 2 messages (8 bytes).",
            "all_to_all --nprocs 3 --size 1": "directly: each rank 2 messages (8 bytes).",
            "send_recv --nprocs 2 --size 1": "directly: each rank 1 message (4 bytes).",
            "broadcast --nprocs 3 --root 1": "in a ring: rank 0 0 messages (0 bytes), rank 1 1 message (8 bytes), rank 2 1 message (8 bytes); "
                                             "in a tree, 2 deep: rank 0 0 messages (0 bytes), rank 1 2 messages (16 bytes), rank 2 0 messages (0 bytes).",
            "gather --nprocs 4 --size 1": "in a tree, 2 deep: rank 0 0 messages (0 bytes), rank 1 1 message (4 bytes), rank 2 1 message (8 bytes), "
                                          "rank 3 1 message (4 bytes).",
            "scatter --nprocs 4 --size 1": "in a tree, 2 deep: rank 0 2 messages (12 bytes), rank 1 0 messages (0 bytes), rank 2 1 message (4 bytes), "
                                           "rank 3 0 messages (0 bytes).",
        }.items():
            with self.subTest(command):
                self.assertEqual(run(*command.split()).stdout.splitlines()[-1], "Sent " + said)

    def test_two_runs_are_the_same(self):
        self.assertEqual(run("all_reduce", "--nprocs", 3).stdout, run("all_reduce", "--nprocs", 3).stdout)

    def test_a_bad_command_is_one_line(self):
        for arguments, said in {
            "": "all_reduce",
            "all_reduced": "got \"all_reduced\", expected broadcast, all_reduce",
            "all_reduce --root 1": "--root: got 1, expected none: all_reduce has no root",
            "gather --op sum": "--op: got sum, expected none: gather computes nothing",
            "gather --root 3 --nprocs 3": "--root: got 3, expected 0 to 2",
            "all_reduce --op median": "--op: got \"median\", expected sum, mean, product, min or max",
            "all_reduce --backend nccl": "--backend: got \"nccl\", expected auto, shm, hierarchical, gloo or mpi",
            "all_reduce --backend mpi": "--backend: got mpi, expected mpirun to start the ranks",
            "all_reduce --size 0": "--size: got \"0\", expected an integer from 1 to 64",
            "all_reduce --nprocs 17": "--nprocs: got \"17\", expected an integer from 1 to 16",
            "all_reduce --ranks 3": "--ranks",
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
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(table(result.stdout), [expected(name, 2, 2)(rank) for rank in range(2)], result.stdout)
        result = run("all_reduce", "--nprocs", 3, launcher=mpirun)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--nprocs: got 3, expected 2, what openmpi started", result.stderr)


if __name__ == "__main__":
    unittest.main()
