#!/usr/bin/env python3
"""--trace: a Chrome trace per rank, with operators and collectives by name, on the same clock.

usage: tests/training/trace_test.py BUILD_DIR
"""

import json
import pathlib
import resource
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.scratch import Scratch  # noqa: E402

BIN = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build").resolve() / "bin"


class Trace(Scratch):
    def run_stage(self, line, code=0, most_bytes=resource.RLIM_INFINITY):
        """Its output, without times, and its errors. @param most_bytes of a file"""
        limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))}
        result = self.run_here(*f"{BIN}/{line}".split(), options=limit, CUDA_VISIBLE_DEVICES="", TMPDIR=str(self.folder))
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout.split(" | step ")[0] + result.stderr

    def events(self, name):
        """Complete events; microseconds since the epoch or the machine's start, the same for all ranks."""
        document = json.loads((self.folder / name).read_text())
        base_us = document.get("baseTimeNanoseconds", 0) / 1e3
        return [event | {"ts": base_us + event["ts"]} for event in document["traceEvents"] if event["ph"] == "X"]

    def test_ranks_on_one_clock(self):
        for backend in "gloo", "shm":
            stage = f"03_ddp_spawn 1 9 --quiet --nprocs 2 --backend {backend} --bucket-mib 1e-6"
            self.assertEqual(self.run_stage(f"{stage} --trace t.json"), self.run_stage(stage))
            begins = []
            for rank in range(2):
                events = self.events(f"t.rank{rank}.json")
                self.assertIn("aten::addmm", {event["name"] for event in events})
                begins.append(sorted(event["ts"] for event in events if event["name"] == "all_reduce")[:30:2])
                self.assertEqual(len(begins[rank]), 15)
            # Two all-reduces per step, one per parameter. A rank begins a step's first only after the other rank has begun the step before.
            for one, other in (begins, begins[::-1]):
                self.assertTrue(all(later > earlier for later, earlier in zip(one[1:], other)), begins)

    def test_a_full_disk(self):
        self.run_stage("01_single_gpu 1 9 --dataset-size 800 --trace t.json")
        written = (self.folder / "t.json").stat().st_size
        left = sorted(self.folder.rglob("*"))
        for most_bytes in 9000, written // 4, written // 2:  # traces of one program differ in length
            said = self.run_stage("01_single_gpu 1 9 --dataset-size 800 --trace t.json", code=1, most_bytes=most_bytes)
            self.assertIn("expected room", said)
            self.assertEqual(sorted(self.folder.rglob("*")), left)

    def test_a_run_that_ends_early_writes_its_steps(self):
        self.run_stage("01_single_gpu 1 9 --lr 1e9 --dataset-size 640 --trace t.json", code=1)  # ends after 20 steps
        self.assertTrue(self.events("t.json"))


if __name__ == "__main__":
    unittest.main()
