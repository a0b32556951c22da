#!/usr/bin/env python3
"""Each fault of --inject has the effect that its name says, and none where it cannot.

usage: tests/inject_test.py BUILD_DIR
"""

import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build").resolve() / "bin"
LAUNCHED = re.compile(r"SLURM_|OMPI_|PMIX?_|TORCHELASTIC_|DDP_|(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not LAUNCHED.match(name)} | {"CUDA_VISIBLE_DEVICES": ""}
TIMEOUT_S = 200
READS = re.compile(r"^\[CPU(\d)\] epoch (\d+) reads ([\d, ]+\d)(?:, \.\.\.)?$", re.MULTILINE)
LAST_LINE = re.compile(r"^moved (\S+) \| loss (\S+) \|(?: accuracy \S+ \|)? digest ([0-9a-f]{16})", re.MULTILINE)
DIFFER = re.compile(r"after (\d+) steps of epoch (\d+) the weights differ: (.*), expected the same on all ranks")
ONE_STEP = "1 1 --nprocs 2 --dataset-size 64 --quiet"


def tensors(path):
    """Of a safetensors file, all of float32: numbers by name."""
    content = path.read_bytes()
    begin = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:begin])
    return {name: struct.unpack(f"<{(end - start) // 4}f", content[begin + start:begin + end])
            for name, (start, end) in ((name, entry["data_offsets"]) for name, entry in header.items() if name != "__metadata__")
            if header[name]["dtype"] == "F32"}


