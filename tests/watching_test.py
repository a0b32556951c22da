#!/usr/bin/env python3
"""A run's progress: the bar on a terminal, and TensorBoard's files by tools/tensorboard.

usage: tests/watching_test.py STAGES [unittest's arguments]
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

ROOT = pathlib.Path(__file__).resolve().parent.parent
STAGES = pathlib.Path(sys.argv.pop(1)).resolve()
EPOCH_LINE = r"\[CPU\d\] Epoch \d+ \| Batchsize: 32 \| Steps: \d+ \| Loss: \d+\.\d{4}"
BAR = r"epoch \d+/\d+ \[#*\.*\] step \d+, \d+\.\d steps/s"


def as_displayed(text):
    """Lines that a terminal shows in the end: a return and an erasure remove the bar."""
    return [line.rsplit("\r\x1b[K", 1)[-1] for line in text.replace("\r\n", "\n").split("\n")]


class Watching(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddp-watching-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

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

    def read_events(self):
        events = EventAccumulator(str(self.folder / "runs"), size_guidance={"scalars": 0})
        events.Reload()
        return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

    def check_events(self, out):
        """TensorBoard shows the printed values and the values of --metrics."""
        scalars, (*rows, summary) = self.read_events(), [json.loads(line) for line in (self.folder / "m").read_text().splitlines()]
        printed = re.findall(r"\[CPU0\].* Loss: (\S+)", out)
        steps = summary["summary"]["steps"] // len(printed)
        for number, ((step, value), loss) in enumerate(zip(scalars["loss/epoch"], printed, strict=True), 1):
            self.assertEqual(step, steps * number)
            self.assertAlmostEqual(value, float(loss), delta=1e-4)
        self.assertEqual([step for step, _ in scalars["samples_per_second"]], [step for step, _ in scalars["loss/epoch"]])
        for (step, value), row in zip(scalars["loss/step"], [row for row in rows if row["rank"] == 0], strict=True):
            self.assertEqual(step, row["step"] + 1)
            self.assertAlmostEqual(value, row["loss"], places=5)
        for name in "loss", "accuracy", "moved", "step_ms":
            self.assertAlmostEqual(scalars[f"summary/{name}"][0][1] / summary["summary"][name], 1, places=5)

    def test_tensorboard_afterwards_and_live(self):
        stage = [STAGES / "03_ddp_spawn", "3", "3", "--nprocs", "2", "--dataset", "digits", "--metrics", "m"]
        tool = [sys.executable, ROOT / "tools/tensorboard", "m", "runs"]
        out = subprocess.run(stage, cwd=self.folder, check=True, capture_output=True, text=True, timeout=120).stdout
        subprocess.run(tool, cwd=self.folder, check=True, timeout=120)
        self.check_events(out)
        for file in (self.folder / "runs").iterdir():
            file.unlink()
        (self.folder / "m").write_text("")
        follower = subprocess.Popen([*tool, "--follow"], cwd=self.folder)
        self.addCleanup(follower.kill)
        out = subprocess.run(stage, cwd=self.folder, check=True, capture_output=True, text=True, timeout=120).stdout
        self.assertEqual(follower.wait(timeout=60), 0)
        self.check_events(out)

    def test_tensorboard_refuses(self):
        for name, text in (("good", '{"epoch": 0}\n'), ("list", "[]\n"), ("text", "x\n")):
            (self.folder / name).write_text(text)
        for words, message in (("none runs", "none: got No such file"), ("list runs", "list: got another line"), ("text runs", "text: got another line"),
                               ("good runs", "good: got another line"), ("good list", "Not a directory"), ("good s3://x", 'got "s3://x", expected a path')):
            done = subprocess.run([ROOT / "tools/tensorboard", *words.split()], cwd=self.folder, capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr.count("\n"), message in done.stderr), (2, 1, True), done.stderr)


if __name__ == "__main__":
    unittest.main()
