#!/usr/bin/env python3
"""Watching a run: the bar on a terminal, also of bench, and --trace, a Chrome trace per rank on one clock.

usage: tests/training/watching_test.py STAGES [unittest's arguments]
"""

import fcntl
import json
import os
import pathlib
import pty
import re
import resource
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.scratch import Scratch  # noqa: E402

STAGES = pathlib.Path(sys.argv.pop(1)).resolve()
EPOCH_LINE = r"\[CPU\d\] Epoch \d+ \| Batchsize: 32 \| Steps: \d+ \| Loss: \d+\.\d{4}"
BAR = r"epoch \d+/\d+ \[#*\.*\] step \d+, \d+\.\d steps/s"


def as_displayed(text):
    """Lines that a terminal shows in the end: a return and an erasure remove the bar."""
    return [line.rsplit("\r\x1b[K", 1)[-1] for line in text.replace("\r\n", "\n").split("\n")]


class Bar(Scratch):
    def on_terminal(self, *command, stop_at=None, term="xterm"):
        """Runs a program on a terminal. @return output, exit code @param stop_at regular expression: stops the run there"""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 120, 0, 0))
        process = subprocess.Popen([STAGES / command[0], *command[1:]], cwd=self.folder, stdout=slave, stderr=slave, stdin=subprocess.DEVNULL,
                                   env={**os.environ, "TERM": term})
        os.close(slave)
        self.addCleanup(process.kill)
        text, deadline = "", time.monotonic() + 60
        while True:
            self.assertLess(time.monotonic(), deadline, f"{stop_at} is not in {text[-1000:]}")
            if not select.select([master], [], [], 1)[0]:
                continue
            try:
                text += os.read(master, 65536).decode()
            except OSError:  # the other end is closed
                break
            if stop_at is not None and re.search(stop_at, text):
                stop_at = None
                process.send_signal(signal.SIGTERM)
        os.close(master)
        return text, process.wait(timeout=60)

    def test_the_bar_leaves_the_lines_whole(self):
        text, code = self.on_terminal("01_single_gpu", "1000000", "1000000", "--dataset-size", "40000", stop_at=f"(?s){BAR}.*Epoch.*{BAR}.*Epoch")
        self.assertEqual(code, 85)
        *lines, stopped, rest = as_displayed(text)
        self.assertRegex(stopped, "stopped on request")
        self.assertEqual(rest, "")
        for line in lines:
            self.assertRegex(line, f"^{EPOCH_LINE}$")

    def test_where_nobody_wants_it_there_is_no_bar(self):
        stage = ["01_single_gpu", "1", "9", "--dataset-size", "200000"]
        self.assertRegex(self.on_terminal(*stage)[0], BAR)
        for text, _ in (self.on_terminal(*stage, "--quiet"), self.on_terminal(*stage, "--verbose"), self.on_terminal(*stage, term="dumb")):
            self.assertNotIn("steps/s", text)

    def test_the_bar_of_bench_is_as_long_as_what_is_done(self):
        text = self.on_terminal("bench", *"--models T --stages 01 --world-sizes 1 --repetitions 1".split())[0]
        bars = re.findall(r"\[(#*)(\.*)\] (\d+)/(\d+)", text)
        self.assertTrue(len(bars) > 2 and not any("##" in line for line in as_displayed(text)), text)
        for bar, rest, done, runs in bars:
            self.assertEqual(len(bar), len(bar + rest) * int(done) // int(runs))


class Trace(Scratch):
    def run_stage(self, line, code=0, most_bytes=resource.RLIM_INFINITY):
        """Its output, without times, and its errors. @param most_bytes of a file"""
        limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))}
        result = self.run_here(*f"{STAGES}/{line}".split(), options=limit, CUDA_VISIBLE_DEVICES="", TMPDIR=str(self.folder))
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