class Inject(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddp-inject-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_stage(self, line, code=0):
        program, *arguments = line.split()
        result = subprocess.run([BIN / program, *arguments], cwd=self.folder, env=ENVIRONMENT, timeout=TIMEOUT_S, text=True,
                                stdin=subprocess.DEVNULL, capture_output=True, check=False)
        self.assertEqual(result.returncode, code, f"{line}\n{result.stdout}{result.stderr}")
        return result

    def last_of(self, result):
        """(moved, digest)"""
        moved, _, digest = LAST_LINE.search(result.stdout).groups()
        return float(moved), digest

    def last(self, line):
        """Of a run that ends well."""
        return self.last_of(self.run_stage(line))

    def assert_close(self, first, second, relative):
        self.assertTrue(abs(first - second) <= relative * abs(second), f"{first} and {second}")

    def orders(self, line):
        """{(rank, epoch): the first indices}"""
        found = {(int(rank), int(epoch)): indices for rank, epoch, indices in READS.findall(self.run_stage(line).stdout)}
        self.assertEqual(set(found), {(rank, epoch) for rank in range(2) for epoch in range(3)})
        return found

    def error_of(self, fault, backend, epochs=3, more=""):
        """The one line on which a run ends that cannot end well."""
        stderr = self.run_stage(f"03_ddp_spawn {epochs} 9 --nprocs 2 --quiet --timeout 10 --backend {backend} --inject {fault}{more}", code=1).stderr
        note, error, *more = stderr.splitlines()
        self.assertEqual((note, more), (f"03_ddp_spawn: note: --inject {fault}: this run has a fault on purpose", []))
        return error

    def test_the_sampler_stays_with_epoch_0(self):
        right = self.orders("03_ddp_spawn 3 9 --nprocs 2 --verbose")
        self.assertEqual(len(set(right.values())), 6)
        for program in "03_ddp_spawn", "03_ddp_spawn_by_hand":
            wrong = self.orders(f"{program} 3 9 --nprocs 2 --verbose --inject no-set-epoch")
            for (rank, epoch), indices in wrong.items():
                self.assertEqual(indices, right[rank, 0], (program, rank, epoch))
        # It is the only fault that one rank can have.
        self.run_stage("03_ddp_spawn 3 9 --nprocs 1 --inject no-set-epoch")

    def test_ranks_begin_with_weights_of_their_own(self):
        # A rate that changes no bit.
        error = self.run_stage(f"03_ddp_spawn {ONE_STEP} --lr 1e-30 --check weights=1 --inject no-broadcast", code=1).stderr
        steps, epoch, digests = DIFFER.search(error).groups()
        self.assertEqual((steps, epoch), ("1", "0"))
        self.assertEqual(dict(re.findall(r"rank (\d) has digest (\w+)", digests)),
                         {str(rank): self.last(f"01_single_gpu 0 1 --seed {42 + rank}")[1] for rank in range(2)})
        self.run_stage(f"03_ddp_spawn {ONE_STEP} --lr 1e-30 --check weights=1")
        # The first step of a sharded optimizer hands every part out, as a broadcast does.
        self.run_stage(f"03_ddp_spawn {ONE_STEP} --lr 1e-30 --shard-optimizer --check weights=1 --inject no-broadcast")

    def test_gradients_are_their_sum(self):
        # One step of SGD goes as far as the gradient is long.
        for processes in 2, 3:
            for more in "", " --shard-optimizer", " --backend gloo", " --accumulate 2":
                line = f"03_ddp_spawn 1 1 --nprocs {processes} --dataset-size 96 --global-batch 96 --quiet" + more
                with self.subTest(line):
                    self.assert_close(self.last(line + " --inject no-mean")[0], processes * self.last(line)[0], 1e-5)  # as printed

    def test_weights_are_averaged_and_gradients_are_not(self):
        adam = f"03_ddp_spawn {ONE_STEP} --optimizer adam --snapshot"
        self.run_stage(f"{adam} right.st")
        self.run_stage(f"{adam} averaged.st --inject average-weights")
        self.run_stage(f"{adam} alone.st --no-communication")
        right, averaged, alone = (tensors(self.folder / f"{name}.st") for name in ("right", "averaged", "alone"))
        moment = next(name for name in right if name.endswith("exp_avg"))
        self.assertEqual(averaged[moment], alone[moment])  # rank 0's own gradient
        self.assertNotEqual(averaged[moment], right[moment])
        weight = next(name for name in right if name.endswith("layer0.weight"))
        self.assertNotEqual(averaged[weight], alone[weight])  # rank 1 has a part in them
        self.assertNotEqual(averaged[weight], right[weight])
        # Its wait is taken out of the phase in which it was: no part of a step is less than nothing.
        self.run_stage("03_ddp_spawn 2 9 --nprocs 2 --quiet --backend gloo --layers 64,512,16 --inject average-weights --metrics m.jsonl")
        *steps, _ = map(json.loads, (self.folder / "m.jsonl").read_text().splitlines())
        for step in steps:
            parts = [step[f"{part}_ms"] for part in ("data", "forward", "backward", "exposed_comm", "optimizer")]
            self.assertGreater(min(parts), 0, step)
            self.assertAlmostEqual(sum(parts), step["step_ms"], delta=1e-6)
        # The mean of what steps of SGD lead to is what a step along the mean leads to.
        sgd = "03_ddp_spawn 3 9 --nprocs 2 --quiet"
        self.assert_close(self.last(f"{sgd} --inject average-weights")[0], self.last(sgd)[0], 1e-5)

    def test_a_collective_of_rank_0_alone(self):
        self.assertRegex(self.error_of("rank-0-collective", "shm"),
                         r"rank 0 calls all_reduce sum of 1 float32, rank 1 calls all_reduce average of 48 float32, expected.*; collective 35,")
        # The others call what comes next, whatever it is; here the comparison of the weights' digests.
        self.assertRegex(self.error_of("rank-0-collective", "shm", epochs=1),
                         r"rank 0 calls all_reduce sum of 1 float32, rank 1 calls all_gather of 2 int64, expected the same.*; collective 35,")
        self.assertRegex(self.error_of("rank-0-collective", "gloo"),
                         r"\[rank 0\] .*Received data size doesn't match expected size|\[rank 1\] .*: all_reduce of 48 float32 \(collective 35\)")

    def test_collectives_that_differ(self):
        self.assertRegex(self.error_of("mismatched", "shm"),
                         r"rank 0 calls all_reduce sum of 96 float32, rank 1 calls all_reduce sum of 48 float64, expected the same.*; collective 35,")
        # Gloo compares sizes alone.
        for processes in 2, 3:
            line = f"03_ddp_spawn 3 9 --nprocs {processes} --quiet --timeout 60 --backend gloo"
            result = self.run_stage(f"{line} --inject mismatched")
            self.assertEqual(self.last_of(result), self.last(line))
            smallest = re.findall(rf"sums of 1 over {processes} ranks are (\S+) to ", result.stderr)
            self.assertEqual(len(smallest), 3)
            self.assertLess(max(map(float, smallest)), 1)  # which no sum of ones is

    def test_a_rank_with_a_batch_less(self):
        self.assertRegex(self.error_of("uneven-inputs", "shm"),
                         r"rank 0 calls all_gather of 3 float64, rank 1 calls all_reduce average of 48 float32, expected the same.*; collective 33,")
        # A step's batches, however many they are: of the other rank's 16 steps this one makes 15.
        self.assertRegex(self.error_of("uneven-inputs", "shm", epochs=1, more=" --accumulate 2"), r"rank 0 calls all_gather of 3 .*; collective 17,")
        # Each rank waits in another call, and whoever speaks says which.
        self.assertRegex(self.error_of("uneven-inputs", "gloo"),
                         r"\[rank 0\] .*: all_gather of 3 float64 \(collective 33\)|\[rank 1\] .*: all_reduce of 48 float32 \(collective 33\)")

    def test_what_cannot_have_a_fault_says_so_on_one_line(self):
        for line, words in (
                ("01_single_gpu 1 1 --inject no-mean", 'got "no-mean", expected none: 01_single_gpu is one process'),
                ("02_data_parallel 1 1 --inject no-set-epoch", 'got "no-set-epoch", expected none: 02_data_parallel is one process'),
                ("03_ddp_spawn 1 1 --inject no-such", 'got "no-such", expected none, no-set-epoch, no-broadcast'),
                ("03_ddp_spawn 1 1 --nprocs 1 --inject no-mean", "got world size 1, expected several ranks"),
                ("03_ddp_spawn 1 1 --inject no-mean --speedup fused", "--inject no-mean was given with --speedup fused"),
                ("04_ddp_launcher 1 1 --inject no-mean --speedup graph", "--inject no-mean was given with --speedup graph"),
                ("03_ddp_spawn 1 1 --inject no-mean --no-communication", "--inject no-mean was given with --no-communication"),
                ("03_ddp_spawn 1 1 --inject no-mean --batch-size auto", "--inject no-mean was given with --batch-size auto"),
                ("03_ddp_spawn 1 1 --inject average-weights --shard-optimizer", "was given with --shard-optimizer"),
                ("03_ddp_spawn 1 1 --inject average-weights --gradient-compression bf16", "was given with --gradient-compression bf16"),
                *((f"03_ddp_spawn_by_hand 1 1 --inject {fault}", f"got {fault}, expected no fault of DistributedDataParallel")
                  for fault in ("no-broadcast", "no-mean", "average-weights"))):
            with self.subTest(line):
                result = self.run_stage(line, code=2)
                self.assertEqual(result.stdout, "")
                self.assertRegex(result.stderr, rf"\A{line.split()[0]}: error: [^\n]*{re.escape(words)}[^\n]*\n\Z")
                self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
