#!/usr/bin/env python3
"""What shows a run while it trains: the bar on a terminal, TensorBoard's files, what --verbose says of each rank.

usage: tests/watching_test.py STAGES FAULTY_RANKS [unittest's arguments]
"""

import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

EPOCH_LINE = re.compile(r"\[CPU\d\] Epoch \d+ \| Batchsize: 32 \| Steps: \d+ \| Loss: \d+\.\d{4}")
BAR = re.compile(r"epoch \d+/\d+ \[#*\.*\] \d+ %, step \d+/\d+, \d+\.\d steps/s, (\d+:)?\d+:\d\d left")
ENDLESS = ["1000000000", "1000000000"]


def as_displayed(text):
    """The lines that a terminal shows in the end."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        shown, column = "", 0
        for part in re.split(r"(\r|\x1b\[K)", line):
            if part == "\r":
                column = 0
            elif part == "\x1b[K":
                shown = shown[:column]
            else:
                shown = shown[:column] + part + shown[column + len(part):]
                column += len(part)
        lines.append(shown)
    return lines


class Watching(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddp-watching-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, program, *arguments, **options):
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([STAGES / program, *arguments], cwd=self.folder, text=True, **options)

    def run_stage(self, program, *arguments, code=0, **options):
        process = self.start(program, *arguments, **options)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, code, f"{out}\n{err}")
        return out, err

    def on_terminal(self, program, *arguments, stop_at=None, both=False, term="xterm", columns=120):
        """(stdout, what stderr's terminal got, exit code). @param stop_at a regular expression: then it is asked to stop"""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
        with open(self.folder / "out", "w+") as out:
            process = self.start(program, *arguments, stdout=slave if both else out, stderr=slave, env={**os.environ, "TERM": term})
            os.close(slave)
            self.addCleanup(process.kill)
            text = ""
            deadline = time.monotonic() + 60
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
            process.wait(timeout=60)
            out.seek(0)
            return out.read(), text, process.returncode


class Bar(Watching):
    def test_it_is_drawn_and_leaves_nothing_behind(self):
        two_bars = f"(?s){BAR.pattern}.*{BAR.pattern}"
        for program, more in ("01_single_gpu", []), ("03_ddp_spawn", ["--nprocs", "2", "--speedup", "fused"]):
            with self.subTest(program):
                out, err, code = self.on_terminal(program, *ENDLESS, "--dataset-size", "40000", *more, stop_at=two_bars)
                self.assertEqual(code, 85)
                for line in out.splitlines():
                    self.assertRegex(line, f"^{EPOCH_LINE.pattern}$")
                displayed = as_displayed(err)
                self.assertRegex(displayed[0], "stopped on request")
                self.assertEqual(displayed[1:], [""])

    def test_lines_of_all_ranks_stay_whole_beside_it(self):
        _, text, code = self.on_terminal("03_ddp_spawn", *ENDLESS, "--nprocs", "2", "--dataset-size", "40000", both=True,
                                         stop_at=f"(?s){BAR.pattern}.*Epoch.*{BAR.pattern}.*Epoch")
        self.assertEqual(code, 85)
        *lines, stopped, rest = as_displayed(text)
        self.assertIn("stopped on request", stopped)
        self.assertEqual(rest, "")
        for line in lines:
            self.assertRegex(line, f"^{EPOCH_LINE.pattern}$")

    def test_where_nobody_looks_at_it_there_is_none(self):
        workload = ["01_single_gpu", "1", "9", "--dataset-size", "500000"]
        self.assertRegex(self.on_terminal(*workload)[1], BAR)
        drawings = self.on_terminal(*workload, columns=40)[1].split("\x1b[K")
        self.assertTrue(all(len(drawing) <= len("\r") + 39 for drawing in drawings), drawings)
        self.assertEqual(self.on_terminal(*workload, "--quiet")[1], "")
        self.assertEqual(self.on_terminal(*workload, term="dumb")[1], "")
        self.assertNotIn("steps/s", self.on_terminal(*workload, "--verbose")[1])
        self.assertEqual(self.run_stage(*workload)[1], "")


class Events(Watching):
    def read(self):
        events = EventAccumulator(str(self.folder / "runs/1"), size_guidance={"scalars": 0})
        events.Reload()
        now = time.time()
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                self.assertTrue(now - 600 < event.wall_time <= now, f"{tag} at {event.wall_time}, now {now}")
        return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

    def train(self, epochs, *more):
        return self.run_stage("03_ddp_spawn", str(epochs), "3", "--nprocs", "2", "--dataset", "digits",
                              "--tensorboard", "runs/1", "--snapshot", "s", *more)[0]

    def test_tensorboard_reads_what_was_printed(self):
        out = self.train(3, "--metrics", "m", "--lr-schedule", "linear")
        scalars = self.read()
        self.assertEqual(set(scalars), {"loss/train", "loss/test", "accuracy/test", "learning_rate", "samples_per_second",
                                        "loss/step of rank 0"})
        steps = int(re.search(r"Steps: (\d+)", out)[1])
        losses = re.findall(r"\[CPU0\].* Loss: (\S+)", out)
        self.assertEqual([(step, f"{value:.4f}") for step, value in scalars["loss/train"]],
                         [(steps * (epoch + 1), loss) for epoch, loss in enumerate(losses)])
        self.assertEqual(f"{scalars['accuracy/test'][-1][1]:.4f}", re.search(r"accuracy (\S+)", out)[1])
        self.assertEqual(f"{scalars['loss/test'][-1][1]:.4f}", re.search(r"moved .* loss (\S+)", out)[1])
        rates = [value for _, value in scalars["learning_rate"]]
        self.assertAlmostEqual(rates[1] / rates[0], 2 / 3, places=5)
        self.assertAlmostEqual(rates[2] / rates[0], 1 / 3, places=5)
        rows = [json.loads(line) for line in (self.folder / "m").read_text().splitlines()[:-1]]
        of_rank_0 = [(row["step"] + 1, row["loss"]) for row in rows if row["rank"] == 0]
        samples = json.loads((self.folder / "m").read_text().splitlines()[-1])["summary"]["global_batch"] * steps
        for epoch, (_, speed) in enumerate(scalars["samples_per_second"]):
            steps_s = sum(row["step_ms"] for row in rows if row["rank"] == 0 and row["epoch"] == epoch) / 1e3
            self.assertTrue(0.5 * steps_s < samples / speed < 10 * steps_s + 1, f"{speed} samples/s, steps of {steps_s} s")
        self.assertLess(len(of_rank_0), 300)  # none was left out
        for (step, value), (expected_step, expected) in zip(scalars["loss/step of rank 0"], of_rank_0, strict=True):
            self.assertEqual(step, expected_step)
            self.assertAlmostEqual(value, expected, places=5)


class Verbose(Watching):
    BUSY = re.compile(r"^\[(CPU\d)\] busy (\d+\.\d\d) of (\d+) cores?(?:, waiting for others (\d\.\d\d) of a step)?$", re.MULTILINE)

    def test_shapes_carry_the_rank(self):
        for program in "03_ddp_spawn", "03_ddp_spawn_by_hand":
            out, _ = self.run_stage(program, "1", "1", "--nprocs", "2", "--dataset-size", "64", "--verbose")
            for rank in range(2):
                self.assertEqual(out.count(f"[CPU{rank}] In model: input [32, 20] on cpu\n"), 1, out)

    def test_every_rank_says_what_an_epoch_reads(self):
        out, _ = self.run_stage("03_ddp_spawn", "2", "9", "--nprocs", "2", "--dataset-size", "15", "--verbose")
        orders = {(epoch, rank): [int(index) for index in indices.split(", ")]
                  for rank, epoch, indices in re.findall(r"^\[CPU(\d)\] epoch (\d) reads (.*)$", out, re.MULTILINE)}
        self.assertEqual(len(orders), 4, out)
        for epoch in "01":
            self.assertEqual(sorted(orders[epoch, "0"] + orders[epoch, "1"]), list(range(15)))
        self.assertNotEqual(orders["0", "0"], orders["1", "0"])
        out, _ = self.run_stage("01_single_gpu", "1", "1", "--dataset-size", "9", "--verbose")
        self.assertRegex(out, r"(?m)^\[CPU0\] epoch 0 reads \d(, \d){7}, \.\.\.$")

    def test_every_rank_says_how_busy_it_was(self):
        _, err = self.run_stage("03_ddp_spawn", "3", "9", "--nprocs", "2", "--verbose")
        said = {match[1]: match for match in self.BUSY.finditer(err)}
        self.assertEqual(set(said), {"CPU0", "CPU1"}, err)
        for match in said.values():
            self.assertTrue(0 < float(match[2]) < 1.5, err)
            self.assertEqual(match[3], "1")
            self.assertTrue(0 <= float(match[4]) <= 1, err)
        _, err = self.run_stage("02_data_parallel", "3", "9", "--nprocs", "2", "--verbose")
        (match,) = self.BUSY.finditer(err)
        self.assertEqual((match[1], match[3], match[4]), ("CPU0", "2", None))

    def test_who_waits_for_a_slow_rank_says_so(self):
        _, err = self.run_stage(FAULTY_RANKS, "1", "9", "--nprocs", "2", "--dataset-size", "57600", "--verbose",
                                env={**os.environ, "DDP_TEST_FAULT": "slow 1 0 0"})
        waits = {match[1]: float(match[4]) for match in self.BUSY.finditer(err)}
        self.assertGreater(waits["CPU0"], waits["CPU1"] + 0.1, err)


if __name__ == "__main__":
    STAGES, FAULTY_RANKS = map(pathlib.Path, sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
