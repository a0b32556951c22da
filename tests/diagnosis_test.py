#!/usr/bin/env python3
"""What docs/diagnosis.md says that a program prints, it prints: every block of commands is run, and compared line by line.

usage: tests/diagnosis_test.py BUILD_DIR
DDP_SHOW=1 prints what each block has printed.
"""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build").resolve()
PAGE = (ROOT / "docs/diagnosis.md").read_text()
BLOCK = re.compile(r"```shell-session\n(.*?)```\n", re.DOTALL)
SECTIONS = ["It hangs", "It is slow", "The numbers differ", "The port is taken", "A rank was killed"]
PORT = "29517"
TIMEOUT_S = 100
# What is another each time. A collective's number is, when a rank is stopped at some moment of a long run: then it is large.
VARIES = [(r"\(pid \d+\)", "(pid N)"), (r"collective \d{3,}", "collective N"), (r"digest [0-9a-f]{16}", "digest N"), (r"(moved \d\.\d{4})\d", r"\1"),
          (r"step \d+\.\d+ ms \| \d+ samples/s", "step N"), (r"for \d+\.\d+ ms", "for N ms"), (r"busy [01]\.\d\d ", "busy N "),
          (r"others [01]\.\d\d ", "others N "), (r"\b[0-9a-f]{16}\b", "N")]
# Both ranks see it, and the launcher prints what the first one says, who may have it from the other.
EITHER = [(r"\] rank [01] failed: (rank 0 calls )", r"] \1"),
          (r"\[rank 1\] (rank 0 calls .* docs/diagnosis/differs\.cpp):14$", r"[rank 0] \1:12"),
          (r"\[rank 1\] (after \d+ steps of epoch \d+ the weights differ: )", r"[rank 0] \1")]


def without_what_varies(line):
    for pattern, name in VARIES + EITHER:
        line = re.sub(pattern, name, line)
    return line


def commands_and_output(block):
    lines = block.splitlines()
    return "\n".join(line[2:] for line in lines if line.startswith("$ ")), [line for line in lines if not line.startswith("$ ")]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def as_on_page(output, port):
    """In the order of the ranks, who print in any order."""
    lines = [without_what_varies(line.replace(port, PORT)) for line in output]
    return sorted(lines) if all(line.startswith("[CPU") for line in lines) else lines


class Diagnosis(unittest.TestCase):
    maxDiff = None

    def test_every_block_prints_what_it_says(self):
        blocks = [commands_and_output(block) for block in BLOCK.findall(PAGE)]
        self.assertGreaterEqual(len(blocks), 10)
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("SLURM_", "OMPI_", "PMIX_", "TORCHELASTIC_", "DDP_"))
                       and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
        for commands, expected in blocks:
            with self.subTest(commands.splitlines()[0]), tempfile.TemporaryDirectory(prefix="ddp-diagnosis-") as folder:
                self.assertTrue(expected, "a block without an output")
                (pathlib.Path(folder) / "build").symlink_to(BUILD)
                port = free_port()
                result = subprocess.run(["bash", "-c", commands.replace(PORT, port)], cwd=folder, env=environment, timeout=TIMEOUT_S,
                                        text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                if "DDP_SHOW" in os.environ:
                    print(f"$ {commands}\n{result.stdout}")
                self.assertEqual(as_on_page(result.stdout.splitlines(), port), [without_what_varies(line) for line in expected])

    def test_the_culprit_is_the_one_that_is_run(self):
        shown = re.search(r"```cpp\n(.*?)```\n", PAGE, re.DOTALL).group(1)
        source = (ROOT / "docs/diagnosis/hangs.cpp").read_text()
        self.assertIn(shown, source)
        self.assertLessEqual(len(shown.splitlines()), 15)
        line = int(re.search(r"hangs\.cpp:(\d+)", PAGE).group(1))
        self.assertIn("ddp::all_reduce(loss.div_", source.splitlines()[line - 1])

    def test_each_section_goes_from_the_symptom_to_the_cure(self):
        parts = re.split(r"^## (.+)\n", PAGE, flags=re.MULTILINE)
        self.assertEqual(parts[1::2], SECTIONS)
        for title, text in zip(parts[1::2], parts[2::2]):
            with self.subTest(title):
                self.assertTrue(BLOCK.search(text))
                for word in "Command", "Cause", "Cure":
                    self.assertIn(f"**{word}.**", text)

    def test_what_varies_is_not_what_is_compared(self):
        line = "hangs: error: [rank 0] rank 1 (pid 5) did not arrive; collective 2, called at docs/diagnosis/hangs.cpp:12"
        self.assertEqual(without_what_varies(line), line.replace("pid 5", "pid N"))
        for other in line.replace("collective 2", "collective 3"), line.replace(":12", ":13"), line.replace("rank 1", "rank 2"):
            self.assertNotEqual(without_what_varies(line), without_what_varies(other))


if __name__ == "__main__":
    shutil.which("pgrep") or sys.exit("found no pgrep, expected that of procps")
    unittest.main()
